"""Two small packed pages, bit by bit as lib/artifacts/FORMAT.md says: tests/golden/packed_pages.json.

    python packed_pages.py

2 kv heads of 4 channels, 20 tokens, 1 sink, exponent -1. The tokens follow from integer formulas that
tests/cache/golden_page_test.cpp repeats; every number is exact in fp32. Hex lines of 32 bytes: the page, the overflow
blocks of its keys and of its values with every link replaced by the place of its block in its chain, the exact keys, the
exact values.
"""

import json
import pathlib

import numpy as np

F = np.float32
HEADS, DIM, TOKENS, SINKS, EXPONENT, PAGE = 2, 4, 20, 1, -1, 64
WIDTH = HEADS * DIM
NOWHERE = 0xFFFFFFFF


def tensor(side):
    """[tokens, width] fp32: sixteenths within [-1, 1]; every now and then a value twice as large."""
    rows = []
    for t in range(TOKENS):
        row = []
        for c in range(WIDTH):
            h = (t * 7919 + c * 104729 + side * 1299709 + t * t * 31 + c * c * 17) % 1009
            value = (h % 33 - 16) / 16
            row.append(value * 2 if h % 3 == 0 else value)
        rows.append(row)
    return np.array(rows, dtype=F)


def half(x):
    """fp16 bits of x * 2^-exponent."""
    return int(np.float16(F(x) * F(2.0**-EXPONENT)).view(np.uint16))


def from_half(bits):
    return F(np.uint16(bits).view(np.float16)) * F(2.0**EXPONENT)


def levels(bits):
    return [F(-1 + 2 * level / (2**bits - 1)) for level in range(2**bits)]


def code_of(x_hat, book):
    """Nearest level; between two, halfway is the lower one's."""
    code = 0
    while code + 1 < len(book) and F(F(0.5) * book[code] + F(0.5) * book[code + 1]) < x_hat:
        code += 1
    return code


class Side:
    """What one side puts into a page."""

    def __init__(self, bits, per_token):
        self.bits, self.per_token = bits, per_token
        self.bit_rows = [[0] * (PAGE * bits) for _ in range(WIDTH)]
        self.ranges = [(0, 0)] * PAGE
        self.entries = []  # (value, channel)
        self.counts = [0] * PAGE

    def put(self, token, x):
        zero = scale = None
        book = levels(self.bits)
        if self.per_token:  # 10 % of 8 values: the largest and the smallest stay exact
            low, high = int(np.argmin(x)), int(np.argmax(x))
            assert low != high
            exact = {low, high}
            rest = [x[c] for c in range(WIDTH) if c not in exact]
            z = half(F(0.5) * min(rest) + F(0.5) * max(rest))
            stored = from_half(z)
            s = half(max(max(rest) - stored, stored - min(rest)))
            self.ranges[token] = (z, s)
            zero, scale = [stored] * WIDTH, [from_half(s)] * WIDTH
        else:
            lower, upper = [F(-1 - c / 16) for c in range(WIDTH)], [F(1 + c / 32) for c in range(WIDTH)]
            exact = {c for c in range(WIDTH) if x[c] < lower[c] or x[c] > upper[c]}
            zero = [F(0.5) * a + F(0.5) * b for a, b in zip(lower, upper)]
            scale = [F(0.5) * b - F(0.5) * a for a, b in zip(lower, upper)]
        for c in range(WIDTH):
            if c in exact:
                self.entries.append((half(x[c]), c))
                self.counts[token] += 1
                continue
            code = code_of(F(F(x[c] - zero[c]) * F(F(1) / scale[c])), book)
            for place in range(self.bits):
                self.bit_rows[c][token * self.bits + place] = code >> place & 1


def bytes_of_bits(bits):
    return bytes(sum(bits[8 * i + place] << place for place in range(8)) for i in range(len(bits) // 8))


def number(value, size):
    return value.to_bytes(size, "little")


def pack(bits, per_token, capacity):
    """bits, per_token, capacity: for keys and values."""
    tokens = [tensor(0), tensor(1)]
    sides = [Side(bits[side], per_token[side]) for side in (0, 1)]
    for side in (0, 1):
        for token in range(SINKS, TOKENS):
            if sides[side].per_token and token == SINKS:
                sides[side].entries += [(0, 0)] * 2 * SINKS  # slots of sinks: two empty entries each
            sides[side].put(token, tokens[side][token])
    room = [PAGE * 2 if side.per_token else capacity[index] for index, side in enumerate(sides)]
    in_page = [side.entries[:room[index]] + [(0, 0)] * (room[index] - len(side.entries)) for index, side in enumerate(sides)]
    page = b"".join(bytes_of_bits(row) for side in sides for row in side.bit_rows)
    page += b"".join(number(n, 2) for side in sides if side.per_token for pair in side.ranges for n in pair)
    page += b"".join(number(value, 2) for entries in in_page for value, _ in entries)
    page += b"".join(number(channel, 1) for entries in in_page for _, channel in entries)
    page += b"".join(number(count, 1) for side in sides if not side.per_token for count in side.counts)
    page += b"\0" * (-len(page) % 4)
    blocks = b""
    for index, side in enumerate(sides):
        if side.per_token:
            continue
        rest = side.entries[room[index]:]
        chain = [rest[i:i + 8] for i in range(0, len(rest), 8)]
        page += number(0 if chain else NOWHERE, 4)
        for place, block in enumerate(chain):
            block = block + [(0, 0)] * (8 - len(block))
            blocks += b"".join(number(value, 2) for value, _ in block) + bytes(channel for _, channel in block)
            blocks += number(place + 1 if place + 1 < len(chain) else NOWHERE, 4)
    page += b"\0" * (-len(page) % 16)
    exact = b"".join(number(half(x), 2) for side in (0, 1) for x in tokens[side][:SINKS].ravel())
    content = page + blocks + exact
    return {"page_bytes": len(page), "content": [content[i:i + 32].hex() for i in range(0, len(content), 32)]}


def main():
    result = {
        "K=int3-10%/V=int4-10%": pack((3, 4), (False, True), (8, 0)),
        "K=int5-10%:key=token/V=int2-10%:value=channel": pack((5, 2), (True, False), (0, 8)),
    }
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/packed_pages.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
