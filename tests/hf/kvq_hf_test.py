#!/usr/bin/env python3
"""scripts/kvq_hf.py and kvq-eval agree on the loss of every window, for every family of recipes.

usage: kvq_hf_test.py --bin FOLDER --source FOLDER [--large | --tiny NAME] [--recipe R …]
--tiny: another tiny model than gqa-untied, with the recipes of FEW.
--large: SmolLM2-135M (KVQ_HF_MODEL: its Hugging Face folder, or KVQ_TEST_MODEL: its GGUF file) on a text that the model
reads with sense (KVQ_HF_TEXT), quantized in the layers of LAYERS only; else all of a tiny model of the tests. In a deep model
one code that falls to the other side of a boundary changes all later layers: noise of 1e-7 in one norm of SmolLM2 moves the
loss of 160 tokens under nuq3-1% by 0.02, which hides what is compared here. Prints "kvq test skipped: …" where something is
missing.
"""
import argparse
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import traceback

TOLERANCE = 1e-3  # nats, of most windows
RECIPES = """
nuq3-1%  nuq2-1%:qnorm,sink=4,share=head  nuq4:weights=none  int4:key=token  nf3-5%:rope=post  int3-2%:cap=3%  K=nuq4-1%/V=int2:sink=0
int8  int1  nf4:key=token,value=channel  nuq3-1%:share=4  int3:range=window
int3:range=window,recent=30  K=int2:range=window,flush=12/V=nf3:range=window
kvq2  kvq3:rotate=none  nuq2-1%:feedback,icm=2  kvq1.5:sink=4  K=nuq2-1%:feedback,order=ascending,rope=post/V=kvq4:icm=1
kvq2:metric=query
nuq3-1%:rule=topk  K=nuq3-5%:key=token,rule=threshold,cap=3%/V=nuq3-5%:rule=threshold  K=int3-1%:range=window,rule=topk/V=int3-5%
K=nuq3-1%:key=token,range=static/V=nuq3-1%:range=static  K=nuq3-5%:key=token,range=static,rule=topk/V=nuq3-5%:range=static,rule=topk
K=nuq3-1%:key=token-group,range=static,group=16/V=nuq3:value=token-group,range=static,group=24
K=int3-1%:key=token,range=window/V=int3-1%:value=token-group,range=window,group=24
nuq3-1%:key=token-group,value=token-group,group=8  nuq2-5%:key=token-group,value=token-group,group=24,rule=threshold
K=nuq3-5%:key=channel-group,group=16/V=nuq2-1%:value=channel-group,group=8  nuq3-5%:key=channel-group,value=token-group,group=16,rule=threshold
K=int3-5%:key=channel-group,group=16,rule=threshold,cap=3%,sink=4/V=int3:value=channel-group,group=32,sink=4
kivi2  kivi2:group=16,recent=16  kivi4:group=64,recent=128  kivi3:recent=32,sink=2
atom3  atom3:group=8  int4:key=token,zero=integer,recent=5  K=int3:key=channel-group,group=16,zero=integer/V=int3-2%:zero=integer  flexgen4
K=nuq3-1%:recent=24/V=nuq2:recent=8,flush=4  nuq2-1%:flush=16,recent=3,sink=2  K=nuq2-1%:key=channel-group,group=16,flush=32,recent=5/V=int2
kvq2:recent=16  nuq2-1%:feedback,recent=20,flush=5  nf2-1%:rope=post,recent=10
fp8  K=fp8:recent=10,sink=2/V=nuq2:sink=2
""".split()
FEW = """
nuq3-1%  nuq2-1%:qnorm,rope=post  kvq2  kvq3:icm=1  int4:key=token  kivi2:group=16,recent=16  K=nuq3-1%:recent=24/V=nuq2:recent=8,flush=4
nf2-1%:rope=post,recent=10  int3:range=window
""".split()
LAYERS = [0, 15]
BLOCKS = "q4_0  q8_0  K=q4_0:recent=10,sink=2/V=q8_0:flush=16,sink=2".split()  # head dimensions that are multiples of 32
# With --large, those that are run token by token, too; of the tiny model all but the oracles.
CACHED = ["nuq3-1%", "kivi2", "K=nuq3-1%:recent=24/V=nuq2:recent=8,flush=4", "K=nuq2-1%:key=channel-group,group=16,recent=5,flush=32/V=int2"]


