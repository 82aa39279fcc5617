"""What heapq, numpy and scikit-learn make of small inputs: tests/golden/vector.json.

    python expected_vector.py

- huffman: lengths and bits of a Huffman code built with Python's heapq, and the fewest bits under a limit on lengths, by
  trying all complete codes;
- svd: singular values by numpy, and the squared error that remains after ranks 1 to 4;
- product: error of scikit-learn's KMeans (k-means++, best of 10 starts) per subspace, without weights and with.

The matrices follow from an integer formula that tests/vector/formula_matrix.h repeats, exact in float.
"""

import heapq
import itertools
import json
import pathlib

import numpy as np
from sklearn.cluster import KMeans


def formula(rows, columns, seed):
    row, column = np.meshgrid(np.arange(rows, dtype=np.uint64), np.arange(columns, dtype=np.uint64), indexing="ij")
    mask = np.uint64(0xFFFFFFFF)
    h = (row * np.uint64(7919) + column * np.uint64(104729) + np.uint64(seed * 15485863)) & mask
    total = np.zeros(row.shape)
    for _ in range(3):
        h = (h * np.uint64(1664525) + np.uint64(1013904223)) & mask
        total += ((h >> np.uint64(8)) % np.uint64(341)).astype(float)
    return (total - 510) / 256


def huffman(counts):
    heap = [(count, symbol, (symbol,)) for symbol, count in enumerate(counts) if count]
    lengths = [0] * len(counts)
    heapq.heapify(heap)
    while len(heap) > 1:
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in a[2] + b[2]:
            lengths[symbol] += 1
        heapq.heappush(heap, (a[0] + b[0], min(a[1], b[1]), a[2] + b[2]))
    return lengths


def fewest_bits(counts, limit):
    """Longer codes for rarer symbols; all non-increasing lengths of complete codes."""
    counts = sorted(c for c in counts if c)
    best = None
    for lengths in itertools.combinations_with_replacement(range(limit, 0, -1), len(counts)):
        if sum(2 ** (limit - length) for length in lengths) == 2**limit:
            bits = sum(c * length for c, length in zip(counts, lengths))
            best = bits if best is None else min(best, bits)
    return best


def huffman_cases():
    fibonacci = [1, 1]
    while len(fibonacci) < 12:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    for name, counts in {
        "text": [5, 9, 12, 13, 16, 45],
        "fibonacci": fibonacci,
        "powers": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        "absent": [0, 70, 0, 3, 11, 0, 29, 0],
        "equal": [7] * 8,
    }.items():
        lengths = huffman(counts)
        case = {"name": name, "counts": counts, "lengths": lengths, "bits": sum(c * n for c, n in zip(counts, lengths))}
        case["limited"] = {str(limit): fewest_bits(counts, limit) for limit in (3, 4, 5) if sum(c > 0 for c in counts) <= 2**limit}
        yield case


def svd_cases():
    for rows, columns, seed in ((12, 7, 1), (7, 12, 2), (40, 16, 3)):
        matrix = formula(rows, columns, seed)
        values = np.linalg.svd(matrix, compute_uv=False)
        left = [float(np.sum(values[rank:] ** 2)) for rank in range(1, 5)]
        yield {"rows": rows, "columns": columns, "seed": seed, "values": values.tolist(), "left": left}


def product_cases():
    rows, dim = 600, 8
    x = formula(rows, dim, 4).astype(np.float32)
    x[:, 1::2] += x[:, ::2]  # what subspaces gain from: neighbours that hang together
    row_weights = np.abs(formula(rows, 1, 5))[:, 0] + 0.125
    channel_weights = np.abs(formula(1, dim, 6))[0] * 4 + 0.25
    for weighted in (False, True):
        for subspaces, bits in ((2, 4), (4, 3)):
            error, width = 0.0, dim // subspaces
            for space in range(subspaces):
                part = x[:, space * width : (space + 1) * width].astype(float)
                scale = np.sqrt(channel_weights[space * width : (space + 1) * width]) if weighted else np.ones(width)
                model = KMeans(2**bits, n_init=10, random_state=0).fit(part * scale, sample_weight=row_weights if weighted else None)
                error += model.inertia_
            yield {"rows": rows, "dim": dim, "subspaces": subspaces, "bits": bits, "weighted": weighted, "error": error}


if __name__ == "__main__":
    result = {"huffman": list(huffman_cases()), "svd": list(svd_cases()), "product": list(product_cases())}
    path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "vector.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
