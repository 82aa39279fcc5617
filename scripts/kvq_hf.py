#!/usr/bin/env python3
"""Runs a transformers model with keys and values quantized as a quantizer.h5 of kvq says (lib/artifacts/FORMAT.md).

    import kvq_hf
    quantizer = kvq_hf.Quantizer("nuq3-1pct.h5")
    with quantizer.attached(model):      # any decoder whose layers have self_attn.k_proj and .v_proj
        model(ids)                       # or model.generate, lm-eval-harness, your own code

As a program it prints perplexities over windows as `kvq-eval perplexity` cuts them, one JSON object a cache: kvq_hf.py --help. Hooks on the
projections replace each token's keys and values by what the cache would give back. Where tokens wait (recent=, flush=, groups of tokens), an
attention function takes the exact or the coded version of each, as the cache stands once the query's own token is in it. Cached generation
sees what one pass sees; groups of tokens are coded anew at each of its steps. Batches: without left padding, which would stand where a
sequence's first tokens are kept exact. Written from FORMAT.md and the papers, not from kvq's C++: an independent check of it. Needs torch,
h5py, and transformers for the model (GGUF: and gguf, accelerate).
"""
import argparse
import contextlib
import json
import math
import pathlib
import sys
import tomllib  # Python 3.11

import h5py
import torch
import transformers


def fp16(x, unit=1.0):
    stored = (x / unit).to(torch.float16).to(torch.float32)
    if not torch.isfinite(stored).all():  # an error in kvq, too
        raise OverflowError("an exact value or a range does not fit fp16: the calibration saw nothing as large")
    return stored * unit


def rotate(x, cos, sin):
    """RoPE as transformers has it, on `[batch, tokens, heads, head_dim]`. With -sin: its inverse."""
    half = x.shape[-1] // 2
    return x * cos.unsqueeze(2) + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin.unsqueeze(2)


