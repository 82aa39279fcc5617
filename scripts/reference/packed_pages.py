"""Small packed pages, bit by bit as lib/artifacts/FORMAT.md says: tests/golden/packed_pages.json.

    python packed_pages.py

2 kv heads of 4 channels, 20 tokens, 1 sink, exponent -1. The tokens follow from integer formulas that
tests/cache/golden_page_test.cpp repeats; every number is exact in fp32. Hex lines of 32 bytes: the page, the overflow
blocks of its keys and of its values with every link replaced by the place of its block in its chain, the exact keys, the
exact values, keys that wait.
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


def levels(count):
    return [F(-1 + 2 * level / (count - 1)) for level in range(count)] if count > 1 else [F(0)]


def rotated(x):
    """x times the 4 x 4 Hadamard matrix / 2, per kv head."""
    hadamard = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=F) / F(2)
    return (x.reshape(HEADS, DIM) @ hadamard).astype(F).ravel()


def code_of(x_hat, book):
    """Nearest level; between two, halfway is the lower one's."""
    code = 0
    while code + 1 < len(book) and F(F(0.5) * book[code] + F(0.5) * book[code + 1]) < x_hat:
        code += 1
    return code


class Side:
    """What one side puts into a page. `bits`: of every channel, or a list. `count`: levels, if no power of two."""

    def __init__(self, bits, per_token, fraction=0.1, count=0, rotate=False):
        self.bits = bits if isinstance(bits, list) else [bits] * WIDTH
        self.per_token, self.fraction, self.count, self.rotate = per_token, fraction, count, rotate
        self.codes = [[0] * PAGE for _ in range(WIDTH)]
        self.ranges = [(0, 0)] * PAGE
        self.entries = []  # (kv head, token, channel within the head, value)

    def put(self, token, x):
        if self.rotate:
            x = rotated(x)
        exact = set()
        if self.per_token:  # 10 % of 8 values: the largest and the smallest stay exact
            if self.fraction:
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
            if self.fraction:
                exact = {c for c in range(WIDTH) if x[c] < lower[c] or x[c] > upper[c]}
            zero = [F(0.5) * a + F(0.5) * b for a, b in zip(lower, upper)]
            scale = [F(0.5) * b - F(0.5) * a for a, b in zip(lower, upper)]
        for c in range(WIDTH):
            if c in exact:
                self.entries.append((c // DIM, token, c % DIM, half(x[c])))
                continue
            book = levels(self.count or 2 ** self.bits[c])
            self.codes[c][token] = code_of(F(F(x[c] - zero[c]) * F(F(1) / scale[c])), book)

    def bytes_of_ranges(self):
        return b"".join(number(n, 2) for pair in self.ranges for n in pair) if self.per_token else b""

    def bytes_of_codes(self):
        result = b""
        for head in range(HEADS):
            bits = []
            for c in range(head * DIM, (head + 1) * DIM):
                codes = self.codes[c]
                if not self.count:
                    for code in codes:
                        bits += binary(code, self.bits[c])
                    continue
                three, one = {3: (5, 2), 5: (7, 3), 10: (10, 4), 20: (13, 5)}[self.count]
                for slot in range(0, 63, 3):
                    bits += binary(codes[slot] + self.count * (codes[slot + 1] + self.count * codes[slot + 2]), three)
                bits += binary(codes[63], one)
            result += bytes_of_bits(bits + [0] * (-len(bits) % 8))
        return result


class KeyGroups(Side):
    """Axis channel-group: a range for each channel and 8 tokens, which wait until they are 8."""

    GROUP = 8

    def __init__(self, bits):
        super().__init__(bits, False, 0)
        self.ranges = {}

    def put_group(self, first, rows):
        """rows: of tokens first, first + 1, …"""
        for c in range(WIDTH):
            column = [row[c] for row in rows]
            z = half(F(0.5) * min(column) + F(0.5) * max(column))
            stored = from_half(z)
            s = half(max(max(column) - stored, stored - min(column)))
            self.ranges[first // self.GROUP, c] = (z, s)
            for token, x in enumerate(column):
                self.codes[c][first + token] = code_of(F(F(x - stored) * F(F(1) / from_half(s))), levels(2 ** self.bits[c]))

    def bytes_of_ranges(self):
        pairs = [self.ranges.get((group, c), (0, 0)) for group in range(PAGE // self.GROUP) for c in range(WIDTH)]
        return b"".join(number(n, 2) for pair in pairs for n in pair)


class IntegerZeros(Side):
    """Axis token-group, zero=integer: a step and a zero point for each token and 4 channels."""

    GROUP = 4

    def __init__(self, bits):
        super().__init__(bits, True, 0)
        self.ranges = [(0, 0)] * (PAGE * WIDTH // self.GROUP)

    def put(self, token, x):
        most = F(2 ** self.bits[0] - 1)
        for first in range(0, WIDTH, self.GROUP):
            part = x[first:first + self.GROUP]
            stored = half(max(F(max(part) - min(part)), F(1e-5)) / most)
            step = from_half(stored)
            point = min(max(np.rint(-min(part) / step), F(0)), most)
            self.ranges[(token * WIDTH + first) // self.GROUP] = (stored, int(point))
            zero, scale = F(F(F(0.5) * most - point) * step), F(F(F(0.5) * most) * step)
            for c in range(first, first + self.GROUP):
                x_hat = F(F(x[c] - zero) * F(F(1) / scale))
                self.codes[c][token] = code_of(x_hat, levels(2 ** self.bits[c]))

    def bytes_of_ranges(self):
        points = [bit for _, point in self.ranges for bit in binary(point, self.bits[0])]
        return b"".join(number(step, 2) for step, _ in self.ranges) + bytes_of_bits(points)


def binary(number, places):
    """The lowest bit first."""
    return [number >> place & 1 for place in range(places)]


def bytes_of_bits(bits):
    return bytes(sum(bits[8 * i + place] << place for place in range(8)) for i in range(len(bits) // 8))


def number(value, size):
    return value.to_bytes(size, "little")


def bytes_of_values(entries):
    return b"".join(number(value, 2) for _, _, _, value in entries)


def bytes_of_channels(entries):
    return bytes(channel for _, _, channel, _ in entries)


def bytes_of_tokens(entries):
    return bytes_of_bits([bit for _, token, _, _ in entries for bit in binary(token, 6)])


def pack(sides, capacity):
    """sides, capacity: keys and values."""
    tokens = [tensor(0), tensor(1)]
    waits = b""
    for side in (0, 1):
        if isinstance(sides[side], KeyGroups):
            group = KeyGroups.GROUP
            waiting = TOKENS // group * group
            for first in range(0, waiting, group):
                sides[side].put_group(max(first, SINKS), tokens[side][max(first, SINKS):first + group])
            waits = b"".join(number(half(x), 2) for x in tokens[side][waiting:].ravel())
            continue
        for token in range(SINKS, TOKENS):
            sides[side].put(token, tokens[side][token])
    varying = [side for side in sides if side.fraction and not side.per_token]
    room = [0 if not side.fraction else PAGE * 2 if side.per_token else capacity[index] for index, side in enumerate(sides)]
    entries = [sorted(side.entries) for side in sides]
    in_page = [of[:room[index]] + [(0, 0, 0, 0)] * (room[index] - len(of)) for index, of in enumerate(entries)]
    page = b"".join(side.bytes_of_codes() for side in sides)
    page += b"".join(side.bytes_of_ranges() for side in sides)
    if any(side.fraction for side in sides):
        page += b"\0" * (-len(page) % 4)
    for index, side in enumerate(sides):
        if side.fraction:
            page += b"".join(number(sum(entry[0] == head for entry in entries[index]), 2) for head in range(HEADS))
    if varying:
        page += b"\0" * (-len(page) % 4)
    blocks = b""
    for index, side in enumerate(sides):
        if side not in varying:
            continue
        rest = entries[index][room[index]:]
        chain = [rest[i:i + 8] for i in range(0, len(rest), 8)]
        page += number(0 if chain else NOWHERE, 4)
        for place, block in enumerate(chain):
            block = block + [(0, 0, 0, 0)] * (8 - len(block))
            blocks += bytes_of_values(block) + bytes_of_channels(block) + bytes_of_tokens(block) + b"\0" * 2
            blocks += number(place + 1 if place + 1 < len(chain) else NOWHERE, 4)
    for part in (bytes_of_values, bytes_of_channels, bytes_of_tokens):
        page += b"".join(part(of) for of in in_page)
    page += b"\0" * (-len(page) % 16)
    exact = b"".join(number(half(x), 2) for side in (0, 1) for x in tokens[side][:SINKS].ravel())
    content = page + blocks + exact + waits
    return {"page_bytes": len(page), "content": [content[i:i + 32].hex() for i in range(0, len(content), 32)]}


def main():
    result = {
        "K=int3-10%/V=int4-10%": pack([Side(3, False), Side(4, True)], (8, 0)),
        "K=int5-10%:key=token/V=int2-10%:value=channel": pack([Side(5, True), Side(2, False)], (0, 8)),
        "K=nuq1.5-10%:widths=pair/V=nuq2:levels=5":
            pack([Side([0, 3, 0, 3, 2, 1, 2, 1], False), Side(2, True, 0, 5)], (8, 0)),
        "K=int3/V=nuq4-10%:levels=20,rotate=hadamard":
            pack([Side(3, False, 0), Side(4, True, 0.1, 20, True)], (0, 0)),
        "K=int3:key=channel-group,group=8/V=int2:value=token-group,group=4,zero=integer":
            pack([KeyGroups(3), IntegerZeros(2)], (0, 0)),
    }
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/packed_pages.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
