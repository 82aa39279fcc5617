"""scikit-learn's weighted k-means on normalised keys or values, as KVQuant calls it and with restarts. Prints JSON.

    python sklearn_kmeans.py --calib calib.h5 --layer 0 --side key --bits 3 [--outliers 0.01] [--sinks 1]
    python sklearn_kmeans.py --values x.npy --weights w.npy --bits 3

With --calib the data are normalised here, independently of the project's code: keys per channel between the
percentiles f/2 and 1 - f/2 (sinks left out), values per token between the extremes that remain when the k largest and
k smallest of the layer's vector are out; x_hat = (x - z) / s, weight g^2 s^2 (fisher), g^2 (fisher-unscaled) or 1.
Outliers and sinks don't take part. With --values the arrays (1-D float32 .npy; weights optional) are used as they are.
--subset N draws N elements without replacement. --save PREFIX writes PREFIX_x.npy and PREFIX_w.npy.
--centroids FILE (JSON array) adds the error of those centroids on the same data, relative to scikit-learn's.
"""

import argparse
import json
import pathlib
import time

import numpy as np
import sklearn
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits


def read_tensor(layer, name):
    """fp32 of a dataset that is stored as fp16 values of x / scale; the scale is an attribute or a dataset beside it."""
    dataset = layer[name]
    scale = dataset.attrs["scale"] if "scale" in dataset.attrs else layer[name + "_scale"][()]
    return dataset[...].astype(np.float32) * np.float32(np.asarray(scale).reshape(()))


def normalise_keys(x, fraction):
    lower = np.quantile(x, fraction / 2, axis=0)
    upper = np.quantile(x, 1 - fraction / 2, axis=0)
    inside = (x >= lower) & (x <= upper)
    return (lower + upper) / 2, (upper - lower) / 2, inside


def normalise_values(x, fraction):
    width = x.shape[1]
    k = max(1, int(np.floor(fraction * width / 2 + 0.5))) if fraction > 0 else 0
    inside = np.ones(x.shape, bool)
    if k > 0:  # ties: the lower channel is the outlier
        rows = np.arange(len(x))[:, None]
        inside[rows, np.argsort(-x, axis=1, kind="stable")[:, :k]] = False
        inside[rows, np.argsort(x, axis=1, kind="stable")[:, :k]] = False
    upper = np.where(inside, x, -np.inf).max(axis=1, keepdims=True)
    lower = np.where(inside, x, np.inf).min(axis=1, keepdims=True)
    return (lower + upper) / 2, (upper - lower) / 2, inside


def from_calibration(args):
    import h5py

    with h5py.File(args.calib) as file:
        sequences, seqlen = file["tokens"].shape
        layer = file[f"layers/{args.layer:02}"]
        x, gradient = read_tensor(layer, args.side), read_tensor(layer, args.side + "_grad")
    tokens, kv_heads, head_dim = x.shape
    assert tokens == sequences * seqlen
    keep = np.arange(tokens) % seqlen >= args.sinks
    x, gradient = x.reshape(tokens, -1)[keep], gradient.reshape(tokens, -1)[keep]
    centre, scale, inside = (normalise_keys if args.side == "key" else normalise_values)(x, args.outliers)
    safe = np.where(scale > 0, scale, 1)
    x_hat = ((x - centre) / safe).astype(np.float32)
    weights = np.ones_like(x_hat)
    if args.fit_weights != "none":
        weights = gradient.astype(np.float64) ** 2
        if args.fit_weights == "fisher":
            weights = weights * np.asarray(scale, np.float64) ** 2
    if args.head is not None:
        head = np.arange(kv_heads * head_dim) // head_dim == args.head
        x_hat, weights, inside = x_hat[:, head], weights[:, head], inside[:, head]
    return x_hat[inside], np.asarray(weights, np.float64)[inside]


def error(x, weights, centroids):
    """Sum of w (x - nearest centroid)^2 in fp64."""
    centroids = np.sort(np.asarray(centroids, np.float64))
    nearest = np.searchsorted((centroids[1:] + centroids[:-1]) / 2, x.astype(np.float64))
    return float(np.sum(weights * (x - centroids[nearest]) ** 2))


def fit(x, weights, bits, restarts, iterations, seed):
    begin = time.perf_counter()
    model = KMeans(n_clusters=2**bits, n_init=restarts, max_iter=iterations, random_state=seed)
    model.fit(x.reshape(-1, 1), sample_weight=weights)
    seconds = time.perf_counter() - begin
    centroids = np.sort(model.cluster_centers_.reshape(-1).astype(np.float64))
    return {"seconds": seconds, "iterations": int(model.n_iter_), "error": error(x, weights, centroids),
            "centroids": centroids.tolist()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--calib", type=pathlib.Path)
    source.add_argument("--values", type=pathlib.Path)
    parser.add_argument("--weights", type=pathlib.Path, help="with --values")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--side", choices=["key", "value"], default="key")
    parser.add_argument("--head", type=int, help="one kv head instead of the whole layer")
    parser.add_argument("--outliers", type=float, default=0.01)
    parser.add_argument("--sinks", type=int, default=1)
    parser.add_argument("--fit-weights", choices=["fisher", "fisher-unscaled", "none"], default="fisher")
    parser.add_argument("--bits", type=int, required=True)
    parser.add_argument("--restarts", type=int, default=10, help="0: only KVQuant's single start")
    parser.add_argument("--restart-iterations", type=int, default=300)
    parser.add_argument("--subset", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--centroids", type=pathlib.Path)
    parser.add_argument("--save")
    args = parser.parse_args()

    begin = time.perf_counter()
    if args.calib:
        x, weights = from_calibration(args)
    else:
        x = np.load(args.values).astype(np.float32).reshape(-1)
        weights = np.load(args.weights).astype(np.float64).reshape(-1) if args.weights else np.ones(x.size)
        assert weights.size == x.size
    read_seconds = time.perf_counter() - begin
    if args.subset and args.subset < x.size:
        rng = np.random.Generator(np.random.PCG64(args.seed))
        chosen = np.sort(rng.choice(x.size, args.subset, replace=False))
        x, weights = x[chosen], weights[chosen]
    if weights.mean() > 0:  # squared gradients are tiny: bring them near 1 before rounding to fp32
        weights = weights / weights.mean()
    weights32 = weights.astype(np.float32)
    weights = weights32.astype(np.float64)
    if args.save:
        np.save(args.save + "_x.npy", x)
        np.save(args.save + "_w.npy", weights32)

    result = {"sklearn": sklearn.__version__, "values": int(x.size), "bits": args.bits, "threads": args.threads,
              "read_and_normalise_seconds": read_seconds}
    with threadpool_limits(args.threads):
        result["kvquant"] = fit(x, weights32, args.bits, 1, 50, args.seed)
        if args.restarts:
            result["restarts"] = fit(x, weights32, args.bits, args.restarts, args.restart_iterations, args.seed)
    best = min(result[key]["error"] for key in ("kvquant", "restarts") if key in result)
    if args.centroids:
        ours = error(x, weights, json.loads(args.centroids.read_text()))
        result["given"] = {"error": ours, "over_best": ours / best if best > 0 else None}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