class Side:
    """Quantizer of the keys or the values of one layer."""

    WORDS = {"codebook": "nuq int nf q4_0 q8_0 fp8", "axis": "channel token channel-group token-group", "range": "static online window none",
             "rule": "threshold topk", "zero": "half integer", "rope": "pre post", "widths": "flat pair", "rotate": "none hadamard"}
    FREE = "bits group outliers cap weights share qnorm recent flush levels feedback icm metric order damp clip".split()

    def __init__(self, group, recipe, sinks, heads, head_dim):
        for word, value in recipe.items():
            if word not in self.FREE and value not in self.WORDS.get(word, "").split():
                raise ValueError(f"{group.name}: this script does not know the recipe's {word} = {value!r}")
        self.axis, self.sinks, self.heads, self.head_dim = recipe["axis"], sinks, heads, head_dim
        self.range = recipe.get("range", "static" if self.axis == "channel" else "online")
        self.rule = recipe.get("rule", "topk" if self.range == "online" else "threshold")
        self.group, self.outliers, self.cap = recipe.get("group", 32), recipe.get("outliers", 0.0), recipe.get("cap", 0.0)
        self.top_point = 2 ** recipe["bits"] - 1 if recipe.get("zero") == "integer" else None
        self.rope = recipe.get("rope", "pre") if group.name.endswith("key") else None
        self.recent, self.flush = recipe.get("recent", 0), recipe.get("flush", self.group if self.axis == "channel-group" else 1)
        self.waits = self.recent > 0 or self.flush > 1 or self.axis == "channel-group"
        # Of so many first tokens of a sequence those are coded: `flush` at once, as soon as so many have left the `recent` ones.
        self.settled = lambda tokens: (tokens - self.recent).clamp(min=0) // self.flush * self.flush
        self.half = lambda x, unit=2.0 ** int(group.attrs["exponent"]): fp16(x, unit)
        tensor = lambda name: torch.from_numpy(group[name][...].astype("float32"))
        bounded = self.range == "static" or self.outliers and self.rule == "threshold" and self.range == "online"
        self.lower, self.upper = (tensor(name).flatten() if bounded else torch.zeros(heads * head_dim) for name in ("lower", "upper"))
        self.fixed = recipe["codebook"] if recipe["codebook"] in ("q4_0", "q8_0", "fp8") else None
        if self.fixed: return
        # For each channel its boundaries between levels, padded with infinity, and what its codes stand for.
        names = [f"_{bits}" for bits in group["widths"][...].flatten()] if recipe.get("widths") == "pair" else [""] * heads * head_dim
        books = {name: (tensor("centroids" + name), tensor("decoded" + name)) for name in set(names)}
        rows = lambda which: [books[name][which][channel * len(books[name][which]) // len(names)] for channel, name in enumerate(names)]
        boundaries = [0.5 * centroids[:-1] + 0.5 * centroids[1:] for centroids in rows(0)]
        self.boundaries = torch.nn.utils.rnn.pad_sequence(boundaries, batch_first=True, padding_value=torch.inf)
        self.decoded = torch.nn.utils.rnn.pad_sequence(rows(1), batch_first=True)
        rotated, self.mixing = recipe.get("rotate") == "hadamard", torch.ones(1, 1)
        while rotated and head_dim % (2 * len(self.mixing)) == 0:
            self.mixing = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), self.mixing)
        self.mixing, self.scale = self.mixing / math.sqrt(len(self.mixing)), tensor("rotation_scale").flatten() if rotated else torch.ones(1)
        self.icm, self.order = recipe.get("icm", 0), None
        if self.icm or recipe.get("feedback"):
            self.order = torch.from_numpy(group["coding_order"][...].astype("int64"))
            self.updates = tensor("feedback") if recipe.get("feedback") else torch.zeros(heads, head_dim, head_dim)
            self.fisher = torch.stack([h[o][:, o] for h, o in zip(tensor("fisher"), self.order)]) if self.icm else None

    def round(self, x, zero, scale, exact, channels):
        """Nearest levels of these channels, `[tokens, channels]`; ties belong to the lower one. Exact values as they are stored."""
        x_hat = torch.where(scale > 0, (x - zero) * (1 / scale), 0)  # rounded as kvq does it: ties
        codes = torch.searchsorted(self.boundaries[channels].to(x.device), x_hat.T.contiguous())
        result = zero + scale * self.decoded[channels].to(x.device).gather(1, codes).T
        return torch.where(exact, self.half(torch.where(exact, x, 0)), result)

    def round_fixed(self, x):
        """e4m3, or blocks of 32 channels of a head with a scale."""
        if self.fixed == "fp8": return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        blocks = x.reshape(-1, 32)
        largest = blocks.gather(1, blocks.abs().argmax(dim=1, keepdim=True))
        scale = largest / -8 if self.fixed == "q4_0" else largest.abs() / 127
        ratio = torch.where(scale != 0, blocks * (1 / scale), 0)
        codes = (ratio + 8.5).trunc().clamp(max=15) - 8 if self.fixed == "q4_0" else ratio.sign() * (ratio.abs() + 0.5).floor()
        return (codes * fp16(scale)).reshape(x.shape)

    def extremes(self, x, total):
        """Of each row the k largest, then the k smallest of the rest; ties to the lower index. k is that of `total` values."""
        k = max(1, math.floor(self.outliers * total / 2 + 0.5))
        chosen = torch.zeros_like(x, dtype=torch.bool)
        if 2 * k >= x.shape[1]: return ~chosen
        chosen.scatter_(1, x.argsort(dim=1, descending=True, stable=True)[:, :k], True)
        return chosen.scatter_(1, torch.where(chosen, torch.inf, x).argsort(dim=1, stable=True)[:, :k], True)

    def ranges(self, x, first):
        """Zero and scale (they broadcast to `x`) and which values stay exact, of tokens at positions from `first` on."""
        (tokens, width), lower, upper = x.shape, self.lower.to(x.device), self.upper.to(x.device)
        together = {"channel": 1, "channel-group": 1, "token-group": self.group, "token": width}[self.axis]  # channels of a range
        if self.range == "window":  # the oracle: percentiles of what of the window is quantized
            tails = torch.tensor([self.outliers / 2, 1 - self.outliers / 2], dtype=torch.float64, device=x.device)
            coded = x[: max(int(self.settled(torch.tensor(first + tokens))) - first, 1)] if self.waits else x
            ends = [torch.quantile(part.double().flatten(), tails).float().expand(part.shape[1], 2) for part in coded.split(together, dim=1)]
            lower, upper = torch.cat(ends).unbind(dim=1)
        zero, scale = 0.5 * lower + 0.5 * upper, 0.5 * upper - 0.5 * lower
        rows = torch.arange(first, first + tokens, device=x.device) // (self.group if self.axis == "channel-group" else 1)
        exact = torch.zeros_like(x, dtype=torch.bool)
        if self.outliers and self.rule == "threshold":
            exact = (x < lower) | (x > upper)
            if self.cap:  # those of a token that exceed most
                excess = torch.where(scale > 0, torch.maximum(lower - x, x - upper) * (1 / scale), torch.inf)
                order = torch.where(exact, excess, -torch.inf).argsort(dim=1, descending=True, stable=True)
                exact &= torch.zeros_like(exact).scatter_(1, order[:, : math.ceil(self.cap * width - 1e-9)], True)
        elif self.outliers and self.axis == "channel-group":
            exact = torch.cat([self.extremes(part.T, self.group).T for part in x.split(rows.unique(return_counts=True)[1].tolist())])
        elif self.outliers:
            exact = self.extremes(x if self.range == "online" else torch.where(scale > 0, (x - zero) * (1 / scale), 0), width)
        if self.range != "online": return zero, scale, exact
        cell = (rows - rows[0])[:, None] * width + torch.arange(width, device=x.device) // together
        end = lambda bound, which: x.new_full((tokens * width,), bound).scatter_reduce(
            0, cell.flatten(), torch.where(exact, bound, x).flatten(), which)[cell]
        low, high = end(torch.inf, "amin"), end(-torch.inf, "amax")
        low, high = torch.where(low <= high, low, 0), torch.where(low <= high, high, 0)  # 0 where all are exact
        if self.top_point:
            step = self.half((high - low).clamp(min=1e-5) / self.top_point)
            return (self.top_point / 2 - (-low / step).round().clamp(0, self.top_point)) * step, self.top_point / 2 * step, exact
        zero = self.half(0.5 * low + 0.5 * high)
        return zero, self.half(torch.maximum(high - zero, zero - low)), exact

    def round_in_order(self, x, zero, scale, exact):
        """One channel of every head at a time: its error goes into those to come, then coordinate descent on eᵀHe."""
        columns = self.order + torch.arange(self.heads)[:, None] * self.head_dim  # channel at each coding position
        spread = lambda range_: range_.expand(x.shape[0], x.shape[1])[:, columns.flatten()].reshape(x.shape[0], self.heads, -1)
        y, zero, scale, exact = spread(x).clone(), spread(zero), spread(scale), spread(exact)
        target, q = y.clone(), torch.empty_like(y)
        step = lambda j, value: self.round(value, zero[:, :, j], scale[:, :, j], exact[:, :, j], columns[:, j])
        for j in range(self.head_dim):
            q[:, :, j] = step(j, y[:, :, j])
            y[:, :, j + 1 :] -= self.updates[:, j, j + 1 :].to(x.device) * (y[:, :, j] - q[:, :, j])[:, :, None]
        if self.icm:
            fisher = self.fisher.to(x.device)
            rest = torch.einsum("thj,hjk->thk", target - q, fisher)
            for j in list(range(self.head_dim))[::-1] * self.icm:
                better = step(j, q[:, :, j] + rest[:, :, j] / fisher[:, j, j])
                rest -= fisher[:, j] * (better - q[:, :, j])[:, :, None]
                q[:, :, j] = better
        return q.reshape(x.shape)[:, columns.flatten().argsort()]

    def __call__(self, x, first):
        """`x`: `[tokens, kv_heads, head_dim]` of one sequence from position `first` on. Sinks exact, the rest coded."""
        flat = x.flatten(1).float()
        sinks = min(max(self.sinks - first, 0), flat.shape[0])
        coded = self.half(flat[sinks:]) if self.waits else flat[sinks:]  # tokens wait in fp16
        if self.range == "window" and first: raise ValueError("range=window takes the range of a whole window and cannot continue one")
        if self.fixed:
            coded = self.round_fixed(coded)
        elif len(coded):
            mix = lambda y: (y.reshape(len(y), -1, len(self.mixing)) @ self.mixing.to(y.device)).reshape(y.shape)
            turned, scale = mix(coded * self.scale.to(x.device)), self.scale.to(x.device)
            ranges = self.ranges(turned, first + sinks)
            coded = mix(self.round(turned, *ranges, slice(None)) if self.order is None else self.round_in_order(turned, *ranges)) / scale
        return torch.cat([self.half(flat[:sinks]), coded]).reshape(x.shape).to(x.dtype)


