"""Writes the tiny models of the tests: the same weights as a Hugging Face folder and as a GGUF.

    python make_tiny.py [--out tests/data/tiny] [--dequant tests/golden/dequant]

All numbers come from seeded numpy. GGUF tensors are F32, with the rows of Q and K (weights and biases) interleaved
as llama.cpp's converter does for the llama architecture alone; Hugging Face's order has RoPE pairs j and j +
head_dim/2. Norm weights of gemma3 are w in the folder and w + 1 in the GGUF.
With --dequant also one small blob per GGUF tensor type and the floats that the gguf package decodes from it.
"""

import argparse
import json
import pathlib
import zlib

import gguf
import numpy as np
from safetensors.numpy import save_file

import tokenizer_files as tok

VOCAB = 320
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = """Ġ t|h e|Ġt he|i n|Ġ a|r e|o n|e r|a n|Ġ s|Ġ o|e n|Ġ c|o r|i s|a t|e s|Ġ w|n d|Ġ b|Ġ f|i t|o u|Ġ p|a r|a l|Ġ h|e d|
Ġ m|in g|Ġ d|i c|Ġo f|Ġa nd|Ġ in|Ġ l|Ġt o|l e|ou r|a s|Ġ n|i on|s t|Ġ g|Ġ T|l l|v e|Ġ I|Ġ y|Ġ A|Ġ Ġ|ĠĠ ĠĠ|Ċ Ċ|' s|' t|
Ġ 1|0 0|Ġ re|Ã ©|ð Ł|ðŁ ĺ""".replace("\n", "").split("|")
# Pieces of the SentencePiece-style vocabulary beyond <unk>, <s>, </s> and 256 bytes; single characters come last.
PIECES = """▁t he ▁the in ▁a er on re an ▁s at en is or ed ing ▁of ▁and ▁in ▁to ll ▁▁ é
▁ e t a o i n s h r d l u c m f w g y p b v k , . ' T I A 1 0 2 - x j ( )""".split()


def variant(name, **changes):
    base = dict(
        name=name, model_type="llama", hidden=32, heads=4, kv_heads=4, head_dim=8, ffn=64, layers=2, tied=True,
        bias=False, theta=10000.0, eps=1e-5, rope_factor=None, rope_style="scaling", store="F32", shards=1,
        tokenizer="smollm", window=None, nth_sees_all=None, query_scalar=None,
    )
    return {**base, **changes}


VARIANTS = [
    variant("mha-tied", shards=2),
    variant("gqa-untied", kv_heads=2, ffn=56, layers=3, tied=False, theta=1e6, rope_factor=2.0, store="BF16",
            tokenizer="llama3", eps=1e-6),
    variant("gqa-bias", kv_heads=2, ffn=40, bias=True, rope_style="parameters", theta=50000.0,
            tokenizer="gpt2"),
    variant("mqa", kv_heads=1, tokenizer="qwen2"),
    variant("headdim", hidden=36, heads=3, kv_heads=3, head_dim=16, ffn=32, store="F16"),
    variant("qwen2", model_type="qwen2", kv_heads=2, ffn=40, bias=True, theta=1e6, eps=1e-6, store="BF16",
            tokenizer="qwen2"),
    variant("qwen3", model_type="qwen3", hidden=24, kv_heads=2, head_dim=16, ffn=40, tied=False, theta=1e6, eps=1e-6,
            tokenizer="qwen2"),
    # query_scalar is head_dim, as a GGUF of 7 layers implies; the second variant's differs, so it is a folder alone.
    variant("gemma3", model_type="gemma3_text", hidden=24, kv_heads=2, head_dim=16, ffn=40, layers=7, theta=1e6, eps=1e-6,
            store="BF16", rope_factor=4.0, window=8, nth_sees_all=6, query_scalar=16, tokenizer="gemma"),
    variant("gemma3-types", model_type="gemma3_text", hidden=24, kv_heads=1, head_dim=16, ffn=40, layers=3, theta=1e5,
            eps=1e-6, rope_style="parameters", window=5, nth_sees_all=2, query_scalar=10, tokenizer="gemma"),
    variant("mistral", model_type="mistral", kv_heads=2, ffn=48, tied=False, store="F16", tokenizer="sentencepiece"),
]


