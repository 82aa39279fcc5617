"""Keys and values of a calibration as raw floats for `test_vector "[claims]"`, and other packages on the same rows.

    python vector_claims.py dump --calib calib.h5 -o FOLDER [--layers 0,10,20,29] [--heads 0] [--sequences 5]
    python vector_claims.py package --path FOLDER_OF_UNPACKED_WHEELS --data FOLDER
    python vector_claims.py speed --path FOLDER_OF_UNPACKED_WHEELS [--rows 1048576] [--threads 1]

dump writes Gaussian rows and rows of an AR(1) process (128 channels), and four groups of a model: a file NAME.Llayer.hhead.d64.f32 for each layer and head, tokens of `sequences` sequences:
key-pre (before RoPE), key-post (after), key-centred (before RoPE, minus the channel's mean over all but the last sequence)
and value. package runs kvquant-plus-plus 0.1.17 (the module `kvquant`) and turboquant 0.2.0 (for numpy before 2.0: it gets back the name
that it misses) on the last fifth of the rows of each file and prints bits per value with norms and error over energy, averaged as
claims_bench.cpp does. speed prints the seconds of encoding and decoding normal rows of 128 channels, as `test_vector "[.bench]"` does.
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


def import_packages(path):
    sys.path.insert(0, str(path))
    if not hasattr(np, "trapz"):
        np.trapz = np.trapezoid


def speed(args):
    import_packages(args.path)
    import time

    import torch
    from kvquant.correction import LowRankCorrection
    from kvquant.delta import DeltaKVCache
    from kvquant.entropy import HuffmanCodec
    from kvquant.product_quantizer import ProductQuantizer
    from kvquant.quantizer import KVQuantMSE
    from turboquant import TurboQuantMSE

    torch.set_num_threads(args.threads)
    dim, block = 128, 1 << 16  # in blocks: the packages' temporaries would not fit otherwise
    x = torch.randn(args.rows, dim, generator=torch.Generator().manual_seed(0))

    def timed(name, encode, decode, rows=args.rows):
        encode(x[:256])
        took = [0.0, 0.0]
        for part in x[:rows].split(block):
            times = [time.perf_counter()]
            codes = encode(part)
            times.append(time.perf_counter())
            decode(codes)
            times.append(time.perf_counter())
            took = [sum_ + after - before for sum_, before, after in zip(took, times, times[1:])]
        scale = (1 << 20) / rows
        print(f"| {name} | {took[0] * scale:.2f} | {took[1] * scale:.2f} |", flush=True)

    print(f"seconds for 2^20 rows of {dim}, {args.threads} threads\n| method | encode | decode |\n|---|---|---|")
    with torch.no_grad():
        for bits in (2, 3, 4):
            mse = KVQuantMSE(dim, bits)
            timed(f"kvquant KVQuantMSE {bits}", mse.quantize, mse.dequantize)
            turbo = TurboQuantMSE(dim, bits, device="cpu")
            timed(f"turboquant TurboQuantMSE {bits}", turbo.quantize, lambda codes: turbo.dequantize(*codes))
        product = ProductQuantizer(dim, dim // 4, 8)
        product.calibrate(x[: 1 << 14])
        timed(f"kvquant ProductQuantizer {dim // 4} x 8", product.quantize, product.dequantize)
        mse = KVQuantMSE(dim, 3)
        correction = LowRankCorrection(mse, 4)
        timed("kvquant LowRankCorrection 4 on KVQuantMSE 3, pages of 128", lambda part: correction(part.reshape(-1, 128, dim)),
              lambda codes: None, min(args.rows, 1 << 14))  # its encoder decodes
        four, huffman = KVQuantMSE(dim, 4), HuffmanCodec(4, dim)
        timed("kvquant HuffmanCodec 4, codes of 256 rows", lambda part: huffman.encode(four.quantize(part).indices.flatten()),
              lambda codes: huffman.decode(codes, 256 * dim), 256)  # Python loops
        delta = DeltaKVCache(dim, 3, anchor_every=64)
        timed("kvquant DeltaKVCache 3, keys and values, 256 rows", lambda part: [delta.push(row, row) for row in part],
              lambda codes: delta.get(), 256)


def package(args):
    import_packages(args.path)
    import torch
    from kvquant.correction import LowRankCorrection
    from kvquant.delta import DeltaKVCache
    from kvquant.entropy import analyse
    from kvquant.product_quantizer import ProductQuantizer
    from kvquant.quantizer import KVQuantMSE
    from turboquant import TurboQuantMSE

    torch.manual_seed(0)
    codebooks = {}

    def once(kind, *arguments, **named):  # codebooks take seconds
        key = (kind, *arguments)
        if key not in codebooks:
            codebooks[key] = kind(*arguments, **named)
        return codebooks[key]
    page, anchor = 128, 64
    half, single = 16, 32  # bits: norms and factors counted as fp16; anchors as the package keeps them

    def methods(train, judged):
        """Name, bits per value and decoded rows; judged is a multiple of `page` rows."""
        rows, dim = judged.shape
        for bits in (2, 3, 4):
            mse = once(KVQuantMSE, dim, bits)
            yield f"KVQuantMSE {bits}", bits + half / dim, mse(judged)
            turbo = once(TurboQuantMSE, dim, bits, device="cpu")
            yield f"turboquant TurboQuantMSE {bits}", bits + half / dim, turbo.dequantize(*turbo.quantize(judged))
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
    three = commands.add_parser("speed")
    three.add_argument("--path", type=pathlib.Path, required=True)
    three.add_argument("--rows", type=int, default=1 << 20)
    three.add_argument("--threads", type=int, default=1)
    three.set_defaults(run=speed)
    args = parser.parse_args()
    args.run(args)
