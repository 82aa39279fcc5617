"""Ids that Hugging Face's `tokenizers` gives for settings that none of the fixtures of make_tokenizers.py has.

    python make_tokenizer_variants.py [--out tests/golden/tokenizers/variants.json]

[{"name", "base", "replace": {JSON pointer: value}, "cases": [{"text", "ids"}]}]: the tokenizer.json of `base` with some of
its parts replaced.
"""

import argparse
import json
import pathlib

import numpy as np
import tokenizers

import tokenizer_files as tok

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/tokenizers"
MARK = "\u2581"


def metaspace(**fields):
    return {"type": "Metaspace", "replacement": MARK, **fields}


def added(token_id, content, **flags):
    return {**tok.added_token(token_id, content, False), **flags}


def split(pattern, behavior, invert=False):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}, tok.byte_level(False)]}


FLAGS = [added(559, "<left>", lstrip=True), added(560, "<right>", rstrip=True), added(561, "word", single_word=True),
         added(562, "<both>", lstrip=True, rstrip=True, special=True), added(563, "<norm>", normalized=True),
         added(564, "<no", normalized=True), added(565, "<left>er")]
SPECIALS = [tok.added_token(0, "<|endoftext|>"), tok.added_token(1, "<|im_start|>"), tok.added_token(2, "<|im_end|>")]
SP_SPECIALS = [tok.added_token(0, "<unk>"), tok.added_token(1, "<s>"), tok.added_token(2, "</s>")]
NO_NORMALIZER = {"/normalizer": None}


def variants():
    yield "flags of added tokens", "smollm", {"/added_tokens": SPECIALS + FLAGS}
    yield "flags of added tokens, NFC", "qwen2", {
        "/added_tokens": SPECIALS + FLAGS + [added(566, "e\u0301x", normalized=True), added(567, "e\u0301y", normalized=False)]}
    yield "runs of digits", "smollm", {"/pre_tokenizer/pretokenizers/0/individual_digits": False}
    yield "split off a string", "gpt2", {"/pre_tokenizer": split({"String": "e."}, "Isolated")}
    yield "split keeps what matches", "gpt2", {"/pre_tokenizer": split({"Regex": r"[^\s\p{L}]+|\p{L}+"}, "Removed", True)}
    yield "split removes what matches", "gpt2", {"/pre_tokenizer": split({"Regex": r"\s+|[\d]"}, "Removed")}
    yield "a pattern that can be empty", "gpt2", {"/pre_tokenizer": split({"Regex": r"\p{L}*"}, "Isolated")}
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield f"Metaspace {scheme}, split {cut}", "sentencepiece", {
                **NO_NORMALIZER, "/pre_tokenizer": metaspace(prepend_scheme=scheme, split=cut)}
    yield "Metaspace of old files", "sentencepiece", {**NO_NORMALIZER, "/pre_tokenizer": metaspace(add_prefix_space=True)}
    yield "normalized special tokens", "sentencepiece", {
        "/added_tokens": [{**token, "normalized": True} for token in SP_SPECIALS] + [added(600, "x y", normalized=True)]}
    for fuse in (True, False):
        yield f"unknown characters, fused {fuse}", "sentencepiece", {"/model/byte_fallback": False, "/model/fuse_unk": fuse}
    yield "unknown characters are left out", "sentencepiece", {"/model/byte_fallback": False, "/model/unk_token": None}


def replaced(document, changes):
    for pointer, value in changes.items():
        *parents, last = pointer.split("/")[1:]
        part = document
        for name in parents:
            part = part[int(name)] if isinstance(part, list) else part[name]
        part[last] = value
    return document


def texts():
    fixed = ["", " ", "a", " a", "  a", "a b", "<s>", "<s>a", "a<s>b", " <s> a </s>", "a <left> b", "a  <right>  b", "a\n<both>\u3000\tb",
             "<both> <both>", "word", "a word.", "words", "sword", "_word", "word word", "é word", "wordé", "word\u0301", "<left>er", "<left>e",
             "<norm>", "<norm", "<nor<norm>", "e\u0301x", "éx", "e\u0301y", "éy", "x y", "a x y b", "12 345", "e.e.", "日本語 xyz 😀😀", "Ω≈ç", "\u2581a",
             "a\u2581b", "<unk><unk>", "\u00a0<both>\u200b"]
    rng = np.random.Generator(np.random.PCG64(7))
    parts = ["a", "the", " ", "  ", "\n", "word", "<left>", "<right>", "<both>", "<norm>", "<no", "<s>", "</s>", "12", "é", "e\u0301x", "日", "😀", ".",
             "e.", MARK, "<|im_end|>", "x y", "\u3000"]
    return list(dict.fromkeys(fixed + ["".join(rng.choice(parts, rng.integers(2, 10))) for _ in range(60)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES / "variants.json")
    out = parser.parse_args().out
    lines = []
    for name, base, changes in variants():
        document = replaced(json.loads((FIXTURES / f"{base}.tokenizer.json").read_text("utf-8")), changes)
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
        cases = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in texts()]
        lines.append(json.dumps({"name": name, "base": base, "replace": changes, "cases": cases}, separators=(",", ":")))
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
