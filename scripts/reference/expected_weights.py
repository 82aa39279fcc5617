"""Expected numbers for quantized weights, on the tiny model gqa-bias: squared gradients of its weights by autograd,
exact weights by numpy, k-means by scikit-learn, and what the model loses with a file of weights that h5py wrote.

    python expected_weights.py [--models tests/data/tiny] [--out tests/golden]

Writes weights_gqa-bias.json and weights_gqa-bias.h5.
- sequences: two lists of ids; loss: of each; roots: per layer and matrix sqrt(sum over the sequences of g²), g = d (mean
  next-token loss) / d weight, [rows, columns], six significant digits.
- exact: of the matrix `gate` of layer 0 with 2 % exact weights: flat indices, ascending, and the same with 0.45 %.
- kmeans: of every fourth row of that matrix, exact weights (2 %) left out: sum of (r / max r)² (w - centroid)² for 8
  centroids, the best of 200 starts of scikit-learn.
- head_grads: per layer the gradients of keys and values that each query head contributes, for the first sequence.
- weights_gqa-bias.h5 follows lib/artifacts/FORMAT.md: 3 bits, 1 % exact; codebooks are quantiles of the row (no
  k-means: the file tests reading). loss_quantized: of both sequences with the weights that it stands for.
"""

import argparse
import hashlib
import json
import pathlib

import h5py
import numpy as np
import torch
from sklearn.cluster import KMeans
from transformers import AutoModelForCausalLM

import make_tiny
import tokenizer_files as tok

NAME, BITS, SPARSE = "gqa-bias", 3, 0.01
PARTS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
         "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def loss_of(model, ids):
    batch = torch.tensor([ids])
    logits = model(batch, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1].double(), batch[0, 1:])


def parameter(model, layer, part):
    module = model.model.layers[layer]
    for name in PARTS[part].split("."):
        module = getattr(module, name)
    return module.weight


def head_gradients(model, ids, heads, kv_heads, head_dim):
    """Keys and values repeated for every query head, as leaves' children that keep their gradients."""
    kept = {}
    group = heads // kv_heads

    def repeat(key):
        def hook(module, inputs, output):
            tokens = output.shape[1]
            copies = output.view(1, tokens, kv_heads, 1, head_dim).expand(-1, -1, -1, group, -1)
            copies = copies.reshape(1, tokens, heads * head_dim)
            copies.retain_grad()
            kept[key] = copies
            return copies
        return hook

    hooks = []
    for layer, block in enumerate(model.model.layers):
        block.self_attn.num_key_value_groups = 1  # every query head has its own kv head now
        hooks += [block.self_attn.k_proj.register_forward_hook(repeat((layer, "key"))),
                  block.self_attn.v_proj.register_forward_hook(repeat((layer, "value")))]
    loss_of(model, ids).backward()
    for hook in hooks:
        hook.remove()
    for block in model.model.layers:
        block.self_attn.num_key_value_groups = group
    return [{side: kept[layer, side].grad[0].view(-1, heads, head_dim).double().numpy() for side in ("key", "value")}
            for layer in range(len(model.model.layers))]


def exact_positions(weights, roots, fraction):
    """Stable sorts: ties go to the lower index."""
    count = weights.size
    total, sensitive = round(fraction * count), min(round(fraction * count), round(0.0005 * count))
    first = np.argsort(-roots.reshape(-1), kind="stable")[:sensitive]
    size = np.abs(weights.reshape(-1)).astype(np.float64)
    size[first] = -1
    return np.sort(np.concatenate([first, np.argsort(-size, kind="stable")[:total - sensitive]]))


def quantized(weights, roots):
    """What the file says of a matrix, and the weights that this stands for."""
    rows, columns = weights.shape
    exact = exact_positions(weights, roots, SPARSE)
    levels = np.quantile(weights.astype(np.float64), (np.arange(2**BITS) + 0.5) / 2**BITS, axis=1).T
    books = (levels * 8).astype(np.float16)  # exponent -3
    decoded = books.astype(np.float32) / np.float32(8)
    codes = np.abs(weights[:, :, None] - decoded[:, None, :]).argmin(axis=2)
    values = np.take_along_axis(decoded, codes, axis=1)
    codes.reshape(-1)[exact] = 0
    stored = (weights.reshape(-1)[exact] * 8).astype(np.float16)
    values.reshape(-1)[exact] = stored.astype(np.float32) / np.float32(8)
    bits = ((codes[:, :, None] >> np.arange(BITS)) & 1).astype(np.uint8).reshape(rows, columns * BITS)
    packed = np.packbits(bits, axis=1, bitorder="little")
    row_start = np.searchsorted(exact, np.arange(rows + 1) * columns).astype("<i4")
    return dict(codebooks=books, codes=packed, row_start=row_start, sparse_columns=(exact % columns).astype("<u2"),
                sparse_values=stored), values


