#!/usr/bin/env python3
"""scripts/kvq_hf.py and kvq-eval agree on the loss of every window, for every family of recipes.

usage: kvq_hf_test.py --bin FOLDER --source FOLDER [--large]
--large: SmolLM2-135M (KVQ_HF_MODEL: its Hugging Face folder, or KVQ_TEST_MODEL: its GGUF file) on a text that the model
reads with sense (KVQ_HF_TEXT); else a tiny model of the tests. Prints "kvq test skipped: …" where something is missing.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

TOLERANCE = 1e-3  # nats, of a mean over windows
RECIPES = ["nuq3-1%", "nuq2-1%:qnorm,sink=4,share=head", "nuq4:weights=none", "int4:key=token", "nf3-5%:rope=post", "int3-2%:cap=3%",
           "K=nuq4-1%/V=int2:sink=0", "int3:range=window", "nf4:key=token,value=channel", "int8", "kvq2", "kvq3:rotate=none", "nuq2-1%:feedback,icm=2"]


def skip(reason):
    print(f"kvq test skipped: {reason}")
    sys.exit(0)


def generated_text(words, seed):
    """Sentences of a small vocabulary, the same on every machine."""
    vocabulary = ("the a river stone grows under light slowly every morning birds cross old bridge while rain falls on quiet green hills and small "
                  "towns where people read write sing count 12 305 7 red blue clouds").split()
    text, state = "", seed
    for index in range(1, words + 1):
        state = (state * 1103515245 + 12345) % 2**31
        text += vocabulary[state // 65536 % len(vocabulary)] + (".\n" if index % 11 == 0 else " ")
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    try:
        import h5py  # noqa: F401
        import tomllib  # noqa: F401
        import torch
        import transformers
    except ImportError as error:
        skip(f"{error.name} is not there")
    sys.path.insert(0, str(options.source / "scripts"))
    import kvq_hf

    if options.large:
        model = pathlib.Path(os.environ.get("KVQ_HF_MODEL") or os.environ.get("KVQ_TEST_MODEL") or "none")
        text = pathlib.Path(os.environ.get("KVQ_HF_TEXT") or "none")
        if not model.exists() or not text.exists():
            skip("KVQ_HF_MODEL or KVQ_HF_TEXT names nothing")
        seqlen, windows, samples = 512, 2, 2
    else:
        model, text = options.source / "tests/data/tiny/gqa-untied/hf", None
        seqlen, windows, samples = 64, 5, 4

    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        if text is None:
            (folder / "calibration.txt").write_text(generated_text(2600, 1))
            (folder / "text.txt").write_text(generated_text(1500, 7))
        else:
            whole = text.read_text(encoding="utf-8")
            (folder / "calibration.txt").write_text(whole[len(whole) // 2 :], encoding="utf-8")
            (folder / "text.txt").write_text(whole[: len(whole) // 2], encoding="utf-8")

        def tool(name, *arguments):
            run = subprocess.run([options.bin / name, *map(str, arguments)], capture_output=True, text=True)
            if run.returncode:
                sys.exit(f"{name} ended with {run.returncode}: {run.stderr[-2000:]}")
            return run.stdout

        tool("kvq-fisher", "--model", model, "--text", folder / "calibration.txt", "--samples", samples, "--seqlen", seqlen, "-o", folder / "c.h5")
        tool("kvq-threshold", "--calib", folder / "c.h5", "--outliers", "0.01,0.02,0.05", "--sinks", "0,1,4", "--cap", "0.03", "-o", folder / "t.h5")
        recipes = [word for recipe in RECIPES for word in ("--recipe", recipe)]
        tool("kvq-fit", "--calib", folder / "c.h5", "--thresholds", folder / "t.h5", *recipes, "-o", folder / "q")
        files = sorted((folder / "q").glob("*.h5"))
        assert len(files) == len(RECIPES)
        quantizers = [word for file in files for word in ("--quantizer", file)]
        report = json.loads(tool("kvq-eval", "perplexity", "--model", model, "--text", folder / "text.txt", "--seqlen", seqlen, "--max-windows", windows,
                                 *quantizers, "--bos", "never", "--json"))

        place = {"pretrained_model_name_or_path": str(model)}
        if model.suffix == ".gguf":
            place = {"pretrained_model_name_or_path": str(model.parent), "gguf_file": model.name}
        network = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, local_files_only=True).eval()
        import tokenizers

        # The tokenizer itself, not transformers' reading of it, which forgets a split (digits) of some.
        if (model / "tokenizer.json").exists():
            encode = lambda string: tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).encode(string, add_special_tokens=False).ids
        else:
            encode = lambda string: transformers.AutoTokenizer.from_pretrained(**place, local_files_only=True)(string, add_special_tokens=False).input_ids
        ids = torch.tensor(encode((folder / "text.txt").read_text(encoding="utf-8"))[: seqlen * windows]).reshape(windows, seqlen)

        failures = 0
        for file, row in zip([None, *files], report["results"]):
            if file is None:
                losses = [kvq_hf.window_nll(network, window) for window in ids]
            else:
                quantizer = kvq_hf.Quantizer(file)
                assert quantizer.name == row["name"], (quantizer.name, row["name"])
                with quantizer.attached(network):
                    losses = [kvq_hf.window_nll(network, window) for window in ids]
            difference = sum(losses) / windows - row["nll"]
            bad = not abs(difference) <= TOLERANCE
            failures += bad
            print(f"{row['name']:<40} kvq-eval {row['nll']:.6f}  kvq_hf {sum(losses) / windows:.6f}  difference {difference:+.2e}  "
                  f"damage {row['delta_nll']:+.4f}{'  FAILED' if bad else ''}")

        # With a cache, token by token, the same values are quantized as in one pass.
        quantizer = kvq_hf.Quantizer(next(file for file in files if "nuq3-1pct" in file.name))
        with torch.inference_mode(), quantizer.attached(network):
            window = ids[0, :40]
            at_once = network(window[None]).logits[0]
            step = network(window[None, :30], use_cache=True)
            cache, stepwise = step.past_key_values, [step.logits[0]]
            for token in window[30:]:
                step = network(token.reshape(1, 1), past_key_values=cache, use_cache=True)
                stepwise.append(step.logits[0])
        apart = (torch.cat(stepwise) - at_once).abs().max().item()
        print(f"token by token against one pass: largest difference of a logit {apart:.2e}")
        failures += not apart < 5e-3
        # Detached, the model is what it was.
        again = sum(kvq_hf.window_nll(network, window) for window in ids) / windows
        failures += not math.isclose(again, report["results"][0]["nll"], abs_tol=TOLERANCE)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
