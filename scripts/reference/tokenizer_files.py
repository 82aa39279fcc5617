"""Pieces shared by make_tiny.py and make_tokenizers.py: tokenizer.json documents and the tokenizer fields of a GGUF.

The regular expressions are the published ones of each tokenizer family. Token types are GGUF's:
1 normal, 2 unknown, 3 control, 4 user defined, 6 byte.
"""

import json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def regex_split(regex):
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level(False)]}


# kind -> (pre_tokenizer of tokenizer.json, normalizer, tokenizer.ggml.pre, ignore_merges)
BYTE_LEVEL_KINDS = {
    "gpt2": (byte_level(True), None, "gpt-2", False),
    "smollm": (
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)]},
        None,
        "smollm",
        False,
    ),
    "llama3": (regex_split(LLAMA3_REGEX), None, "llama-bpe", True),
    "qwen2": (regex_split(QWEN2_REGEX), {"type": "NFC"}, "qwen2", False),
}


def byte_alphabet():
    """The 256 printable stand-ins of byte-level BPE, indexed by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(0x100 + len(table) - len(printable))
    return [table[byte] for byte in range(256)]


def added_token(token_id, content, special=True):
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def bos_template(bos):
    """Post-processor that puts `bos` = (id, text) before the ids, as Llama's tokenizers do."""
    token_id, text = bos
    begin = {"SpecialToken": {"id": text, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            begin,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": text, "type_id": 1}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]}},
    }


def byte_level_json(kind, vocab, merges, added, bos=None):
    """tokenizer.json of a byte-level BPE. vocab: tokens by id; merges: pairs; added: (id, text, special)."""
    pre_tokenizer, normalizer, _, ignore_merges = BYTE_LEVEL_KINDS[kind]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(*entry) for entry in added],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": bos_template(bos) if bos else None,
        "decoder": byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": {token: token_id for token_id, token in enumerate(vocab)},
            "merges": [list(pair) for pair in merges],
        },
    }


def sentencepiece_merges(pieces, scores):
    """Merge list equal to SentencePiece BPE's order: highest score first, all splits of a piece together.

    Only normal pieces of two or more characters are made by merging.
    """
    ids = {piece: piece_id for piece_id, (piece, kind) in enumerate(pieces) if kind == NORMAL}
    merges = []
    for piece in sorted(ids, key=lambda text: -scores[ids[text]]):
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        splits = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        merges += sorted(splits, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def sentencepiece_json(pieces, scores, bos):
    """tokenizer.json in the style of Llama 2. pieces: (text, token type) by id, the first three unknown, bos, eos."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(token_id, text, kind != USER_DEFINED)
            for token_id, (text, kind) in enumerate(pieces)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": bos_template(bos),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {text: token_id for token_id, (text, _) in enumerate(pieces)},
            "merges": [list(pair) for pair in sentencepiece_merges(pieces, scores)],
        },
    }


def write_json(path, document, indent=None):
    separators = (",", ":") if indent is None else None
    path.write_text(json.dumps(document, ensure_ascii=False, indent=indent, separators=separators) + "\n", "utf-8")


def add_byte_level_fields(writer, kind, vocab, types, merges, bos, eos, add_bos):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(BYTE_LEVEL_KINDS[kind][2])
    writer.add_token_list(vocab)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(False)


def gemma_json(pieces, scores, bos):
    """tokenizer.json in the style of Gemma: no blank in front. Runs of blanks are added tokens as SentencePiece writes
    them, which no text holds; merges that come first make them."""
    document = sentencepiece_json(pieces, scores, bos)
    document["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    document["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                 "invert": False}
    document["decoder"]["decoders"].pop()
    longest = max(len(text) for text, kind in pieces if kind == USER_DEFINED and not text.strip("\u2581"))
    runs = [["\u2581" * cut, "\u2581" * (length - cut)] for length in range(2, longest + 1) for cut in range(1, length)]
    document["model"]["merges"] = runs + document["model"]["merges"]
    return document


def add_sentencepiece_fields(writer, pieces, scores, bos, eos, unknown=0, prefix=True):
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    # llama.cpp's converter writes blanks in user-defined pieces.
    writer.add_token_list([text.replace("\u2581", " ") if kind == USER_DEFINED else text for text, kind in pieces])
    writer.add_token_scores(scores)
    writer.add_token_types([kind for _, kind in pieces])
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(unknown)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(prefix)
