"""Small tokenizers of every supported kind, and the ids that Hugging Face's `tokenizers` gives for tricky strings.

    python make_tokenizers.py [--out tests/golden/tokenizers]

Trained on tokenizer_text.txt (our own). For each kind: <kind>.tokenizer.json, <kind>.gguf (tokenizer fields only, no
tensors) and <kind>.json: {"kind", "bos", "adds_bos", "cases": [{"text", "ids"}]}. The ids hold no begin-of-sequence
token; special tokens written out in the text are recognised. For the SentencePiece kind the ids must also equal those
of the sentencepiece package wherever no special token occurs.

What each kind is there for: gpt2, smollm, llama3, qwen2 differ in the pre-tokenizer; llama3 has a token that no merge
makes (ignore_merges) and adds a begin-of-sequence token; gpt2 has an added token that is not special; qwen2 composes
its text (NFC), which a GGUF can't say and its "pre" field implies; sentencepiece falls back to bytes; gemma puts no
blank in front and has user-defined pieces: line breaks and runs of blanks.
"""

import argparse
import io
import pathlib
import unicodedata

import gguf
import numpy as np
import sentencepiece
import tokenizers

import tokenizer_files as tok

HERE = pathlib.Path(__file__).resolve().parent
VOCAB = 560
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CASES = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", " \n \n ", "\u00a0",
    "a", " a", "  a", "   a", "a ", "a  ", "a   b", "a\n", "a\n\n", "a\r\nb\r\n", "a \n b", "a\tb", "\ta\t", "a\n\n  b", "a \t\n",
    "Hello", "Hello world", " Hello world", "Hello, world!", "Hello   world", "hello\tworld", "hello\n\n\nworld ",
    "The old lighthouse keeper counted the ships.", "don't", "DON'T", "Don't", "I'm we've they'll he'd it's you're",
    "'s 't 're", " 's", "''s", "don’t", "o'clock 'tis '90s", "'LL 'Ve", "it'S", "'ſ",
    "0", "1", "12", "123", "1234", "12345", "1234567890", " 12345", "3.14159", "1,000,000", "a1b2c3", "x12345y", "12 345", "1e-6",
    "٣٤٥ १२३", "²³½Ⅷ", "①②③", "１２３", "+49 30 123456", "2024-02-29T12:34:56Z", "$19.99", "100%",
    "snake_case_name", "camelCaseName", "__init__", "a+b=c", "x->y", "!!!", "...", "…", "?!?!", " !", "! !", "a!b", "#$%&", " #$%&\n", "(a)",
    "http://example.org/path?q=1&r=2#top", "if (x) {\n    return 1;\n}\n", "\tint i = 0;\n\t\ti++;\n", "def f(x):\n    return x\n\n\n",
    "Straße Größe Übermut", "L'été, garçon", "¿Dónde está el niño?", "Смотритель маяка", "θάλασσα", "البحر هادئ ١٢٣", "שומר המגדלור",
    "灯台守は毎朝", "灯塔看守人每天早晨数船。", "カタカナ", "등대지기는", "समुद्र शांत था", "ทะเลสงบ", "中文English混合123テスト",
    "e\u0301", "é", "cafe\u0301 café", "A\u030a Å Å", "o\u0302\u0323", "\u0301a", "ﬁ ﬀ", "각", "각", "ạ̈", "\u1e9b\u0323",
    "😀", " 😀", "😀😃", "👋🏽", "👨‍👩‍👧‍👦", "🇫🇷🇯🇵", "❤️", "❤", "a😀b", "1️⃣", "→ ≤ ∑",
    "\ufeff", "\ufeffa", "a\ufeffb", "\u200b", "a\u200bb", "a\u00adb", "\u2028a\u2029", "a\u3000b", "a\u00a0b", "\u00a0\u00a0a", "\u2003x", "a\x0bb\x0c", "\x85a",
    "\x00", "a\x00b", "\x01\x02", "\x7f", "\ufffd", "\ue000", "\U0010ffff", "𝕳𝖊𝖑𝖑𝖔", "𐍈", "𠜎", "zebra", " zebra", "a zebra ", "zebras", "ǅ ǆ", "ªº", "ʰ", "ꙮ",
    "İstanbul ıi", "ΑΣ ας", "mother-in-law", "e.g. i.e.", "“quoted”", "«x»", "—dash—", "\\n", "\"", "'", "''", "▁", "▁a", "a▁b", "<0x41>", "<0x0A>", "Ġa", "Ċ",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|im_start|>user\nHello<|im_end|>\n", "<|im_start|><|im_start|>", "<|im_start", "<|IM_START|>",
    "<s>", "</s>", "a<s>b", "<s> a</s>", "<unk>", "<unk>a", "<tool>", "a<tool>b", "<tool>1<tool>", "< s>", "a <s> b",
    "a" * 300, " " * 200, "ab" * 150, "0" * 100, "1234567890" * 20, "\n" * 64, " \n" * 40, "é" * 80, "!" * 120, "😀" * 30, "the " * 60, "海" * 50, "e\u0301" * 20,
]


