"""key_metric and value_metric of the tiny models, written out in fp64: tests/golden/query_metric.json.

    python expected_query.py [--models tests/data/tiny] [--out tests/golden/query_metric.json]

For gqa-untied (grouped queries, linear RoPE) and headdim (a kv head for each query head): the ids of two sequences, and per
layer key and value metric as lib/artifacts/FORMAT.md defines them, from transformers' projections before RoPE and weights of
o_proj. One token, one query and one head at a time where it matters: nothing here is fast.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import make_tiny

NAMES, SEQUENCES, SEQLEN = ("gqa-untied", "headdim"), 2, 40
TOKENS = 64  # most tokens of a sequence


def sampled_tokens(sequence, seqlen, most=TOKENS):
    count = min(most, seqlen - 1)
    offset = (sequence + 1) * 40503 % 65536
    return [1 + (index * 65536 + offset) * (seqlen - 1) // (count * 65536) for index in range(count)]


def projections(model, ids):
    """Per layer q, k, v, [tokens, heads, head_dim], before RoPE."""
    kept, hooks = {}, []
    for layer, block in enumerate(model.model.layers):
        for name in ("q", "k", "v"):
            module = getattr(block.self_attn, f"{name}_proj")
            hooks.append(module.register_forward_hook(
                lambda module, inputs, output, key=(layer, name): kept.__setitem__(key, output[0].detach())))
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    head_dim = model.config.head_dim
    return [[kept[layer, name].reshape(len(ids), -1, head_dim) for name in ("q", "k", "v")]
            for layer in range(len(model.model.layers))]


def angles(model, seqlen):
    """[seqlen, rotary_dim / 2], as transformers' own module has them."""
    return torch.arange(seqlen).double()[:, None] * model.model.rotary_emb.inv_freq.double()[None]


def turned(x, angle, sign=1):
    """R x of [..., head_dim]; R of position p turns channels (j, j + head_dim / 2) by angle[p, j]."""
    half = x.shape[-1] // 2
    a, b, cosine, sine = x[..., :half], x[..., half:], torch.cos(angle), sign * torch.sin(angle)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def key_metric(q, k, angle, sequence):
    """Sum over the sampled tokens, [kv_heads, head_dim, head_dim]."""
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    result = torch.zeros(kv_heads, dim, dim, dtype=torch.float64)
    turned_q, turned_k = turned(q, angle[:, None]), turned(k, angle[:, None])
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        scores = turned_q[:, head] @ turned_k[:, kv_head].T / dim**0.5
        weight = torch.softmax(scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf), -1)
        for token in sampled_tokens(sequence, tokens):
            for position in range(token, tokens):
                w = weight[position, token]
                u = turned(turned_q[position, head], angle[token], -1)
                result[kv_head] += (w * (1 - w)) ** 2 * torch.outer(u, u)
    return result


def value_metric(weight, heads, kv_heads):
    """Sum over the query heads of the kv head of Wᵀ W, W their columns of o_proj."""
    blocks = weight.reshape(weight.shape[0], heads, -1)
    gram = torch.einsum("nhi,nhj->hij", blocks, blocks)
    return gram.reshape(kv_heads, -1, *gram.shape[1:]).sum(1)


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=root / "tests/data/tiny")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/query_metric.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    documents = []
    for name in NAMES:
        model = AutoModelForCausalLM.from_pretrained(args.models / name / "hf", dtype=torch.float64,
                                                     attn_implementation="eager").eval()
        config = model.config
        rng = np.random.Generator(np.random.PCG64(11 + len(name)))
        ids = rng.integers(3, make_tiny.VOCAB, (SEQUENCES, SEQLEN)).tolist()
        angle = angles(model, SEQLEN)
        layers = len(model.model.layers)
        keys = [0] * layers
        for sequence in range(SEQUENCES):
            for layer, (q, k, _) in enumerate(projections(model, ids[sequence])):
                keys[layer] = keys[layer] + key_metric(q, k, angle, sequence)
        tokens = sum(len(sampled_tokens(sequence, SEQLEN)) for sequence in range(SEQUENCES))
        digits = lambda tensor: [float(f"{value:.9g}") for value in tensor.flatten().tolist()]
        documents.append({
            "name": name, "sequences": ids, "tokens": tokens,
            "layers": [{"key_metric": digits(keys[layer] / tokens),
                        "value_metric": digits(value_metric(model.model.layers[layer].self_attn.o_proj.weight.detach(),
                                                            config.num_attention_heads, config.num_key_value_heads))}
                       for layer in range(layers)]})
    args.out.write_text(json.dumps(documents) + "\n")


if __name__ == "__main__":
    main()
