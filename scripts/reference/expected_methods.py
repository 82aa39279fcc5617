"""Writes tests/golden/methods: what the published caches give back of one small random cache.

    python expected_methods.py

input.f32 holds [64 tokens, 64 channels] (two kv heads of 32), float32, little-endian; every other file the same shape
after encoding and decoding. KIVI, Atom and FlexGen follow the formulas of their papers in numpy, float64 where nothing
is stored, with what they store rounded to fp16; q4_0 and q8_0 are gguf's own quantize and dequantize; fp8 is torch's
float8_e4m3fn.
"""

import os

import gguf
import numpy as np
import torch

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/methods")
TOKENS, CHANNELS = 64, 64


def random_cache():
    rng = np.random.default_rng(7)
    x = rng.standard_t(4, size=(TOKENS, CHANNELS))
    x *= np.exp(rng.normal(0, 1.5, size=CHANNELS))  # channels of very different size
    x[:, 5] += 20.0  # one far from 0
    x[:, 9] = 0.0
    x[:, 11] = 3.25  # one constant
    x[17] = 0.0
    x[18] *= 1e-4
    return x.astype(np.float32)


def half(x):
    return np.float64(np.float16(x))


def asymmetric(x, bits, axis):
    """KIVI, section 3.1, and FlexGen: zero = min, scale = (max - min) / (2^bits - 1), both kept in fp16."""
    levels = 2**bits - 1
    zero = half(x.min(axis=axis, keepdims=True))
    scale = half((x.max(axis=axis, keepdims=True) - x.min(axis=axis, keepdims=True)) / levels)
    code = np.clip(np.rint((x - zero) / np.where(scale == 0, 1, scale)), 0, levels)
    return code * scale + zero


def integer_zero(x, bits, axis):
    """Atom: scale = (max - min) / (2^bits - 1), zero = clamp(round(-min / scale))."""
    levels = 2**bits - 1
    scale = half(np.maximum(x.max(axis=axis, keepdims=True) - x.min(axis=axis, keepdims=True), 1e-5) / levels)
    safe = np.where(scale == 0, 1, scale)
    zero = np.where(scale == 0, 0, np.clip(np.rint(-x.min(axis=axis, keepdims=True) / safe), 0, levels))
    return (np.clip(np.rint(x / safe) + zero, 0, levels) - zero) * scale


def by_channel_groups(x, group, function):
    """Groups of `group` channels of a token; the last may be smaller."""
    parts = [function(x[:, first : first + group]) for first in range(0, CHANNELS, group)]
    return np.concatenate(parts, axis=1)


def by_token_groups(x, group, function):
    return np.concatenate([function(x[first : first + group]) for first in range(0, TOKENS, group)], axis=0)


def ggml(x, kind):
    return gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    x = random_cache()
    wide = x.astype(np.float64)
    results = {
        "input": x,
        "kivi2_key": by_token_groups(wide, 32, lambda part: asymmetric(part, 2, 0)),
        "kivi4_key": by_token_groups(wide, 32, lambda part: asymmetric(part, 4, 0)),
        "kivi2_value": by_channel_groups(wide, 32, lambda part: asymmetric(part, 2, 1)),
        "flexgen4": by_channel_groups(wide, 64, lambda part: asymmetric(part, 4, 1)),
        "group48": by_channel_groups(wide, 48, lambda part: asymmetric(part, 4, 1)),
        "atom4": by_channel_groups(wide, 32, lambda part: integer_zero(part, 4, 1)),
        "atom2": by_channel_groups(wide, 32, lambda part: integer_zero(part, 2, 1)),
        "q4_0": ggml(x, gguf.GGMLQuantizationType.Q4_0),
        "q8_0": ggml(x, gguf.GGMLQuantizationType.Q8_0),
        "fp8": torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float32).numpy(),
    }
    for name, values in results.items():
        values.astype("<f4").tofile(os.path.join(FOLDER, name + ".f32"))


if __name__ == "__main__":
    main()