def write_file(path, model, v, gguf):
    """Sets the model's weights to those that the file stands for."""
    taken = total = 0
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        file.attrs["kvq_schema"] = "weights"
        file.attrs["schema_version"] = "1.3"
        file.attrs["producer"] = "h5py"
        file.attrs["model_sha256"] = hashlib.sha256(gguf.read_bytes()).hexdigest()
        for name, letter in (("tokenizer", "2"), ("text", "3")):
            file.attrs[f"{name}_sha256"] = letter * 64
        file.attrs["config"] = ""
        file.attrs["parents"] = "weight-fisher " + "4" * 64 + "\n"
        for name in ("layers", "heads", "kv_heads", "head_dim", "hidden"):
            file.attrs[name] = v[name]
        file.attrs["intermediate"] = v["ffn"]
        file.attrs["scheme"] = f"w{BITS}-s{100 * SPARSE:g}%"
        file["fingerprints"] = np.array([7, 2**63], "<u8")
        for layer in range(v["layers"]):
            for part in PARTS:
                weight = parameter(model, layer, part)
                matrix, values = quantized(weight.detach().numpy(), weight.roots)
                group = file.create_group(f"layers/{layer:02}/{part}")
                group.attrs["exponent"] = -3
                for name, data in matrix.items():
                    group[name] = data
                    taken += data.nbytes
                taken += 1  # the exponent
                total += weight.numel()
                weight.data = torch.from_numpy(values)
        file.attrs["bits_counted"] = 8 * taken / total
        file.attrs["complete"] = 1


def digits(array, count):
    return [float(f"{value:.{count}g}") for value in np.asarray(array, np.float64).reshape(-1)]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=root / "tests/data/tiny")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden")
    args = parser.parse_args()
    torch.set_num_threads(1)
    v = next(variant for variant in make_tiny.VARIANTS if variant["name"] == NAME)
    rng = np.random.Generator(np.random.PCG64(11))
    sequences = [[int(i) for i in rng.integers(3, make_tiny.VOCAB, 24)] for _ in range(2)]
    model = load(args.models / NAME / "hf")
    sums, losses = {}, []
    for ids in sequences:
        model.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        losses.append(float(loss))
        for layer in range(v["layers"]):
            for part in PARTS:
                square = parameter(model, layer, part).grad.double().numpy() ** 2
                sums[layer, part] = sums.get((layer, part), 0) + square
    roots = {key: np.sqrt(value) for key, value in sums.items()}
    model.zero_grad()
    head_grads = head_gradients(model, sequences[0], v["heads"], v["kv_heads"], v["head_dim"])

    gate, gate_roots = parameter(model, 0, "gate").detach().numpy(), roots[0, "gate"]
    exact = exact_positions(gate, gate_roots, 0.02)
    kmeans = []
    for row in range(0, gate.shape[0], 4):
        dense = np.setdiff1d(np.arange(gate.shape[1]), exact[exact // gate.shape[1] == row] % gate.shape[1])
        share = (gate_roots[row] / gate_roots[row].max()) ** 2
        fit = KMeans(8, n_init=200, random_state=0, algorithm="lloyd", tol=0).fit(
            gate[row, dense].reshape(-1, 1).astype(np.float64), sample_weight=share[dense])
        kmeans.append({"row": row, "error": float(f"{fit.inertia_:.8g}")})
    for key, value in roots.items():
        parameter(model, *key).roots = value
    write_file(args.out / f"weights_{NAME}.h5", model, v, args.models / NAME / "model.gguf")
    with torch.no_grad():
        quantized_losses = [float(loss_of(model, ids)) for ids in sequences]
    document = {
        "name": NAME, "sequences": sequences, "loss": digits(losses, 9), "loss_quantized": digits(quantized_losses, 9),
        "exact": {"0.02": [int(i) for i in exact], "0.0045": [int(i) for i in exact_positions(gate, gate_roots, 0.0045)]},
        "kmeans": kmeans,
        "roots": [{part: digits(roots[layer, part], 6) for part in PARTS} for layer in range(v["layers"])],
        "head_grads": [{side: digits(grads[side], 6) for side in grads} for grads in head_grads],
    }
    tok.write_json(args.out / f"weights_{NAME}.json", document)
    print(losses, quantized_losses)


if __name__ == "__main__":
    main()
