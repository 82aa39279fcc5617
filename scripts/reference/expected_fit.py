"""What numpy and scikit-learn make of a small synthetic calibration: tests/golden/fit_small.json.

    python expected_fit.py

The data follow from integer formulas that tests/fit/small_calibration.h repeats; every number is exact in fp16.
- thresholds: numpy percentiles (linear) per channel and the share outside, for keys, rotated keys and values;
- errors: for several recipes, the mean over layers of sum(w (x_hat - c)^2) / sum(w) with scikit-learn's KMeans, best of 200
  restarts; ranges of value tokens are rounded to fp16 as the cache stores them.
"""

import json
import pathlib

import numpy as np
from sklearn.cluster import KMeans

LAYERS, HEADS, DIM, SEQUENCES, SEQLEN = 2, 2, 4, 3, 50
WIDTH, TOKENS = HEADS * DIM, SEQUENCES * SEQLEN
THETA = 10000.0


def tensor(layer, side, gradient):
    """[tokens, width] float64."""
    token, channel = np.meshgrid(np.arange(TOKENS, dtype=np.uint64), np.arange(WIDTH, dtype=np.uint64), indexing="ij")
    mask = np.uint64(0xFFFFFFFF)
    h = (token * np.uint64(7919) + channel * np.uint64(104729) + np.uint64(layer * 1299709 + side * 15485863 + gradient * 32452843)) & mask
    total = np.zeros(token.shape)
    for _ in range(3):
        h = (h * np.uint64(1664525) + np.uint64(1013904223)) & mask
        total += ((h >> np.uint64(8)) % np.uint64(341)).astype(float)
    x = (total - 510) / 256 * 2.0 ** (channel % np.uint64(3)).astype(float)
    if not gradient:
        x[np.arange(TOKENS) % SEQLEN == 0] *= 8
    return x


def rotate(x):
    position = np.arange(TOKENS) % SEQLEN
    angle = position[:, None] * THETA ** (-2.0 * np.arange(DIM // 2) / DIM)
    x = x.reshape(TOKENS, HEADS, DIM)
    a, b = x[..., : DIM // 2], x[..., DIM // 2:]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).reshape(TOKENS, WIDTH).astype(np.float32).astype(float)


def counted(sinks):
    return np.arange(TOKENS) % SEQLEN >= sinks


def thresholds(x, fraction, sinks):
    x = x[counted(sinks)]
    lower, upper = np.percentile(x, 50 * fraction, axis=0), np.percentile(x, 100 - 50 * fraction, axis=0)
    return lower, upper, float(np.mean((x < lower) | (x > upper)))


def normalise(x, gradient, axis, fraction, sinks, weights):
    """x_hat, weight and a mask of what takes part, each [tokens, width]."""
    part = np.repeat(counted(sinks)[:, None], WIDTH, 1)
    if axis == "channel":
        lower, upper, _ = thresholds(x, fraction, sinks)
        zero, scale = (lower + upper) / 2, (upper - lower) / 2
        part &= (x >= lower) & (x <= upper)
    else:
        k = max(1, int(np.floor(fraction * WIDTH / 2 + 0.5))) if fraction else 0
        if k:
            rows = np.arange(TOKENS)[:, None]
            part[rows, np.argsort(-x, axis=1, kind="stable")[:, :k]] = False
            rest = np.where(part | ~counted(sinks)[:, None], x, np.inf)
            part[rows, np.argsort(rest, axis=1, kind="stable")[:, :k]] = False
        inside = np.where(part, x, np.nan)
        low, high = np.full(TOKENS, 0.0), np.full(TOKENS, 1.0)
        keep = counted(sinks)
        low[keep], high[keep] = np.nanmin(inside[keep], 1), np.nanmax(inside[keep], 1)
        zero = np.float16((low + high) / 2).astype(float)
        scale = np.float16(np.maximum(high - zero, zero - low)).astype(float)[:, None]
        zero = zero[:, None]
    weight = np.ones(x.shape)
    if weights != "none":
        weight = gradient**2
        if weights == "fisher":
            weight = weight * np.broadcast_to(scale, x.shape) ** 2
    return (x - zero) / scale, weight, part


def best_error(x_hat, weight, clusters):
    model = KMeans(n_clusters=clusters, n_init=200, max_iter=1000, tol=0, random_state=0)
    model.fit(x_hat.reshape(-1, 1), sample_weight=weight)
    centroids = np.sort(model.cluster_centers_.reshape(-1))
    nearest = np.searchsorted((centroids[1:] + centroids[:-1]) / 2, x_hat)
    return np.sum(weight * (x_hat - centroids[nearest]) ** 2)


def recipe_error(side, axis, bits, fraction, sinks, weights="fisher", share="layer", post=False):
    mean = 0
    for layer in range(LAYERS):
        x, gradient = tensor(layer, side, 0), tensor(layer, side, 1)
        if post:
            x, gradient = rotate(x), rotate(gradient)
        x_hat, weight, part = normalise(x, gradient, axis, fraction, sinks, weights)
        heads = [slice(h * DIM, (h + 1) * DIM) for h in range(HEADS)] if share == "head" else [slice(None)]
        error = sum(best_error(x_hat[:, h][part[:, h]], weight[:, h][part[:, h]], 2**bits) for h in heads)
        mean += error / np.sum(weight[part]) / LAYERS
    return float(mean)


def main():
    document = {"thresholds": [], "errors": []}
    for fraction in (0.1, 0.03, 0.0):
        for sinks in (0, 1):
            entry = {"fraction": fraction, "sinks": sinks}
            for name, x in (("key", tensor(1, 0, 0)), ("key_post", rotate(tensor(1, 0, 0))), ("value", tensor(1, 1, 0))):
                lower, upper, rate = thresholds(x, fraction, sinks)
                entry[name] = {"lower": lower.tolist(), "upper": upper.tolist(), "rate": rate}
            document["thresholds"].append(entry)
    # Short forms, with what they say about keys and values.
    key, value = (0, "channel"), (1, "token")
    for recipe, options in (
        ("nuq2-10%", {"bits": 2, "fraction": 0.1, "sinks": 1}),
        ("nuq3-10%", {"bits": 3, "fraction": 0.1, "sinks": 1}),
        ("nuq3", {"bits": 3, "fraction": 0.0, "sinks": 1}),
        ("nuq3-10%:sink=0", {"bits": 3, "fraction": 0.1, "sinks": 0}),
        ("nuq3-10%:weights=none", {"bits": 3, "fraction": 0.1, "sinks": 1, "weights": "none"}),
        ("nuq3-10%:weights=fisher-unscaled", {"bits": 3, "fraction": 0.1, "sinks": 1, "weights": "fisher-unscaled"}),
        ("nuq3-10%:share=head", {"bits": 3, "fraction": 0.1, "sinks": 1, "share": "head"}),
        ("nuq3-10%:rope=post", {"bits": 3, "fraction": 0.1, "sinks": 1, "post": True}),
    ):
        options = dict(options)
        post = options.pop("post", False)
        document["errors"].append({"recipe": recipe, "key": recipe_error(*key, **options, post=post),
                                   "value": recipe_error(*value, **options)})
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/fit_small.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
