"""How far do two calibration files' squared gradients differ? For bf16 against fp32 on the same windows.

    python compare_fisher.py fp32.h5 bf16.h5

Per layer and side: Spearman's rank correlation of g² over all elements, and of its mean per channel (what the weights of a
codebook come down to), the first token of every sequence left out. Prints the smallest, the median and where the smallest is.
"""

import sys

import h5py
import numpy as np


def rank_correlation(a, b):
    ranks = [np.argsort(np.argsort(x, kind="stable"), kind="stable").astype(np.float64) for x in (a.ravel(), b.ravel())]
    return np.corrcoef(*ranks)[0, 1]


def fisher(file, layer, side):
    group = file["layers"][layer]
    gradient = group[f"{side}_grad"][...].astype(np.float64)  # the scale of the layer changes no rank
    sequences, seqlen = file["tokens"].shape
    gradient = gradient.reshape(sequences, seqlen, -1)[:, 1:]
    return (gradient**2).reshape(-1, gradient.shape[-1])


def main():
    files = [h5py.File(path) for path in sys.argv[1:3]]
    assert (files[0]["tokens"][...] == files[1]["tokens"][...]).all(), "the files hold other windows"
    rows = []
    for layer in sorted(files[0]["layers"]):
        for side in ("key", "value"):
            a, b = (fisher(file, layer, side) for file in files)
            rows.append((rank_correlation(a, b), rank_correlation(a.mean(0), b.mean(0)), f"layer {layer} {side}"))
    for index, name in enumerate(("elements", "channel means")):
        values = [row[index] for row in rows]
        print(f"{name}: smallest {min(values):.5f} ({rows[int(np.argmin(values))][2]}), median {np.median(values):.5f}")


if __name__ == "__main__":
    main()