def random_cases(count=60):
    """Seeded mixtures of pieces that meet at every kind of boundary."""
    rng = np.random.Generator(np.random.PCG64(42))
    parts = ["a", "The", "'s", "'", " ", "  ", "\n", "\r\n", "\t", "1", "23", "4567", "é", "e\u0301", "ß", "я", "海", "カ", "ا", "😀",
             "!", "...", "-", "_", "(", "\u00a0", "\u200d", "क", "्", "ing", "don't", ".", ",", "X", "½", "\u3000", "…", "ll", "=", "#"]
    return ["".join(rng.choice(parts, rng.integers(3, 14))) for _ in range(count)]


def all_cases():
    return list(dict.fromkeys(CASES + random_cases()))


def train_byte_level(kind, lines):
    """(tokens by id, merges) of a byte-level BPE: special tokens, 256 bytes, then one token per merge."""
    vocab = SPECIALS + tok.byte_alphabet()
    added = [(token_id, text, True) for token_id, text in enumerate(SPECIALS)]
    blank = tok.byte_level_json(kind, vocab, [], added)
    tokenizer = tokenizers.Tokenizer.from_str(tok.json.dumps(blank))
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCAB - 1, special_tokens=SPECIALS, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(lines, trainer)
    merges = [tuple(pair) for pair in tok.json.loads(tokenizer.to_str())["model"]["merges"]]
    vocab += ["".join(pair) for pair in merges]
    assert len(set(vocab)) == len(vocab)
    return vocab, merges