def stored_precision(values, store):
    """Rounds to what the folder's dtype holds, so that both forms of a model carry the same weights."""
    if store == "F16":
        return values.astype(np.float16).astype(np.float32)
    if store == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    return values.astype(np.float32)


def make_weights(v):
    """Hugging Face names and order. Key and value channels differ in scale, as those of real models do."""
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(v["name"].encode())))
    hidden, ffn = v["hidden"], v["ffn"]
    q_dim, kv_dim = v["heads"] * v["head_dim"], v["kv_heads"] * v["head_dim"]

    def normal(shape, std):
        return rng.standard_normal(shape) * std

    def norm(width=hidden, more=0.0):
        return (0.0 if v["model_type"] == "gemma3_text" else 1.0) + more + normal(width, 0.2)

    qk_norm, gemma = v["model_type"] in ("qwen3", "gemma3_text"), v["model_type"] == "gemma3_text"
    weights = {"model.embed_tokens.weight": normal((VOCAB, hidden), 0.35)}
    for layer in range(v["layers"]):
        at = f"model.layers.{layer}."
        channel_scale = np.exp(normal((kv_dim, 1), 0.6))
        weights[at + "input_layernorm.weight"] = norm()
        weights[at + "self_attn.q_proj.weight"] = normal((q_dim, hidden), 2.0 / np.sqrt(hidden))
        weights[at + "self_attn.k_proj.weight"] = normal((kv_dim, hidden), 1.0 / np.sqrt(hidden)) * channel_scale
        weights[at + "self_attn.v_proj.weight"] = normal((kv_dim, hidden), 1.0 / np.sqrt(hidden))
        weights[at + "self_attn.o_proj.weight"] = normal((hidden, q_dim), 1.0 / np.sqrt(q_dim))
        if v["bias"]:
            for side, size, std in (("q", q_dim, 0.5), ("k", kv_dim, 1.0), ("v", kv_dim, 0.3), ("o", hidden, 0.1)):
                if side == "o" and v["model_type"] == "qwen2":
                    continue
                weights[at + f"self_attn.{side}_proj.bias"] = normal(size, std)
        if qk_norm:
            weights[at + "self_attn.q_norm.weight"] = norm(v["head_dim"], 0.5)
            weights[at + "self_attn.k_norm.weight"] = norm(v["head_dim"], 0.5)
        weights[at + "post_attention_layernorm.weight"] = norm()
        if gemma:
            weights[at + "pre_feedforward_layernorm.weight"] = norm()
            weights[at + "post_feedforward_layernorm.weight"] = norm()
        weights[at + "mlp.gate_proj.weight"] = normal((ffn, hidden), 1.0 / np.sqrt(hidden))
        weights[at + "mlp.up_proj.weight"] = normal((ffn, hidden), 1.0 / np.sqrt(hidden))
        weights[at + "mlp.down_proj.weight"] = normal((hidden, ffn), 1.0 / np.sqrt(ffn))
    weights["model.norm.weight"] = norm()
    if not v["tied"]:
        weights["lm_head.weight"] = normal((VOCAB, hidden), 0.4)
    return {name: stored_precision(value, v["store"]) for name, value in weights.items()}


def bos_and_eos(v):
    return {"sentencepiece": (1, 2), "llama3": (1, 2), "gemma": (2, 1)}.get(v["tokenizer"], (0, 0))


CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}