class Layer:
    """Quantizes one attention module of the model."""

    def __init__(self, module, sides, rotary):
        module.kvq_layer, self.sides = self, sides
        # Gemma's rotary embedding has other angles for layers that see a window, and its k_norm gets the heads before the tokens.
        self.rotary = (lambda *args: rotary(*args, module.layer_type)) if hasattr(rotary, "layer_types") else rotary
        self.heads_first = "Gemma" in type(module).__name__
        keys = getattr(module, "k_norm", module.k_proj)  # they are quantized after their norm, where there is one
        hook = lambda side: lambda _, args, output: self.project(sides[side], output)
        note = lambda _, args, inputs: setattr(self, "now", (*inputs["position_embeddings"], inputs["position_ids"]))
        self.handles = [module.register_forward_pre_hook(note, with_kwargs=True), keys.register_forward_hook(hook("key")),
                        module.v_proj.register_forward_hook(hook("value"))]

    def project(self, side, output):
        """What becomes of a projection. Tokens that wait: exact ones, then coded ones as further heads, in the model's own cache."""
        swapped = output.dim() == 4 and self.heads_first
        x = output.transpose(1, 2) if swapped else output
        batch, tokens = x.shape[:2]
        x = x.reshape(batch, tokens, side.heads, side.head_dim)
        cos, sin, positions = (per_token.expand(batch, *per_token.shape[1:]) for per_token in self.now)
        x = rotate(x.float(), cos, sin) if side.rope == "post" else x.float()
        parts = [side.half(x)] if side.waits else []
        if side.axis != "channel-group":  # whose groups attend() codes when they are full
            parts.append(torch.stack([side(*one) for one in zip(x, positions[:, 0].tolist())]))
        x = rotate(torch.cat(parts, dim=2), cos, -sin) if side.rope == "post" else torch.cat(parts, dim=2)  # the model rotates again
        return (x.transpose(1, 2) if swapped else x if output.dim() == 4 else x.flatten(2)).to(output.dtype)

    def versions(self, side, x, seen, repeats):
        """Of `x`, `[batch, heads, tokens, head_dim]` from the cache: exact, coded, and where a query sees which."""
        exact, coded = x.chunk(2, dim=1) if x.shape[1] > side.heads else (x, x)
        dropped = max(0, int(seen.max()) - x.shape[2])  # by the cache of a layer that sees a window
        if side.axis == "channel-group":
            if dropped: raise ValueError("groups of tokens cannot be coded from a cache that has dropped some: use_cache=False")
            y = x.transpose(1, 2).float()
            cos, sin = self.rotary(y, torch.arange(y.shape[1], device=x.device)[None]) if side.rope == "pre" else y.new_tensor([[[[1]]], [[[0]]]])
            y, full = rotate(y, cos, -sin), int(side.settled(seen.max()))
            y = torch.stack([torch.cat([side(one[:full], 0), one[full:]]) for one in y])
            coded = rotate(y, cos, sin).transpose(1, 2).to(x.dtype)
        settled = side.settled(seen) > torch.arange(dropped, dropped + x.shape[2], device=x.device)
        return exact.repeat_interleave(repeats, dim=1), coded.repeat_interleave(repeats, dim=1), settled

    def attend(self, query, key, value, attention_mask, scaling, **rest):
        seen, repeats = self.now[2][:, None, :, None] + 1, query.shape[1] // self.sides["key"].heads
        exact, coded, settled = self.versions(self.sides["key"], key, seen, repeats)
        scores = torch.where(settled, query @ coded.mT, query @ exact.mT).float() * scaling
        weights = (scores + attention_mask).softmax(dim=-1).to(query.dtype)
        exact, coded, settled = self.versions(self.sides["value"], value, seen, repeats)
        return ((weights * settled) @ coded + (weights * ~settled) @ exact).transpose(1, 2).contiguous(), weights


