"""Keys and values of a calibration as raw floats for `test_vector "[claims]"`, and other packages on the same rows.

    python vector_claims.py dump --calib calib.h5 -o FOLDER [--layers 0,10,20,29] [--heads 0] [--sequences 5]
    python vector_claims.py package --path FOLDER_OF_UNPACKED_WHEEL --data FOLDER

dump writes Gaussian rows and rows of an AR(1) process (128 channels), and four groups of a model: a file NAME.Llayer.hhead.d64.f32 for each layer and head, tokens of `sequences` sequences:
key-pre (before RoPE), key-post (after), key-centred (before RoPE, minus the channel's mean over all but the last sequence)
and value. package runs kvquant-plus-plus 0.1.17 (the module `kvquant`) on the last fifth of the rows of each file and
prints bits per value with norms and error over energy, averaged as claims_bench.cpp does.
"""

import argparse
import pathlib
import sys

import numpy as np


def rotate(x, theta):
    """Hugging Face's order: channel j turns with channel j + half."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[0])[:, None] * theta ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def dump(args):
    import h5py

    args.output.mkdir(parents=True, exist_ok=True)
    random = np.random.Generator(np.random.PCG64(0))
    for name, rho in (("gaussian", 0.0), ("correlated90", 0.9), ("correlated98", 0.98)):
        x = random.standard_normal((10240, 128))
        for row in range(1, len(x)):
            x[row] = rho * x[row - 1] + np.sqrt(1 - rho * rho) * x[row]
        (args.output / f"{name}.d128.f32").write_bytes(x.astype(np.float32).tobytes())
    with h5py.File(args.calib) as calib:
        seqlen = calib["tokens"].shape[1]
        tokens = args.sequences * seqlen
        for layer in args.layers:
            for head in args.heads:
                group = calib[f"layers/{layer:02}"]
                key, value = (np.asarray(group[side][:tokens, head]).astype(np.float64) for side in ("key", "value"))
                post = np.concatenate([rotate(part, args.theta) for part in np.split(key, args.sequences)])
                centred = key - key[: tokens - seqlen].mean(0)
                for name, x in {"key-pre": key, "key-post": post, "key-centred": centred, "value": value}.items():
                    path = args.output / f"{name}.L{layer:02}.h{head}.d{x.shape[1]}.f32"
                    path.write_bytes(x.astype(np.float32).tobytes())


def files(folder, only):
    for path in sorted(folder.glob(f"{only}*.f32")):
        dim = int(path.name.rsplit(".d", 1)[1].split(".")[0])
        rows = np.fromfile(path, np.float32).reshape(-1, dim)
        yield path.name.split(".")[0], rows[: len(rows) * 4 // 5], rows[len(rows) * 4 // 5 :]


def package(args):
    sys.path.insert(0, str(args.path))
    import torch
    from kvquant.correction import LowRankCorrection
    from kvquant.delta import DeltaKVCache
    from kvquant.entropy import analyse
    from kvquant.product_quantizer import ProductQuantizer
    from kvquant.quantizer import KVQuantMSE

    torch.manual_seed(0)
    page, anchor = 128, 64
    half, single = 16, 32  # bits: norms and factors counted as fp16; anchors as the package keeps them

    def methods(train, judged):
        """Name, bits per value and decoded rows; judged is a multiple of `page` rows."""
        rows, dim = judged.shape
        for bits in (2, 3, 4):
            mse = KVQuantMSE(dim, bits)
            yield f"KVQuantMSE {bits}", bits + half / dim, mse(judged)
            for rank in (4, 8):
                correction = LowRankCorrection(mse, rank)
                paged = judged.reshape(-1, page, dim)
                cost = bits + half / dim + half * rank * (page + dim) / (page * dim)
                yield f"KVQuantMSE {bits} + LowRankCorrection {rank}, pages of {page}", cost, correction(paged).reshape(rows, dim)
        cache = DeltaKVCache(dim, 3, anchor_every=anchor)
        for row in judged[:512]:  # 15 ms a row
            cache.push(row, row)
        cost = ((anchor - 1) * (3 + 2 * half / dim) + single) / anchor
        yield f"DeltaKVCache 3, anchor_every={anchor}, 512 rows", cost, torch.stack(list(cache._k_reconstructed))
        product = ProductQuantizer(dim, dim // 4, 8)
        product.calibrate(train)
        yield f"ProductQuantizer {dim // 4} x 8", 2 + half / dim, product.dequantize(product.quantize(judged))

    found = {}
    for name, train, judged in files(args.data, args.only):
        train, judged = torch.from_numpy(train), torch.from_numpy(judged[: len(judged) // page * page])
        with torch.no_grad():
            for method, bits, decoded in methods(train, judged):
                print(name, method, file=sys.stderr, flush=True)
                wanted = judged[: len(decoded)]
                error = float(((decoded - wanted) ** 2).sum() / (wanted**2).sum())
                found.setdefault(name, {}).setdefault(method, []).append((bits, np.log(error)))
    for name, of_group in found.items():
        print(f"\n{name}\n| method | bits per value | error / energy |\n|---|---|---|")
        for method, results in of_group.items():
            bits, error = np.mean(results, 0)
            print(f"| {method} | {bits:.3f} | {np.exp(error):.5f} |")
    for dim in (64, 128):
        print("Huffman by the package's own figures,", dim, "channels, 4 bits:", analyse(4, dim))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    numbers = lambda text: [int(part) for part in text.split(",")]
    one = commands.add_parser("dump")
    one.add_argument("--calib", type=pathlib.Path, required=True)
    one.add_argument("-o", "--output", type=pathlib.Path, required=True)
    one.add_argument("--layers", type=numbers, default=[0, 10, 20, 29])
    one.add_argument("--heads", type=numbers, default=[0])
    one.add_argument("--sequences", type=int, default=5)
    one.add_argument("--theta", type=float, default=100000.0)
    one.set_defaults(run=dump)
    two = commands.add_parser("package")
    two.add_argument("--path", type=pathlib.Path, required=True)
    two.add_argument("--data", type=pathlib.Path, required=True)
    two.add_argument("--only", default="", help="beginning of the names of files to take")
    two.set_defaults(run=package)
    args = parser.parse_args()
    args.run(args)
