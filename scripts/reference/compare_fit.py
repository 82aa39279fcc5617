"""kvq's k-means against scikit-learn's on real calibration data. Prints a line per case and a summary.

    python compare_fit.py --calib calib.h5 --test-fit build/release/bin/test_fit [--subset 200000] [--speed]

- every layer and side at 2, 3 and 4 bits, and six of them at 5 to 8, on a seeded subset: ratio of the weighted errors, ours
  to scikit-learn's best of 10 restarts, both computed here in fp64;
- --speed: one full layer and side at 3 bits, scikit-learn as KVQuant calls it (one start, 50 iterations, one thread)
  against ours on all cores.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
from types import SimpleNamespace

import h5py
import numpy as np
from threadpoolctl import threadpool_limits

import sklearn_kmeans as reference


def load(args, layer, side, subset):
    options = SimpleNamespace(calib=args.calib, layer=layer, side=side, head=None, outliers=args.outliers, sinks=args.sinks,
                              fit_weights="fisher")
    x, weights = reference.from_calibration(options)
    if subset and subset < x.size:
        chosen = np.sort(np.random.Generator(np.random.PCG64(layer)).choice(x.size, subset, replace=False))
        x, weights = x[chosen], weights[chosen]
    if weights.mean() > 0:
        weights = weights / weights.mean()
    return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(weights, np.float32)


def ours(args, jobs, folder):
    """Fills in centroids, error and seconds of every job."""
    path = pathlib.Path(folder) / "jobs.json"
    path.write_text(json.dumps(jobs))
    subprocess.run([args.test_fit, "[.files]"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "KVQ_KMEANS_JOBS": str(path)})
    return json.loads(pathlib.Path(str(path) + ".done").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calib", type=pathlib.Path, required=True)
    parser.add_argument("--test-fit", required=True)
    parser.add_argument("--outliers", type=float, default=0.01)
    parser.add_argument("--sinks", type=int, default=1)
    parser.add_argument("--subset", type=int, default=200000)
    parser.add_argument("--bits", type=int, nargs="*", default=[2, 3, 4])
    parser.add_argument("--more-bits", type=int, nargs="*", default=[5, 6, 7, 8], help="on six layers and sides")
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    with h5py.File(args.calib) as file:
        layers = len(file["layers"])

    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        def save(name, x, weights):
            x.tofile(f"{folder}/{name}_x")
            weights.tofile(f"{folder}/{name}_w")
            return {"values": f"{folder}/{name}_x", "weights": f"{folder}/{name}_w"}

        if args.speed:
            x, weights = load(args, layers // 2, "key", None)
            files = save("full", x, weights)
            theirs, best = None, None
            for _ in range(3):  # in turns, so that what else runs disturbs both alike; the quickest of each counts
                run = reference.fit(x, weights, 3, 1, 50, 0)
                theirs = min(theirs or run, run, key=lambda result: result["seconds"])
                runs = ours(args, [dict(files, clusters=8)] * 3, folder) + ([best] if best else [])
                best = min(runs, key=lambda job: job["seconds"])
            print(f"{x.size} values, 8 clusters: scikit-learn {theirs['seconds']:.3f} s, ours {best['seconds']:.4f} s, "
                  f"{theirs['seconds'] / best['seconds']:.0f} times as fast; error ratio {best['error'] / theirs['error']:.6f}")
            return

        six = {(layer, side) for layer in (0, layers // 2, layers - 1) for side in ("key", "value")}
        worst = {}
        for layer in range(layers):
            for side in ("key", "value"):
                all_bits = args.bits + (args.more_bits if (layer, side) in six else [])
                if not all_bits:
                    continue
                x, weights = load(args, layer, side, args.subset)
                files = save("part", x, weights)
                for job in ours(args, [dict(files, clusters=2**bits, bits=bits) for bits in all_bits], folder):
                    theirs = reference.fit(x, weights, job["bits"], 10, 300, 0)
                    ratio = reference.error(x, weights.astype(np.float64), job["centroids"]) / theirs["error"]
                    worst[job["bits"]] = max(worst.get(job["bits"], 0), ratio)
                    print(f"layer {layer} {side} {job['bits']} bits: error ratio {ratio:.8f}, scikit-learn "
                          f"{theirs['seconds']:.2f} s, ours {job['seconds']:.4f} s", flush=True)
        for bits, ratio in sorted(worst.items()):
            print(f"{bits} bits: largest error ratio {ratio:.8f}")


if __name__ == "__main__":
    main()
