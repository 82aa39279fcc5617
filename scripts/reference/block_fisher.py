"""What numpy makes of block-Fisher rounding on small data: tests/golden/block_fisher.json.

    python block_fisher.py

- views: H = E[g g^T] of the synthetic calibration of expected_fit.py (layer 1), plain, with clipped gradients, and of values
  rotated with R written out as a matrix (Sylvester): H' = R^-1 H R^-T.
- factors: for random positive definite H: order, U = cholesky(inv(H))^T in that order, as LAPACK gives them.
- encodings: codes and restored values of random tokens with feedback and coordinate descent, in double precision, from the
  formulas of docs/method.md, one token and one channel at a time.
"""

import json
import pathlib

import numpy as np

from expected_fit import DIM, HEADS, TOKENS, WIDTH, counted, tensor

LAYER, SINKS = 1, 1


def clipped(x, gradient, quantile):
    variance = x[counted(SINKS)].var(axis=0)
    energy = np.sqrt((gradient**2 * variance).sum(axis=1))
    limit = np.quantile(energy[counted(SINKS)], quantile)
    return gradient * np.minimum(1, limit / energy)[:, None]


def blocks(gradient):
    g = gradient[counted(SINKS)].reshape(-1, HEADS, DIM)
    return np.einsum("thi,thj->hij", g, g) / len(g)


def hadamard(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)


def rotations(x):
    """R of each head."""
    x = x[counted(SINKS)].reshape(-1, HEADS, DIM)
    result = []
    for head in range(HEADS):
        deviation = x[:, head].std(axis=0)
        pooled = np.sqrt((deviation**2).mean())
        result.append(np.diag(deviation**-0.5) @ hadamard(DIM) * pooled**-0.5)
    return result


def views():
    result = []
    for side, name in ((0, "key"), (1, "value")):
        x, gradient = tensor(LAYER, side, 0), tensor(LAYER, side, 1)
        result.append({"side": name, "clip": 1.0, "rotate": False, "blocks": blocks(gradient).ravel().tolist()})
        clip = clipped(x, gradient, 0.9)
        result.append({"side": name, "clip": 0.9, "rotate": False, "blocks": blocks(clip).ravel().tolist()})
    matrices = rotations(x)
    inverses = [np.linalg.inv(matrix) for matrix in matrices]
    turned = np.array([r @ h @ r.T for r, h in zip(inverses, blocks(clip))])
    moved = np.concatenate([x.reshape(TOKENS, HEADS, DIM)[:, h] @ matrices[h] for h in range(HEADS)], 1)
    result.append({"side": "value", "clip": 0.9, "rotate": True, "blocks": turned.ravel().tolist(),
                   "first_rows": moved[:3].ravel().tolist()})
    return result


def random_block(rng, size):
    factor = rng.normal(size=(size, size + 2)) * np.exp(rng.normal(size=(size, 1)))
    return factor @ factor.T / size


def factor(block, scales, order, damp):
    size = len(block)
    h = block / np.trace(block) * size + damp * np.eye(size)
    energy = np.diag(h) * scales**2
    positions = {"energy": np.argsort(-energy, kind="stable"), "ascending": np.argsort(energy, kind="stable"),
                 "natural": np.arange(size)}[order]
    upper = np.linalg.cholesky(np.linalg.inv(h[np.ix_(positions, positions)])).T
    return h, positions, upper


def factors(rng):
    result = []
    for size, order, damp in ((1, "energy", 0.01), (4, "energy", 0.01), (9, "ascending", 0.1), (16, "natural", 0.0), (16, "energy", 0.01)):
        block, scales = random_block(rng, size), rng.uniform(0.2, 3, size)
        h, positions, upper = factor(block, scales, order, damp)
        pivots = np.empty(size)
        pivots[positions] = np.diag(upper) ** -2
        updates = np.triu(upper / np.diag(upper)[:, None], 1)
        result.append({"block": block.ravel().tolist(), "scales": scales.tolist(), "order": order, "damp": damp,
                       "hessian": h.ravel().tolist(), "positions": positions.tolist(), "updates": updates.ravel().tolist(),
                       "pivots": pivots.tolist()})
    return result


def nearest(target, zero, scale, book):
    return int(np.argmin(np.abs((target - zero) / scale - book)))


def encode_vector(x, outlier, zero, scale, books, h, positions, upper, feedback, passes):
    size = len(x)
    compensated, restored, codes = x.copy(), np.empty(size), np.zeros(size, int)

    def put(channel, target):
        if outlier[channel]:
            restored[channel] = np.float16(np.float32(target))
        else:
            codes[channel] = nearest(target, zero[channel], scale[channel], books[channel])
            restored[channel] = zero[channel] + scale[channel] * books[channel][codes[channel]]

    for place, channel in enumerate(positions):
        put(channel, compensated[channel])
        if feedback:
            error = compensated[channel] - restored[channel]
            for later in range(place + 1, size):
                compensated[positions[later]] -= upper[place, later] / upper[place, place] * error
    for _ in range(passes):
        for channel in positions[::-1]:
            error = x - restored
            best = -(h[channel] @ error - h[channel, channel] * error[channel]) / h[channel, channel]
            put(channel, x[channel] - best)
    return codes, restored


def encodings(rng):
    """Keys: static ranges, 4 % of outliers, two heads; 20 tokens."""
    result = []
    for size, feedback, passes, pair in ((6, True, 0, False), (6, True, 3, False), (12, False, 2, False), (12, True, 2, True)):
        heads, tokens = 2, 20
        mix = [np.linalg.cholesky(random_block(rng, size)) for _ in range(heads)]
        x = np.stack([rng.normal(size=(tokens, size)) @ m.T for m in mix], 1).astype(np.float32).astype(float)
        lower, upper_end = (np.quantile(x, q, axis=0).astype(np.float32).astype(float) for q in (0.02, 0.98))
        zero, scale = (lower + upper_end) / 2, (upper_end - lower) / 2
        choices = [1, 2, 3, 4] if pair else [2]
        book_list = [np.sort(rng.uniform(-1, 1, 2**bits)).astype(np.float32).astype(float) for bits in choices]
        widths = np.full((heads, size), 2)
        if pair:
            widths[:] = np.tile([1, 2, 4, 1, 3, 1], 2)[:size]
        entry = {"head_dim": size, "feedback": feedback, "icm": passes, "pair": pair, "x": x.ravel().tolist(),
                 "lower": lower.ravel().tolist(), "upper": upper_end.ravel().tolist(), "widths": widths.ravel().tolist(),
                 "books": [book.tolist() for book in book_list], "blocks": [], "codes": [], "restored": []}
        for head in range(heads):
            block = random_block(rng, size)
            entry["blocks"].append(block.ravel().tolist())
            h, positions, upper = factor(block, scale[head], "energy", 0.01)
            books = [book_list[choices.index(width)] for width in widths[head]]
            for token in range(tokens):
                outlier = (x[token, head] < lower[head]) | (x[token, head] > upper_end[head])
                codes, restored = encode_vector(x[token, head], outlier, zero[head], scale[head], books, h, positions, upper,
                                                feedback, passes)
                entry["codes"].append(codes.tolist())  # [heads, tokens, head_dim]
                entry["restored"].append(restored.tolist())
        result.append(entry)
    return result


def main():
    rng = np.random.default_rng(7)
    document = {"views": views(), "factors": factors(rng), "encodings": encodings(rng)}
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/block_fisher.json"
    path.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