class Quantizer:
    """A quantizer.h5; attach it to a model of the shape that it was fitted for."""

    def __init__(self, path):
        with h5py.File(path, "r") as file:
            text = lambda name: file.attrs[name].decode() if isinstance(file.attrs[name], bytes) else file.attrs[name]
            if file.attrs.get("complete") != 1 or text("kvq_schema") != "quantizer" or text("schema_version").split(".")[0] != "1":
                raise ValueError(f"{path}: is no complete quantizer file of schema version 1")
            self.name, recipe = text("recipe"), tomllib.loads(text("recipe_toml"))
            if unknown := set(recipe) - {"sinks", "key", "value"}: raise ValueError(f"{path}: this script does not know the recipe's {', '.join(sorted(unknown))}")
            common = recipe.get("sinks", 1), int(file.attrs["kv_heads"]), int(file.attrs["head_dim"])
            self.layers = [{side: Side(file[f"layers/{layer:02}/{side}"], {"axis": axis, **recipe[side]}, *common)
                            for side, axis in (("key", "channel"), ("value", "token"))} for layer in range(int(file.attrs["layers"]))]

    @contextlib.contextmanager
    def attached(self, model):
        """Quantizes the model's keys and values as long as the context lasts."""
        decoder, usual = model.get_decoder(), model.config._attn_implementation
        if len(decoder.layers) != len(self.layers): raise ValueError(f"{self.name} is for {len(self.layers)} layers, the model has {len(decoder.layers)}")
        with contextlib.ExitStack() as undo:
            for block, sides in zip(decoder.layers, self.layers):
                for handle in Layer(block.self_attn, sides, decoder.rotary_emb).handles:
                    undo.callback(handle.remove)
            if any(side.waits for sides in self.layers for side in sides.values()):
                transformers.AttentionInterface.register("kvq_hf", lambda module, *args, **rest: module.kvq_layer.attend(*args, **rest))
                transformers.AttentionMaskInterface.register("kvq_hf", transformers.masking_utils.eager_mask)
                undo.callback(model.set_attn_implementation, usual)
                model.set_attn_implementation("kvq_hf")
            yield model