def hf_config(v):
    bos, eos = bos_and_eos(v)
    config = {
        "architectures": [CLASSES[v["model_type"]]],
        "model_type": v["model_type"],
        "vocab_size": VOCAB,
        "hidden_size": v["hidden"],
        "intermediate_size": v["ffn"],
        "num_hidden_layers": v["layers"],
        "num_attention_heads": v["heads"],
        "num_key_value_heads": v["kv_heads"],
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": v["eps"],
        "tie_word_embeddings": v["tied"],
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[v["store"]],
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    if v["head_dim"] * v["heads"] != v["hidden"]:
        config["head_dim"] = v["head_dim"]
    if v["model_type"] == "mistral":
        config["sliding_window"] = None
    elif v["model_type"] in ("qwen2", "qwen3"):  # as their files are: a window that is not used
        config.update(use_sliding_window=False, sliding_window=4096, max_window_layers=1)
    elif v["model_type"] == "gemma3_text":
        del config["hidden_act"]
        config.update(hidden_activation="gelu_pytorch_tanh", sliding_window=v["window"], rope_local_base_freq=10000.0,
                      query_pre_attn_scalar=v["query_scalar"], attention_bias=False)
        if v["rope_style"] == "parameters":
            config["layer_types"] = ["full_attention" if (layer + 1) % v["nth_sees_all"] == 0 else "sliding_attention"
                                     for layer in range(v["layers"])]
            config["rope_parameters"] = {
                "full_attention": {"rope_type": "default", "rope_theta": v["theta"]},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
            return config
    else:
        config["attention_bias"] = v["bias"]
        config["mlp_bias"] = False
    if v["rope_style"] == "parameters":  # how transformers 5 writes it
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": v["theta"]}
    else:
        config["rope_theta"] = v["theta"]
        word = "rope_type" if v["model_type"] == "gemma3_text" else "type"
        config["rope_scaling"] = {word: "linear", "factor": v["rope_factor"]} if v["rope_factor"] else None
    return config


def byte_level_vocab():
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    vocab = SPECIALS + tok.byte_alphabet() + ["".join(pair) for pair in merges]
    assert len(vocab) == VOCAB and len(set(vocab)) == VOCAB, len(vocab)
    types = [tok.CONTROL] * len(SPECIALS) + [tok.NORMAL] * (VOCAB - len(SPECIALS))
    return vocab, types, merges


def sentencepiece_vocab():
    pieces = [("<unk>", tok.UNKNOWN), ("<s>", tok.CONTROL), ("</s>", tok.CONTROL)]
    pieces += [(f"<0x{byte:02X}>", tok.BYTE) for byte in range(256)]
    normal = PIECES + [f"<extra_{i}>" for i in range(VOCAB - len(pieces) - len(PIECES))]
    assert len(set(normal)) == len(normal)
    pieces += [(text, tok.NORMAL) for text in normal]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(normal))]
    assert len(pieces) == VOCAB
    return pieces, scores


def gemma_vocab():
    pieces, scores = sentencepiece_vocab()
    runs = ["\n", "\n\n", "\u2581" * 2, "\u2581" * 3, "\u2581" * 4]
    head = [("<pad>", tok.CONTROL), ("<eos>", tok.CONTROL), ("<bos>", tok.CONTROL), ("<unk>", tok.UNKNOWN)]
    head += [(run, tok.USER_DEFINED) for run in runs]
    kept = [(text, score) for (text, kind), score in zip(pieces, scores) if kind == tok.NORMAL and text not in runs]
    kept = kept[: VOCAB - len(head) - 256]
    pieces = head + [piece for piece in pieces if piece[1] == tok.BYTE] + [(text, tok.NORMAL) for text, _ in kept]
    assert len(pieces) == VOCAB
    return pieces, [0.0] * (len(head) + 256) + [score for _, score in kept]