class AsItIs:
    """Side of a layer that is not quantized."""

    def __init__(self, side):
        self.heads, self.head_dim, self.waits, self.axis, self.rope, self.settled = side.heads, side.head_dim, False, "token", None, lambda tokens: tokens

    def __call__(self, x, first):
        return x


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
    parser.add_argument("--tiny", default="gqa-untied")
    parser.add_argument("--recipe", action="append", help="these instead of all; repeat for several")
    options = parser.parse_args()
    try:
        import h5py
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
        if model.suffix == ".gguf" and not importlib.util.find_spec("accelerate"):
            skip("accelerate, which transformers loads GGUF files with, is not there")
        seqlen, windows, samples = 288, 1, 2
    else:
        model, text = options.source / "tests/data/tiny" / options.tiny / "hf", None
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

        tool("kvq-fisher", "--model", model, "--text", folder / "calibration.txt", "--samples", samples, "--seqlen", seqlen, "--metrics", "-o", folder / "c.h5")
        tool("kvq-threshold", "--calib", folder / "c.h5", "--outliers", "0.01,0.02,0.05", "--sinks", "0,1,2,4", "--cap", "0.03", "-o", folder / "t.h5")
        asked = options.recipe or (FEW if options.tiny != "gqa-untied" else RECIPES + (BLOCKS if options.large else []))
        recipes = [word for recipe in asked for word in ("--recipe", recipe)]
        tool("kvq-fit", "--calib", folder / "c.h5", "--thresholds", folder / "t.h5", *recipes, "-o", folder / "q")
        files = sorted((folder / "q").glob("*.h5"))
        assert len(files) == len(asked), files
        only = ["--only-layers", ",".join(map(str, LAYERS))] if options.large else []
        quantizers = [word for file in files for word in ("--quantizer", file)]
        report = json.loads(tool("kvq-eval", "perplexity", "--model", model, "--text", folder / "text.txt", "--seqlen", seqlen, "--max-windows", windows,
                                 *quantizers, *only, "--bos", "never", "--json"))

        def read(file):
            quantizer = kvq_hf.Quantizer(file)
            for layer, sides in enumerate(quantizer.layers):
                if options.large and layer not in LAYERS:
                    quantizer.layers[layer] = {name: AsItIs(side) for name, side in sides.items()}
            return quantizer

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
            try:
                quantizer = read(file) if file else None
                assert file is None or row["name"].split(" [layer")[0] == quantizer.name, row["name"]
                with quantizer.attached(network) if file else contextlib.nullcontext():
                    losses = [kvq_hf.window_nll(network, window) for window in ids]
            except Exception:  # the other recipes are of interest nevertheless
                traceback.print_exc(file=sys.stdout)
                losses = [math.nan] * windows
            difference = sum(losses) / windows - row["nll"]
            # A value on the border of two codes may take another one with another BLAS, and one window's loss moves; a fault moves most of them.
            apart = sorted(math.inf if math.isnan(loss) else abs(loss - expected) for loss, expected in zip(losses, row["window_nll"]))
            bad = not apart[windows // 2] <= TOLERANCE
            failures += bad
            print(f"{row['name']:<70} kvq-eval {row['nll']:.6f}  kvq_hf {sum(losses) / windows:.6f}  difference {difference:+.2e}  "
                  f"damage {row['delta_nll']:+.4f}{'  FAILED' if bad else ''}", flush=True)

        # With a cache, in chunks and token by token, queries see what they see in one pass; and so they do in a batch.
        for file in files:
            quantizer = read(file)
            groups = any(side.axis == "channel-group" for side in quantizer.layers[0].values())
            if groups and getattr(network.config, "sliding_window", None):  # refused: the model's cache has dropped tokens
                continue
            if "range=window" in quantizer.name or options.large and quantizer.name not in CACHED:
                continue
            # A value on the border of two codes may take another one in another order of summation; a fault shows in both pairs of windows.
            for window in [ids.reshape(-1, 144)[:2]] if options.large else [ids[:2, :60], ids[-2:, -60:]]:
                with torch.inference_mode(), quantizer.attached(network):
                    at_once = torch.cat([network(one[None]).logits for one in window])
                    cache, pieces = None, []
                    for chunk in window.split([window.shape[1] - 24, *[1] * 12, 7, 5], dim=1):
                        step = network(chunk, past_key_values=cache, use_cache=True)
                        cache = step.past_key_values
                        pieces.append(step.logits)
                apart = (torch.cat(pieces, dim=1) - at_once).abs().max().item()
                if apart < 5e-3:
                    break
            print(f"{quantizer.name:<70} token by token against one pass: largest difference of a logit {apart:.2e}", flush=True)
            failures += not apart < 5e-3
        # A word, a table or a value that a later recipe may have is refused by its name.
        for known, novel in (("[key]", "[key]\nnovel = 1"), ("[key]", "[novel]\nlo = 2\n\n[key]"), ('axis = "', 'axis = "novel-')):
            shutil.copy(files[0], folder / "novel.h5")
            with h5py.File(folder / "novel.h5", "r+") as file:
                toml = file.attrs["recipe_toml"]
                file.attrs["recipe_toml"] = (toml.decode() if isinstance(toml, bytes) else toml).replace(known, novel)
            try:
                kvq_hf.Quantizer(folder / "novel.h5")
                failures += 1
            except ValueError as error:
                failures += "novel" not in str(error)
        # Detached, the model is what it was.
        again = sum(kvq_hf.window_nll(network, window) for window in ids) / windows
        failures += not math.isclose(again, report["results"][0]["nll"], abs_tol=TOLERANCE)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
