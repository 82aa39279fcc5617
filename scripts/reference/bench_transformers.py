"""Speed of transformers + PyTorch on the work that kvq-eval and kvq-fisher do. Prints one JSON object.

    python bench_transformers.py --model HF_FOLDER --mode forward --threads 2 --seqlen 2048 --windows 2

Modes:
  forward            perplexity the usual way: no_grad, sdpa, no cache, logits of all tokens, cross-entropy
  fisher             frozen weights, hooks that retain the gradients of k_proj and v_proj outputs, one backward a window
  fisher-checkpoint  the same with gradient checkpointing (non-reentrant)

Token ids are read from --ids (JSON with "first4096", wrapped round as needed) or drawn from the seed. One short
window runs first and is not counted. --check N compares the gradients of fisher-checkpoint with those of fisher.
"""

import argparse
import json
import os
import pathlib
import resource
import time

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM


class KvHooks:
    """Retains K and V and their gradients for one sequence at a time."""

    def __init__(self, model):
        self.kept = {}
        for layer, block in enumerate(model.model.layers):
            block.self_attn.k_proj.register_forward_hook(self.hook(("key", layer), layer == 0))
            block.self_attn.v_proj.register_forward_hook(self.hook(("value", layer), layer == 0))

    def hook(self, key, first):
        def run(module, inputs, output):
            if first:  # weights are frozen: the graph starts at the first layer's keys and values
                output.requires_grad_(True)
            if key not in self.kept and output.requires_grad:  # a checkpointed layer's second forward comes here too
                output.retain_grad()
                self.kept[key] = output

        return run


def load(path, dtype, mode):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
    model.requires_grad_(False)
    model.eval()
    if mode == "fisher-checkpoint":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # transformers checkpoints in training mode only; these models have no dropout
    return model


def window_loss(model, ids):
    logits = model(ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])


def run_window(model, hooks, ids):
    if hooks is None:
        with torch.no_grad():
            return window_loss(model, ids).item()
    hooks.kept.clear()
    loss = window_loss(model, ids)
    loss.backward()
    return loss.item()


def read_ids(path, count, vocab, seed):
    if path is None:
        return np.random.Generator(np.random.PCG64(seed)).integers(0, vocab, count)
    ids = np.array(json.loads(path.read_text())["first4096"])
    return np.resize(ids, count)


def check_gradients(path, dtype, ids):
    grads = []
    for mode in ("fisher", "fisher-checkpoint"):
        model = load(path, dtype, mode)
        hooks = KvHooks(model)
        run_window(model, hooks, ids)
        assert len(hooks.kept) == 2 * model.config.num_hidden_layers
        grads.append({key: value.grad.clone() for key, value in hooks.kept.items()})
    return max(float((grads[1][key] - value).norm() / value.norm()) for key, value in grads[0].items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", choices=["forward", "fisher", "fisher-checkpoint"], required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--ids", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", type=int, default=0, metavar="TOKENS")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    result = {"torch": torch.__version__, "transformers": transformers.__version__, **vars(args)}
    result = {key: str(value) if isinstance(value, pathlib.Path) else value for key, value in result.items()}

    model = load(args.model, dtype, args.mode)
    ids = read_ids(args.ids, args.windows * args.seqlen, model.config.vocab_size, args.seed)
    windows = torch.from_numpy(ids.astype(np.int64)).reshape(args.windows, 1, args.seqlen)
    if args.check:
        result["checkpoint_grad_deviation"] = check_gradients(args.model, dtype, windows[0][:, : args.check])
    hooks = None if args.mode == "forward" else KvHooks(model)
    run_window(model, hooks, windows[0][:, : min(64, args.seqlen)])
    losses, seconds = [], []
    for window in windows:
        begin = time.perf_counter()
        losses.append(run_window(model, hooks, window))
        seconds.append(time.perf_counter() - begin)
    result.update(
        window_nll=losses, window_seconds=seconds, tokens_per_second=args.windows * args.seqlen / sum(seconds),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