def write_tokenizer(v, folder):
    if v["tokenizer"] == "gemma":
        document = tok.gemma_json(*gemma_vocab(), (2, "<bos>"))
        config = {"add_bos_token": True, "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    elif v["tokenizer"] == "sentencepiece":
        pieces, scores = sentencepiece_vocab()
        document = tok.sentencepiece_json(pieces, scores, (1, "<s>"))
        config = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    else:
        vocab, _, merges = byte_level_vocab()
        bos = (1, SPECIALS[1]) if v["tokenizer"] == "llama3" else None
        added = [(token_id, text, True) for token_id, text in enumerate(SPECIALS)]
        document = tok.byte_level_json(v["tokenizer"], vocab, merges, added, bos)
        config = {"add_bos_token": bos is not None, "bos_token": SPECIALS[1] if bos else SPECIALS[0],
                  "eos_token": SPECIALS[2] if bos else SPECIALS[0]}
    tok.write_json(folder / "tokenizer.json", document)
    tok.write_json(folder / "tokenizer_config.json", {**config, "tokenizer_class": "PreTrainedTokenizerFast"}, 1)


def save_safetensors(tensors, store, path):
    if store == "BF16":  # numpy has no bfloat16: write the container by hand
        header, body = {"__metadata__": {"format": "pt"}}, b""
        for name, value in sorted(tensors.items()):
            data = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
            header[name] = {"dtype": "BF16", "shape": list(value.shape),
                            "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + body)
        return
    dtype = np.float16 if store == "F16" else np.float32
    save_file({name: value.astype(dtype) for name, value in tensors.items()}, path, metadata={"format": "pt"})


def write_hf(v, weights, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tok.write_json(folder / "config.json", hf_config(v), 1)
    write_tokenizer(v, folder)
    if v["shards"] == 1:
        save_safetensors(weights, v["store"], folder / "model.safetensors")
        return
    names, count = list(weights), v["shards"]
    weight_map, total = {}, 0
    for shard in range(count):
        part = names[shard * len(names) // count : (shard + 1) * len(names) // count]
        file = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        save_safetensors({name: weights[name] for name in part}, v["store"], folder / file)
        weight_map.update({name: file for name in part})
        total += sum(weights[name].nbytes for name in part)
    tok.write_json(folder / "model.safetensors.index.json",
                   {"metadata": {"total_size": total}, "weight_map": weight_map}, 1)


def interleave_rope(value, heads):
    """Row order of llama.cpp's llama architecture: the two halves of every head interleaved."""
    return value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}
GGUF_NAMES = {
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
GGUF_OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
              "lm_head.weight": "output.weight"}


def gguf_name(name, gemma=False):
    if name in GGUF_OUTER:
        return GGUF_OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{({**GGUF_NAMES, **GEMMA_NAMES} if gemma else GGUF_NAMES)[part]}.{kind}"


def gguf_tensor(v, name, value):
    """Name and content as llama.cpp's converter writes them."""
    gemma = v["model_type"] == "gemma3_text"
    if v["model_type"] in ("llama", "mistral"):
        for side, heads in (("q", v["heads"]), ("k", v["kv_heads"])):
            if f".{side}_proj." in name:
                value = interleave_rope(value, heads)
    if gemma and "norm.weight" in name:
        value = value + np.float32(1)
    return gguf_name(name, gemma), np.ascontiguousarray(value)


def has_gguf(v):
    """A GGUF of Gemma 3 has no word for another query_pre_attn_scalar than head_dim, nor for another pattern."""
    return v["model_type"] != "gemma3_text" or v["query_scalar"] == v["head_dim"]


def write_gguf(v, weights, path):
    kind = {"mistral": "llama", "gemma3_text": "gemma3"}.get(v["model_type"], v["model_type"])
    writer = gguf.GGUFWriter(path, kind)
    writer.add_name("kvq tiny " + v["name"])
    writer.add_block_count(v["layers"])
    writer.add_context_length(2048)
    writer.add_embedding_length(v["hidden"])
    writer.add_feed_forward_length(v["ffn"])
    writer.add_head_count(v["heads"])
    writer.add_head_count_kv(v["kv_heads"])
    writer.add_rope_freq_base(v["theta"])
    writer.add_layer_norm_rms_eps(v["eps"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(VOCAB)
    if kind == "llama":
        writer.add_rope_dimension_count(v["head_dim"])
    if v["window"]:
        writer.add_sliding_window(v["window"])
    if v["head_dim"] * v["heads"] != v["hidden"]:
        writer.add_key_length(v["head_dim"])
        writer.add_value_length(v["head_dim"])
    if v["rope_factor"]:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(v["rope_factor"])
    if v["tokenizer"] == "sentencepiece":
        tok.add_sentencepiece_fields(writer, *sentencepiece_vocab(), bos=1, eos=2)
    elif v["tokenizer"] == "gemma":
        tok.add_sentencepiece_fields(writer, *gemma_vocab(), bos=2, eos=1, unknown=3, prefix=False)
    else:
        add_bos = v["tokenizer"] == "llama3"
        bos, eos = (1, 2) if add_bos else (0, 0)
        vocab, types, merges = byte_level_vocab()
        tok.add_byte_level_fields(writer, v["tokenizer"], vocab, types, merges, bos, eos, add_bos)
    for name, value in weights.items():
        writer.add_tensor(*gguf_tensor(v, name, value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# type -> byte offsets of the fp16 scales in a block; the other bytes may take any value.
SCALES_AT = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
}


def write_dequant(folder):
    """<TYPE>.bin: raw blocks; <TYPE>.f32: little-endian floats; index.json: type number, block size, counts."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.PCG64(20240131))
    index = []
    edge_scales = np.array([0.0, 6e-8, -0.03125, 1.0, 100.0], np.float16)  # 6e-8 is subnormal
    for name in ["F32", "F16", "BF16", *SCALES_AT]:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if name == "F32":
            raw = rng.standard_normal(256).astype("<f4").view(np.uint8)
        elif name == "F16":
            values = np.concatenate([rng.standard_normal(250), [0.0, -0.0, 65504.0, -65504.0, 6e-8, -6.1e-5]])
            raw = values.astype("<f2").view(np.uint8)
        elif name == "BF16":
            bits = rng.integers(0, 0x10000, 256).astype("<u2")
            bits[(bits & 0x7F80) == 0x7F80] &= 0xBFFF  # no NaN, no Inf
            raw = bits.view(np.uint8)
        else:
            blocks = 16 if block == 32 else 6
            raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
            for at in SCALES_AT[name]:
                scales = (rng.standard_normal(blocks) * 0.02).astype(np.float16)
                scales[: len(edge_scales)] = np.roll(edge_scales, at)
                raw[:, at : at + 2] = scales.astype("<f2")[:, None].view(np.uint8)
            raw = raw.reshape(-1)
        floats = gguf.quants.dequantize(raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8)), kind)
        floats = np.asarray(floats, "<f4").reshape(-1)
        assert np.isfinite(floats).all() and floats.size == raw.size // size * block
        (folder / f"{name}.bin").write_bytes(raw.tobytes())
        (folder / f"{name}.f32").write_bytes(floats.tobytes())
        index.append({"type": name, "ggml_type": int(kind), "block_values": block, "block_bytes": size,
                      "bytes": int(raw.size), "values": int(floats.size)})
    tok.write_json(folder / "index.json", index, 1)


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/tiny")
    parser.add_argument("--dequant", type=pathlib.Path, default=root / "tests/golden/dequant")
    args = parser.parse_args()
    for v in VARIANTS:
        weights = make_weights(v)
        write_hf(v, weights, args.out / v["name"] / "hf")
        if has_gguf(v):
            write_gguf(v, weights, args.out / v["name"] / "model.gguf")
    write_dequant(args.dequant)


if __name__ == "__main__":
    main()