def save_gguf(path, add_fields):
    writer = gguf.GGUFWriter(path, "llama")
    add_fields(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_cases(folder, kind, tokenizer, bos, adds_bos, compare=None, texts=None):
    cases = []
    for text in texts or all_cases():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if compare:
            compare(text, ids)
        with_bos = tokenizer.encode(text).ids
        assert with_bos == ([bos] if adds_bos else []) + ids
        cases.append({"text": text, "ids": ids})
    lines = ",\n".join(tok.json.dumps(case, separators=(",", ":")) for case in cases)
    head = f'{{"kind":"{kind}","bos":{bos},"adds_bos":{str(adds_bos).lower()},"cases":[\n'
    (folder / f"{kind}.json").write_text(head + lines + "\n]}\n")
    print(f"{kind}: {tokenizer.get_vocab_size()} tokens, {len(cases)} cases, {sum(len(c['ids']) for c in cases)} ids")


def make_byte_level(kind, folder, text):
    vocab, merges = train_byte_level(kind, text)
    types = [tok.CONTROL] * len(SPECIALS) + [tok.NORMAL] * (len(vocab) - len(SPECIALS))
    added = [(token_id, name, True) for token_id, name in enumerate(SPECIALS)]
    model_vocab = list(vocab)
    if kind == "llama3":
        model_vocab.append("Ġzebra")
        types.append(tok.NORMAL)
    elif kind == "gpt2":
        added.append((len(vocab), "<tool>", False))
        types.append(tok.USER_DEFINED)
    bos = 1 if kind == "llama3" else 0
    document = tok.byte_level_json(kind, model_vocab, merges, added, (bos, SPECIALS[bos]) if bos else None)
    path = folder / f"{kind}.tokenizer.json"
    tok.write_json(path, document)
    all_tokens = model_vocab + (["<tool>"] if kind == "gpt2" else [])
    save_gguf(folder / f"{kind}.gguf",
              lambda writer: tok.add_byte_level_fields(writer, kind, all_tokens, types, merges, bos, 2, bos == 1))
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    assert [tokenizer.id_to_token(i) for i in range(len(all_tokens))] == all_tokens
    write_cases(folder, kind, tokenizer, bos, bos == 1)
    for case in all_cases():  # nothing may be lost on the way
        if not any(name in case for name in SPECIALS):
            expected = unicodedata.normalize("NFC", case) if kind == "qwen2" else case
            assert tokenizer.decode(tokenizer.encode(case).ids) == expected, case


def train_sentencepiece(lines, **settings):
    """(pieces with their GGUF token types, scores, processor) with Llama 2's settings, or others."""
    plain = [line for line in lines if line.isascii()]
    lines = lines + 5 * plain  # so that the coverage below leaves rare characters to the byte fallback
    model = io.BytesIO()
    usual = dict(vocab_size=600, allow_whitespace_only_pieces=True, add_dummy_prefix=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        num_threads=1, minloglevel=2, **{**usual, **settings})
    user_defined = settings.get("user_defined_symbols", [])
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces, scores = [], []
    for token_id in range(processor.get_piece_size()):
        kind = tok.NORMAL
        if processor.is_unknown(token_id):
            kind = tok.UNKNOWN
        elif processor.is_control(token_id):
            kind = tok.CONTROL
        elif processor.is_byte(token_id):
            kind = tok.BYTE
        elif processor.id_to_piece(token_id) in user_defined:
            kind = tok.USER_DEFINED
        pieces.append((processor.id_to_piece(token_id), kind))
        scores.append(float(processor.get_score(token_id)))
    return pieces, scores, processor


def make_sentencepiece(folder, lines):
    kind = "sentencepiece"
    pieces, scores, processor = train_sentencepiece(lines)
    path = folder / f"{kind}.tokenizer.json"
    tok.write_json(path, tok.sentencepiece_json(pieces, scores, (1, "<s>")))
    save_gguf(folder / f"{kind}.gguf", lambda writer: tok.add_sentencepiece_fields(writer, pieces, scores, 1, 2))
    tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def compare(text, ids):
        if not any(name in text for name in ("<s>", "</s>", "<unk>")):
            assert processor.encode(text) == ids, (text, processor.encode(text), ids)

    write_cases(folder, kind, tokenizer, 1, True, compare)


def make_gemma(folder, lines):
    kind = "gemma"
    user_defined = ["<tool>"] + ["\n" * run for run in range(1, 6)] + ["\u2581" * run for run in range(2, 9)]
    pieces, scores, processor = train_sentencepiece(
        lines, vocab_size=620, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>",
        eos_piece="<eos>", bos_piece="<bos>", user_defined_symbols=user_defined)
    path = folder / f"{kind}.tokenizer.json"
    tok.write_json(path, tok.gemma_json(pieces, scores, (2, "<bos>")))
    save_gguf(folder / f"{kind}.gguf",
              lambda writer: tok.add_sentencepiece_fields(writer, pieces, scores, 2, 1, unknown=3, prefix=False))
    tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def compare(text, ids):
        if not any(name in text for name in ("<pad>", "<bos>", "<eos>", "<unk>")):
            assert processor.encode(text) == ids, (text, processor.encode(text), ids)

    # Longer runs of blanks than there are pieces for are cut in another way by merges than by SentencePiece.
    write_cases(folder, kind, tokenizer, 2, True, compare, [case for case in all_cases() if " " * 9 not in case])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parents[1] / "tests/golden/tokenizers")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    text = (HERE / "tokenizer_text.txt").read_text("utf-8")
    for kind in tok.BYTE_LEVEL_KINDS:
        make_byte_level(kind, folder, [text])
    make_sentencepiece(folder, text.splitlines())
    make_gemma(folder, text.splitlines())


if __name__ == "__main__":
    main()
