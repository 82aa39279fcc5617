"""Expected numbers of the tiny models, computed by transformers in fp32 on the CPU.

    python expected_tiny.py [--models tests/data/tiny] [--out tests/golden]

Writes tiny_<name>.json: ids; logits [tokens, vocab]; loss = mean next-token cross-entropy; per layer key and value =
outputs of k_proj, or of k_norm where there is one, and v_proj (before RoPE, after bias) and key_grad and value_grad = d loss / d element, all
[tokens, kv_heads, head_dim] in Hugging Face's channel order; greedy = the 8 ids that follow. Arrays are
{"shape", "data"} with data flat, row by row, seven significant digits. Before anything is written, attention by
"eager" and "sdpa" and a run in fp64 must agree, and so must the weights read back from folder and GGUF.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

import make_tiny
import tokenizer_files as tok

TOKENS, GREEDY = 48, 8


def load(folder, attention, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    return model.eval()


def make_ids(v):
    """Seeded ids, the second third repeating a stretch of the first, so that attention has something to find."""
    rng = np.random.Generator(np.random.PCG64(7 + len(v["name"])))
    ids = rng.integers(3, make_tiny.VOCAB, TOKENS)
    ids[20:32] = ids[4:16]
    if v["tokenizer"] in ("llama3", "sentencepiece", "gemma"):
        ids[0] = make_tiny.bos_and_eos(v)[0]  # begin of sequence
    return [int(value) for value in ids]


def run(model, ids):
    kept = {}

    def keep(key):
        def hook(module, inputs, output):
            output.retain_grad()
            kept[key] = output

        return hook

    hooks = []
    for layer, block in enumerate(model.model.layers):
        keys = getattr(block.self_attn, "k_norm", block.self_attn.k_proj)
        hooks.append(keys.register_forward_hook(keep((layer, "key"))))
        hooks.append(block.self_attn.v_proj.register_forward_hook(keep((layer, "value"))))
    batch = torch.tensor([ids])
    logits = model(batch, use_cache=False).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], batch[0, 1:])
    loss.backward()
    for hook in hooks:
        hook.remove()
    result = {"logits": logits.detach(), "loss": loss.detach()}
    for (layer, side), tensor in kept.items():
        # Gemma's norm comes after the heads have been moved to the front.
        by_token = (lambda x: x.transpose(1, 2)) if tensor.dim() == 4 and tensor.shape[1] != len(ids) else lambda x: x
        result[f"{layer}.{side}"] = by_token(tensor.detach())[0]
        result[f"{layer}.{side}_grad"] = by_token(tensor.grad)[0]
    return {key: value.double().numpy() for key, value in result.items()}


def greedy(model, ids):
    """Ids and the smallest lead of a chosen id over the second, which says how safe the comparison is."""
    ids, lead = list(ids), np.inf
    with torch.no_grad():
        for _ in range(GREEDY):
            top = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
            lead = min(lead, float(top.values[0] - top.values[1]))
            ids.append(int(top.indices[0]))
    return ids[-GREEDY:], lead


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def check_gguf(v, folder):
    """Folder and un-permuted GGUF must hold the same weights. That the permutation itself is llama.cpp's is shown by
    expected_smollm2.py, which undoes it on a published file."""
    weights = make_tiny.make_weights(v)
    reader = gguf.GGUFReader(folder / "model.gguf") if make_tiny.has_gguf(v) else None
    stored = {tensor.name: tensor.data for tensor in reader.tensors} if reader else {}
    state = load(folder / "hf", "eager", torch.float32).state_dict()
    for name, value in weights.items():
        assert np.array_equal(state[name].numpy(), value), name
        if reader is None:
            continue
        data = stored[make_tiny.gguf_tensor(v, name, value)[0]]
        for side, heads in (("q", v["heads"]), ("k", v["kv_heads"])):
            if f".{side}_proj." in name and v["model_type"] in ("llama", "mistral"):
                data = data.reshape(heads, -1, 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        if v["model_type"] == "gemma3_text" and "norm.weight" in name:
            value = value + np.float32(1)
        assert np.array_equal(data, value), name


def packed(array, shape=None):
    digits = [float(f"{value:.7g}") for value in np.asarray(array).reshape(-1)]
    return {"shape": list(shape or array.shape), "data": digits}


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=root / "tests/data/tiny")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for v in make_tiny.VARIANTS:
        folder = args.models / v["name"]
        check_gguf(v, folder)
        ids = make_ids(v)
        model = load(folder / "hf", "eager", torch.float32)
        result = run(model, ids)
        sdpa = run(load(folder / "hf", "sdpa", torch.float32), ids)
        exact = run(load(folder / "hf", "eager", torch.float64), ids)
        deviation = max(relative(other[key], result[key]) for other in (sdpa, exact) for key in result)
        assert deviation < 1e-5, (v["name"], deviation)
        continuation, lead = greedy(model, ids)
        assert lead > 1e-3, (v["name"], lead)
        shape = (TOKENS, v["kv_heads"], v["head_dim"])
        document = {
            "name": v["name"], "layers": v["layers"], "heads": v["heads"], "kv_heads": v["kv_heads"],
            "head_dim": v["head_dim"], "ids": ids, "loss": float(f"{result['loss']:.9g}"),
            "max_relative_deviation_sdpa_fp64": float(f"{deviation:.2g}"),
            "greedy": continuation, "greedy_min_lead": float(f"{lead:.4g}"), "logits": packed(result["logits"]),
            "per_layer": [
                {side: packed(result[f"{layer}.{side}"], shape) for side in ("key", "value", "key_grad", "value_grad")}
                for layer in range(v["layers"])
            ],
        }
        tok.write_json(args.out / f"tiny_{v['name']}.json", document)
        spread = result["logits"].std()
        print(f"{v['name']}: loss {document['loss']} logit std {spread:.3f} deviation {deviation:.2g} lead {lead:.3g}")


if __name__ == "__main__":
    main()
