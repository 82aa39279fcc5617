"""kvq-threshold's percentiles and outlier rates against numpy's on the same calibration file.

    python compare_thresholds.py calib.h5 thresholds.h5 [layer,layer,...]

Keys before RoPE and values, every set of the thresholds file. Prints the largest difference of a percentile, in units in the
last place of fp32, and of a rate of values strictly outside.
"""

import sys

import h5py
import numpy as np


def main():
    calibration, thresholds = (h5py.File(path) for path in sys.argv[1:3])
    layers = [int(word) for word in sys.argv[3].split(",")] if len(sys.argv) > 3 else range(len(calibration["layers"]))
    sequences, seqlen = calibration["tokens"].shape
    worst = worst_rate = count = 0
    for layer in layers:
        for side in ("key", "value"):
            data = calibration[f"layers/{layer:02}/{side}"]
            x = (data[...].astype(np.float32) * np.float32(data.attrs["scale"])).reshape(sequences * seqlen, -1)
            for found in thresholds["sets"].values():
                fraction, sinks = float(found.attrs["fraction"]), int(found.attrs["sinks"])
                kept = x[np.arange(len(x)) % seqlen >= sinks]
                bounds = [found[side][name][layer].ravel() for name in ("lower", "upper")]
                for ours, percent in zip(bounds, (50 * fraction, 100 - 50 * fraction)):
                    theirs = np.percentile(kept, percent, axis=0)
                    worst = max(worst, np.max(np.abs(ours - theirs) / np.spacing(np.abs(theirs.astype(np.float32)))))
                    count += theirs.size
                rate = np.mean((kept < bounds[0]) | (kept > bounds[1]))
                worst_rate = max(worst_rate, abs(rate - found[side]["outlier_rate"][layer]))
    print(f"{count} percentiles: largest difference {worst:.2g} units in the last place; of a rate {worst_rate:.2g}")


if __name__ == "__main__":
    main()