@torch.inference_mode()
def window_nll(model, ids):
    """Mean next-token loss of one window, nats."""
    logits = model(ids[None], use_cache=False).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, ids[1:]).item()


def main():
    parser = argparse.ArgumentParser(description="Perplexity of a transformers model with quantized keys and values.")
    parser.add_argument("--model", required=True, type=pathlib.Path, help="Hugging Face folder, or a GGUF file")
    parser.add_argument("--text", required=True, help="UTF-8 text, or a .json list of token ids")
    parser.add_argument("--quantizer", action="append", default=[], help="quantizer.h5; repeat for several")
    parser.add_argument("--seqlen", type=int, default=2048, help="tokens of a window (2048)")
    parser.add_argument("--max-windows", type=int, default=0, help="0: all")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of the model (float32)")
    parser.add_argument("--device", default="cpu", help="as torch names it (cpu)")
    options = parser.parse_args()
    try:
        quantizers = [None, *map(Quantizer, options.quantizer)]
    except (OSError, KeyError, ValueError) as problem:
        sys.exit(f"kvq_hf.py: {problem}")
    path, place = (options.model.parent, {"gguf_file": options.model.name}) if options.model.suffix == ".gguf" else (options.model, {})
    load = lambda kind, **more: kind.from_pretrained(path, **place, local_files_only=True, **more)
    model = load(transformers.AutoModelForCausalLM, dtype=getattr(torch, options.dtype)).to(options.device).eval()
    encode = json.loads if options.text.endswith(".json") else lambda text: load(transformers.AutoTokenizer)(text, add_special_tokens=False).input_ids
    ids = encode(pathlib.Path(options.text).read_bytes().decode())
    if (windows := min(len(ids) // options.seqlen, options.max_windows or len(ids))) == 0:
        sys.exit(f"{options.text}: {len(ids)} tokens do not fill one window of {options.seqlen}")
    ids = torch.tensor(ids[: windows * options.seqlen], device=options.device).reshape(windows, options.seqlen)
    for quantizer in quantizers:
        with quantizer.attached(model) if quantizer else contextlib.nullcontext():
            nll = [window_nll(model, window) for window in ids]
        name, mean = quantizer.name if quantizer else "none", sum(nll) / windows
        print(json.dumps({"name": name, "nll": mean, "ppl": math.exp(mean), "window_nll": nll}), flush=True)


if __name__ == "__main__":
    main()
