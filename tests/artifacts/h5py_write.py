"""Writes the three artifacts with h5py, from FORMAT.md alone: h5py_write.py KIND FILE. h5py_test.cpp knows the values."""
import sys

import h5py
import numpy

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 4
SEQUENCES, SEQLEN = 2, 3
TOKENS = SEQUENCES * SEQLEN


def ramp(shape, dtype, first=0.0, step=1.0):
    count = int(numpy.prod(shape))
    return (first + step * numpy.arange(count, dtype=numpy.float64)).reshape(shape).astype(dtype)


def root(file, schema):
    file.attrs["kvq_schema"] = schema
    file.attrs["schema_version"] = "1.0"
    file.attrs["producer"] = "h5py"
    for name, letter in (("model", "1"), ("tokenizer", "2"), ("text", "3")):
        file.attrs[f"{name}_sha256"] = letter * 64
    file.attrs["config"] = "seed = 1\n"
    file.attrs["parents"] = "calibration " + "4" * 64 + "\n"
    for name, value in (("layers", LAYERS), ("heads", HEADS), ("kv_heads", KV_HEADS), ("head_dim", HEAD_DIM)):
        file.attrs[name] = value


def rope(file):
    file.attrs["rope_kind"] = "linear"
    file.attrs["rope_theta"] = 10000.0
    file.attrs["rope_rotary_dim"] = HEAD_DIM
    file.attrs["rope_factor"] = 2.0
    file.attrs["rope_low_freq_factor"] = 1.0
    file.attrs["rope_high_freq_factor"] = 4.0
    file.attrs["rope_original_context"] = 0.0


def calibration(file, gradients=True):
    rope(file)
    file.attrs["bos"] = "never"
    file["tokens"] = ramp((SEQUENCES, SEQLEN), "<i4", 10)
    file["domain"] = ["prose", "code"]
    file["loss"] = numpy.array([1.5, 2.5])
    for layer in range(LAYERS):
        group = file.create_group(f"layers/{layer:02}")
        for index, name in enumerate(("key", "value", "key_grad", "value_grad")[: 4 if gradients else 2]):
            data = ramp((TOKENS, KV_HEADS, HEAD_DIM), "<f2", 100 * layer + 10 * index)
            # Anything that HDF5 itself can read will do: chunked, compressed, or plain.
            layout = dict(chunks=(4, KV_HEADS, HEAD_DIM), shuffle=True, compression="gzip") if index % 2 == 0 else {}
            group.create_dataset(name, data=data, **layout).attrs["scale"] = numpy.float32(0.5)
        group["query_moment"] = ramp((KV_HEADS, HEAD_DIM, HEAD_DIM), "<f8", layer)
        group["attention_mass"] = ramp((TOKENS,), "<f4", HEADS - (TOKENS - 1) / 2)


def forward(file):
    calibration(file, gradients=False)
    file.attrs["gradients"] = 0
    file.attrs["metrics"] = 1
    for layer in range(LAYERS):
        for index, name in enumerate(("key_metric", "value_metric")):
            block = numpy.full((HEAD_DIM, HEAD_DIM), float(layer)) + (2 + 2 * index) * numpy.eye(HEAD_DIM)
            file[f"layers/{layer:02}/{name}"] = numpy.array([block] * KV_HEADS)


def thresholds(file):
    file.attrs["cap"] = 0.0
    file.attrs["set_count"] = 1
    one = file.create_group("sets/00")
    one.attrs["fraction"] = 0.01
    one.attrs["sinks"] = 1
    for index, name in enumerate(("key", "key_post", "value")):
        for offset, array in enumerate(("minimum", "lower", "upper", "maximum")):
            one[f"{name}/{array}"] = ramp((LAYERS, KV_HEADS, HEAD_DIM), "<f4", 1000 * index + offset)
        for rate in ("outlier_rate", "capped_outlier_rate", "online_outlier_rate"):
            one[f"{name}/{rate}"] = ramp((LAYERS,), "<f8", 0.25, 0.25)


def quantizer(file):
    rope(file)
    file.attrs["recipe"] = "nuq2:qnorm"
    side = 'codebook = "nuq"\nbits = 2\nqnorm = true\n'
    file.attrs["recipe_toml"] = f"sinks = 1\n[key]\n{side}[value]\n{side}"
    file.attrs["bits_nominal"] = 2.0
    file.attrs["bits_counted_32k"] = 2.25
    file.attrs["table_bytes"] = 1000
    file["fingerprints"] = numpy.array([5, 2**63], "<u8")
    for layer in range(LAYERS):
        for name in ("key", "value"):
            group = file.create_group(f"layers/{layer:02}/{name}")
            group.attrs["exponent"] = -layer
            group.attrs["outlier_rate"] = 0.0
            if name == "key":
                group["lower"] = ramp((KV_HEADS, HEAD_DIM), "<f4", layer)
                group["upper"] = ramp((KV_HEADS, HEAD_DIM), "<f4", layer + 10)
            group["centroids"] = ramp((1, 4), "<f4", -1.5)
            group["decoded"] = ramp((1, 4), "<f4", -1.25)


with h5py.File(sys.argv[2], "w") as output:
    root(output, "calibration" if sys.argv[1] == "forward" else sys.argv[1])
    globals()[sys.argv[1]](output)
    output.attrs["complete"] = 1
