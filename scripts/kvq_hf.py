#!/usr/bin/env python3
"""Runs a transformers model with keys and values quantized as a quantizer.h5 of kvq says (lib/artifacts/FORMAT.md).

    import kvq_hf
    quantizer = kvq_hf.Quantizer("nuq3-1pct.h5")
    with quantizer.attached(model):      # any decoder whose layers have self_attn.k_proj and .v_proj
        model(ids)                       # or model.generate, lm-eval-harness, your own code

or as a program, perplexity over windows as `kvq-eval perplexity` cuts them:

    python kvq_hf.py --model HF_FOLDER --text FILE [--quantizer Q.h5 …] [--seqlen 2048] [--max-windows N] [--json]

Hooks on the projections replace each token's keys (before RoPE, or after it where the recipe says so) and values by what the
cache would give back, so cached generation works as well. Needs torch and h5py, and transformers for the model itself.
Written from FORMAT.md and the papers, not from kvq's C++: an independent check of it. Batches: without left padding, which
would stand where a sequence's first tokens are kept exact.
"""
import argparse
import contextlib
import json
import math
import sys

import h5py
import torch


class Side:
    """Quantizer of the keys or the values of one layer."""

    KNOWN = set("codebook bits axis range rope outliers cap weights share qnorm widths levels rotate feedback icm order damp clip".split())

    def __init__(self, group, recipe, sinks, heads, head_dim):
        if unknown := set(recipe) - self.KNOWN:
            raise ValueError(f"{group.name}: this script does not know the recipe's {', '.join(sorted(unknown))}")
        self.axis, self.sinks, self.heads, self.head_dim = recipe["axis"], sinks, heads, head_dim
        self.range = recipe.get("range", "static" if self.axis == "channel" else "online")
        if (self.axis, self.range) not in {("channel", "static"), ("channel", "window"), ("token", "online")}:
            raise ValueError(f"{group.name}: this script does not know axis = '{self.axis}' with range = '{self.range}'")
        self.outliers, self.cap = recipe.get("outliers", 0.0), recipe.get("cap", 0.0)
        self.post_rope = recipe.get("rope", "pre") == "post"
        self.unit = 2.0 ** int(group.attrs["exponent"])
        tensor = lambda name: torch.from_numpy(group[name][...].astype("float32"))
        if self.range == "static":
            self.lower, self.upper = tensor("lower").flatten(), tensor("upper").flatten()
        # For each channel its boundaries between levels, padded with infinity, and what its codes stand for.
        width = heads * head_dim
        if recipe.get("widths", "flat") == "pair":
            names = [f"_{bits}" for bits in group["widths"][...].flatten()]
        else:
            names = [""] * width
        books = {name: (tensor("centroids" + name), tensor("decoded" + name)) for name in set(names)}
        most = max(centroids.shape[1] for centroids, _ in books.values())
        self.boundaries, self.decoded = torch.full((width, most), torch.inf), torch.zeros(width, most + 1)
        for channel, name in enumerate(names):
            centroids, decoded = (book[channel * book.shape[0] // width] for book in books[name])
            self.boundaries[channel, : len(centroids) - 1] = 0.5 * centroids[:-1] + 0.5 * centroids[1:]
            self.decoded[channel, : len(decoded)] = decoded
        self.mixing = self.order = None
        if recipe.get("rotate", "none") == "hadamard":
            matrix = torch.ones(1, 1)
            while head_dim % (2 * len(matrix)) == 0:
                matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
            self.mixing, self.scale = matrix / math.sqrt(len(matrix)), tensor("rotation_scale").flatten()
        self.feedback, self.icm = recipe.get("feedback", False), recipe.get("icm", 0)
        if self.feedback or self.icm:
            self.order = torch.from_numpy(group["coding_order"][...].astype("int64"))
            self.updates = tensor("feedback") if self.feedback else None
            self.fisher = torch.stack([h[o][:, o] for h, o in zip(tensor("fisher"), self.order)]) if self.icm else None

    def half(self, x):
        """What is stored as fp16(x / unit). Overflow is an error in kvq, too."""
        stored = (x / self.unit).to(torch.float16).to(torch.float32)
        if not torch.isfinite(stored).all():
            raise OverflowError("an exact value does not fit fp16: the calibration saw nothing as large")
        return stored * self.unit

    def mix(self, x):
        return (x.reshape(x.shape[0], -1, len(self.mixing)) @ self.mixing.to(x.device)).reshape(x.shape)

    def round(self, x, zero, scale, exact, channels):
        """Nearest levels of these channels, `[tokens, channels]`; ties belong to the lower one. Exact values as they are stored."""
        inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
        x_hat = (x - zero) * torch.where(torch.isfinite(inverse), inverse, torch.zeros_like(inverse))
        codes = torch.searchsorted(self.boundaries[channels].to(x.device), x_hat.T.contiguous())
        result = zero + scale * self.decoded[channels].to(x.device).gather(1, codes).T
        return torch.where(exact, self.half(torch.where(exact, x, torch.zeros_like(x))), result)

    def range_of_channels(self, x):
        """Zero and scale `[1, width]`, and which values stay exact."""
        if self.range == "window":  # the oracle: percentiles of the window itself, interpolated as numpy does
            ordered = x.sort(dim=0).values.double()
            ends = []
            for q in (self.outliers / 2, 1 - self.outliers / 2):
                low = math.floor(q * (x.shape[0] - 1))
                high = min(low + 1, x.shape[0] - 1)
                ends.append((ordered[low] + (ordered[high] - ordered[low]) * (q * (x.shape[0] - 1) - low)).float())
            lower, upper = ends
        else:
            lower, upper = self.lower.to(x.device), self.upper.to(x.device)
        zero, scale = 0.5 * lower + 0.5 * upper, 0.5 * upper - 0.5 * lower
        exact = ((x < lower) | (x > upper)) & (self.outliers > 0)
        if self.cap:
            limit = math.ceil(self.cap * x.shape[1] - 1e-9)
            excess = torch.where(scale > 0, torch.maximum(lower - x, x - upper) / scale, torch.full_like(x, torch.inf))
            order = torch.where(exact, excess, torch.full_like(excess, -torch.inf)).argsort(dim=1, descending=True, stable=True)
            exact &= torch.zeros_like(exact).scatter_(1, order[:, :limit], True)
        return zero[None], scale[None], exact

    def range_of_tokens(self, x):
        """Zero and scale `[tokens, 1]`, and which values stay exact: the k largest, then the k smallest of the rest."""
        k = 0 if self.outliers == 0 else max(1, math.floor(self.outliers * x.shape[1] / 2 + 0.5))
        exact = torch.zeros_like(x, dtype=torch.bool)
        if 2 * k >= x.shape[1]:
            return torch.zeros_like(x[:, :1]), torch.zeros_like(x[:, :1]), ~exact
        if k:  # ties to the lower channel
            exact.scatter_(1, x.argsort(dim=1, descending=True, stable=True)[:, :k], True)
            exact.scatter_(1, torch.where(exact, torch.full_like(x, torch.inf), x).argsort(dim=1, stable=True)[:, :k], True)
        low = torch.where(exact, torch.full_like(x, torch.inf), x).amin(dim=1, keepdim=True)
        high = torch.where(exact, torch.full_like(x, -torch.inf), x).amax(dim=1, keepdim=True)
        zero = self.half(0.5 * low + 0.5 * high)
        return zero, self.half(torch.maximum(high - zero, zero - low)), exact

    def round_in_order(self, x, zero, scale, exact):
        """One channel of every head at a time: its error goes into those to come, then coordinate descent on eᵀHe."""
        first = torch.arange(self.heads)[:, None] * self.head_dim
        columns = (self.order + first).flatten().to(x.device)  # channel at each coding position
        spread = lambda range_: range_.expand(x.shape[0], x.shape[1])[:, columns].reshape(x.shape[0], self.heads, -1)
        y, zero, scale, exact = spread(x).clone(), spread(zero), spread(scale), spread(exact)
        target, q = y.clone(), torch.empty_like(y)
        step = lambda j, value: self.round(value, zero[:, :, j], scale[:, :, j], exact[:, :, j], (self.order + first)[:, j])
        for j in range(self.head_dim):
            q[:, :, j] = step(j, y[:, :, j])
            if self.feedback:
                y[:, :, j + 1 :] -= self.updates[:, j, j + 1 :].to(x.device) * (y[:, :, j] - q[:, :, j])[:, :, None]
        if self.icm:
            fisher = self.fisher.to(x.device)
            rest = torch.einsum("thj,hjk->thk", target - q, fisher)
            for j in list(range(self.head_dim))[::-1] * self.icm:
                better = step(j, q[:, :, j] + rest[:, :, j] / fisher[:, j, j])
                rest -= fisher[:, j] * (better - q[:, :, j])[:, :, None]
                q[:, :, j] = better
        return torch.empty_like(x).index_copy_(1, columns, q.reshape(x.shape))

    def __call__(self, x, first_position):
        """`x`: `[tokens, kv_heads, head_dim]` of one sequence, its first token at `first_position`."""
        flat = x.reshape(x.shape[0], -1).float()
        sinks = min(max(self.sinks - first_position, 0), flat.shape[0])
        coded = flat[sinks:]
        if self.range == "window" and first_position:
            raise ValueError("range=window takes the range of a whole window and cannot continue one")
        if coded.shape[0]:
            if self.mixing is not None:
                coded = self.mix(coded * self.scale.to(x.device))
            ranges = (self.range_of_channels if self.axis == "channel" else self.range_of_tokens)(coded)
            if self.order is not None:
                coded = self.round_in_order(coded, *ranges)
            else:
                coded = self.round(coded, *ranges, slice(None))
            if self.mixing is not None:
                coded = self.mix(coded) / self.scale.to(x.device)
        return torch.cat([self.half(flat[:sinks]), coded]).reshape(x.shape).to(x.dtype)


def rotate(x, cos, sin):
    """RoPE as transformers has it, on `[batch, tokens, heads, head_dim]`. With -sin: its inverse."""
    half = x.shape[-1] // 2
    return x * cos.unsqueeze(2) + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin.unsqueeze(2)


class Quantizer:
    """A quantizer.h5; attach it to a model of the shape that it was fitted for."""

    def __init__(self, path):
        import tomllib  # Python 3.11

        with h5py.File(path, "r") as file:
            text = lambda name: file.attrs[name].decode() if isinstance(file.attrs[name], bytes) else file.attrs[name]
            if file.attrs.get("complete") != 1 or text("kvq_schema") != "quantizer" or text("schema_version").split(".")[0] != "1":
                raise ValueError(f"{path}: is no complete quantizer file of schema version 1")
            self.name, recipe = text("recipe"), tomllib.loads(text("recipe_toml"))
            unknown = set(recipe) - {"sinks", "key", "value"}
            if unknown:
                raise ValueError(f"{path}: this script does not know the recipe's {', '.join(sorted(unknown))}")
            self.heads, self.head_dim = int(file.attrs["kv_heads"]), int(file.attrs["head_dim"])
            self.layers = []
            for layer in range(int(file.attrs["layers"])):
                group = file[f"layers/{layer:02}"]
                self.layers.append({side: Side(group[side], {"axis": axis, **recipe[side]}, recipe.get("sinks", 1), self.heads, self.head_dim)
                                    for side, axis in (("key", "channel"), ("value", "token"))})

    @contextlib.contextmanager
    def attached(self, model):
        """Quantizes the model's keys and values as long as the context lasts."""
        blocks = model.get_decoder().layers
        if len(blocks) != len(self.layers):
            raise ValueError(f"{self.name} is for {len(self.layers)} layers, the model has {len(blocks)}")
        handles = []
        try:
            for block, sides in zip(blocks, self.layers):
                handles += self._attach(block.self_attn, sides)
            yield model
        finally:
            for handle in handles:
                handle.remove()

    def _attach(self, attention, sides):
        state = {}

        def before(module, args, kwargs):
            state["angles"] = kwargs["position_embeddings"]
            state["positions"] = kwargs.get("position_ids")

        def quantize(side):
            def hook(module, args, output):
                batch, tokens = output.shape[:2]
                x = output.reshape(batch, tokens, self.heads, self.head_dim)
                cos, sin = (angle.expand(batch, -1, -1).float() for angle in state["angles"])
                if side.post_rope:
                    x = rotate(x.float(), cos, sin)
                positions = state["positions"]
                first = [0] * batch if positions is None else positions[:, 0].expand(batch).tolist()
                x = torch.stack([side(x[sequence], first[sequence]) for sequence in range(batch)])
                if side.post_rope:  # the model rotates once more
                    x = rotate(x, cos, -sin)
                return x.reshape(output.shape).to(output.dtype)

            return hook

        keys = getattr(attention, "k_norm", attention.k_proj)  # keys are quantized after their norm, where there is one
        return [attention.register_forward_pre_hook(before, with_kwargs=True), keys.register_forward_hook(quantize(sides["key"])),
                attention.v_proj.register_forward_hook(quantize(sides["value"]))]


@torch.inference_mode()
def window_nll(model, ids):
    """Mean next-token loss of one window, nats."""
    logits = model(ids[None], use_cache=False).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, ids[1:]).item()


def main():
    parser = argparse.ArgumentParser(description="Perplexity of a transformers model with quantized keys and values.")
    parser.add_argument("--model", required=True, help="Hugging Face folder, or a GGUF file")
    parser.add_argument("--text", required=True, help="UTF-8 text, or a .json list of token ids")
    parser.add_argument("--quantizer", action="append", default=[], help="quantizer.h5; repeat for several")
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--max-windows", type=int, default=0, help="0: all")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": options.model}
    if options.model.endswith(".gguf"):
        folder, _, name = options.model.rpartition("/")
        place = {"pretrained_model_name_or_path": folder or ".", "gguf_file": name}
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=getattr(torch, options.dtype), local_files_only=True).to(options.device).eval()
    with open(options.text, encoding="utf-8", newline="") as file:
        text = file.read()
    if options.text.endswith(".json"):
        ids = json.loads(text)
    else:
        ids = AutoTokenizer.from_pretrained(**place, local_files_only=True)(text, add_special_tokens=False).input_ids
    windows = len(ids) // options.seqlen
    windows = min(windows, options.max_windows) if options.max_windows else windows
    if windows == 0:
        sys.exit(f"{options.text}: {len(ids)} tokens do not fill one window of {options.seqlen}")
    ids = torch.tensor(ids[: windows * options.seqlen], device=options.device).reshape(windows, options.seqlen)
    results = []
    for path in [None, *options.quantizer]:
        quantizer = Quantizer(path) if path else None
        with quantizer.attached(model) if quantizer else contextlib.nullcontext():
            nll = [window_nll(model, window) for window in ids]
        mean = sum(nll) / windows
        results.append({"name": quantizer.name if quantizer else "none", "nll": mean, "ppl": math.exp(mean), "window_nll": nll})
        if not options.json:
            print(f"{results[-1]['name']:<24} nll {mean:.6f}  ppl {math.exp(mean):.4f}")
    if options.json:
        print(json.dumps({"seqlen": options.seqlen, "windows": windows, "results": results}, indent=2))


if __name__ == "__main__":
    main()
