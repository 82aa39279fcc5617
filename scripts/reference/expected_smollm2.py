"""SmolLM2 as a Hugging Face folder, made from its GGUF, and gradients of its keys and values.

    python expected_smollm2.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --data ../shared/data --hf OUT_FOLDER --npz OUT.npz

Dequantizes with the gguf package, un-permutes the rows of Q and K, and checks the result against the reference logits
and the NLL of the first window before it writes anything:
- OUT_FOLDER: config.json, model.safetensors (fp32), tokenizer.json (the exact one of the data folder);
- OUT.npz: ids, and per layer key_LL, value_LL, key_grad_LL, value_grad_LL [tokens, kv_heads, head_dim] fp32 for the
  first --tokens ids of the WikiText-2 test text (pre-RoPE, gradient of the mean next-token cross-entropy);
- tests/golden/smollm2_grads.json: of each tensor the norm and 64 seeded elements (flat indices and values).

The model runs in fp32, but the cross-entropy on the fp32 logits is taken in fp64: torch's fp32 log-softmax over 49152
classes is off by 5e-6, always to the same side, which shifts every gradient by up to 5e-4 of its norm. With the
fp64 loss the gradients are within 1e-5 of a run wholly in fp64. --loss fp32 gives the usual ones; how far the two
differ is stored as max_relative_deviation_fp32_loss.
"""

import argparse
import json
import pathlib
import shutil

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import make_tiny
import tokenizer_files as tok

SAMPLE = 64


def read_model(path):
    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields[name].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": field("llama.rope.freq_base"),
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }
    hf_names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for layer in range(config["num_hidden_layers"]):
        for part, short in make_tiny.GGUF_NAMES.items():
            hf_names[f"blk.{layer}.{short}.weight"] = f"model.layers.{layer}.{part}.weight"
    weights = {}
    for tensor in reader.tensors:
        value = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        for side, count in (("attn_q.", heads), ("attn_k.", kv_heads)):
            if side in tensor.name:
                value = value.reshape(count, -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        weights[hf_names[tensor.name]] = torch.from_numpy(np.array(value, np.float32, order="C"))
    return config, weights


def build(config, weights):
    model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="sdpa")).float().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.requires_grad_(False)


def check(model, reference):
    prompts = json.loads((reference / "prompt_logits.json").read_text())
    with torch.no_grad():
        worst = 0.0
        for entry in prompts:
            logits = model(torch.tensor([entry["ids"]])).logits[0, -1]
            top = logits.topk(5)
            assert top.indices.tolist() == entry["top5_ids"], entry["prompt"]
            pairs = zip(top.values.tolist() + logits[:8].tolist(), entry["top5_logits"] + entry["first8_logits_lastpos"])
            worst = max(worst, max(abs(ours - theirs) for ours, theirs in pairs))
        assert worst < 2e-4, worst
        ids = torch.tensor([json.loads((reference / "wikitext2_first4096_ids.json").read_text())["first4096"][:2048]])
        nll = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]).item()
        expected = json.loads((reference / "perplexity_fp32.json").read_text())["s2048"]["nll"][0]
        assert abs(nll - expected) < 2e-5, (nll, expected)
    print(f"logits within {worst:.2g} of the reference; NLL of window 0: {nll:.6f} (reference {expected:.6f})")


def gradients(model, ids, loss_dtype):
    kept, hooks = {}, []

    def keep(key, first):
        def hook(module, inputs, output):
            if first:  # weights are frozen: the graph starts at the first layer's keys and values
                output.requires_grad_(True)
            output.retain_grad()
            kept[key] = output

        return hook

    for layer, block in enumerate(model.model.layers):
        for side, module in (("key", block.self_attn.k_proj), ("value", block.self_attn.v_proj)):
            hooks.append(module.register_forward_hook(keep(f"{side}_{layer:02}", layer == 0)))
    batch = torch.tensor([ids])
    logits = model(batch, use_cache=False).logits[0, :-1].to(loss_dtype)
    loss = torch.nn.functional.cross_entropy(logits, batch[0, 1:])
    loss.backward()
    for hook in hooks:
        hook.remove()
    shape = (len(ids), model.config.num_key_value_heads, -1)
    arrays = {}
    for key, tensor in kept.items():
        side, layer = key.split("_")
        arrays[key] = tensor.detach()[0].reshape(shape).numpy()
        arrays[f"{side}_grad_{layer}"] = tensor.grad[0].reshape(shape).numpy()
    return loss.item(), arrays


def summary(arrays, layers):
    rng = np.random.Generator(np.random.PCG64(2024))
    result = []
    for layer in range(layers):
        entry = {}
        for side in ("key_grad", "value_grad", "key", "value"):
            flat = arrays[f"{side}_{layer:02}"].reshape(-1)
            at = np.sort(rng.choice(flat.size, SAMPLE, replace=False))
            entry[side] = {"norm": float(f"{np.linalg.norm(flat.astype(np.float64)):.9g}"), "indices": at.tolist(),
                           "values": [float(f"{value:.7g}") for value in flat[at]]}
        result.append(entry)
    return result


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, default=root / "../shared/data")
    parser.add_argument("--hf", type=pathlib.Path, required=True, help="folder to write the model to")
    parser.add_argument("--npz", type=pathlib.Path, required=True, help="file for the full gradients")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loss", choices=["fp32", "fp64"], default="fp64")
    parser.add_argument("--golden", type=pathlib.Path, default=root / "tests/golden/smollm2_grads.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    config, weights = read_model(args.gguf)
    model = build(config, weights)
    reference = args.data / "reference"
    check(model, reference)

    args.hf.mkdir(parents=True, exist_ok=True)
    tok.write_json(args.hf / "config.json", config, 1)
    save_file(weights, args.hf / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(reference / "tokenizer_smollm_exact.json", args.hf / "tokenizer.json")

    ids = json.loads((reference / "wikitext2_first4096_ids.json").read_text())["first4096"][: args.tokens]
    loss, arrays = gradients(model, ids, torch.float32 if args.loss == "fp32" else torch.float64)
    _, usual = gradients(model, ids, torch.float32)
    deviation = max(np.linalg.norm(usual[key] - value) / np.linalg.norm(value) for key, value in arrays.items())
    np.savez(args.npz, ids=np.array(ids, np.int32), **arrays)
    document = {"tokens": args.tokens, "kv_heads": config["num_key_value_heads"],
                "head_dim": config["hidden_size"] // config["num_attention_heads"], "loss": float(f"{loss:.9g}"),
                "max_relative_deviation_fp32_loss": float(f"{deviation:.2g}"),
                "per_layer": summary(arrays, config["num_hidden_layers"])}
    tok.write_json(args.golden, document)
    print(f"loss of the first {args.tokens} tokens: {loss:.6f}; all-fp32 gradients differ by up to {deviation:.2g}")


if __name__ == "__main__":
    main()
