"""Decode attention over 8K tokens: llama.cpp's quantized cache beside our packed one, same shape and threads, in one run.

    python bench_llama_cpp.py --gguf SMOLLM2.gguf --test-cache build/release/bin/test_cache [--threads 2] [--rounds 3]

llama.cpp (PyPI llama-cpp-python, built here) has no way to time its attention alone: its share of a decode step is what a step at
8K tokens takes longer than one at 64, divided by the number of layers; medians over steps. That holds whatever grows with the
context. Ours is what `test_cache "[bench]"` prints for SmolLM2's shape (9 query and 3 kv heads of 64), attention alone, by
layer, with cold caches. Rounds take turns.
"""

import argparse
import os
import re
import statistics
import subprocess
import time

LONG, SHORT, STEPS = 8192, 64, 48


def step_times(llm, context):
    """Milliseconds of each of STEPS single-token steps behind `context` tokens."""
    llm.reset()
    llm._ctx.kv_cache_clear()
    ids = [1000 + (17 * i) % 20000 for i in range(context - STEPS)]
    for first in range(0, len(ids), 512):
        llm.eval(ids[first:first + 512])
    times = []
    for step in range(STEPS):
        start = time.perf_counter()
        llm.eval([2000 + step])
        times.append(1e3 * (time.perf_counter() - start))
    return times


def llama_attention(args, kind):
    import llama_cpp

    types = {"f16": llama_cpp.GGML_TYPE_F16, "q4_0": llama_cpp.GGML_TYPE_Q4_0, "q8_0": llama_cpp.GGML_TYPE_Q8_0}
    llm = llama_cpp.Llama(args.gguf, n_ctx=LONG, n_batch=512, n_threads=args.threads, n_threads_batch=args.threads, flash_attn=True,
                          type_k=types[kind], type_v=types[kind], verbose=False, logits_all=False)
    layers = int(llm.metadata["llama.block_count"])
    short, long = statistics.median(step_times(llm, SHORT)), statistics.median(step_times(llm, LONG))
    return 1e3 * (long - short) / layers


def our_attention(args):
    environment = dict(os.environ, KVQ_BENCH_THREADS=str(args.threads))
    out = subprocess.run([args.test_cache, "Decode attention over packed bits*"], env=environment, capture_output=True, text=True).stdout
    table = out.split("9 query, 3 kv heads of 64", 1)[1].split("query", 1)[0]
    found = {"libtorch fp32": float(re.search(r"fp32 (\d+)", table)[1])}
    found.update((name, float(value)) for name, value in re.findall(r"((?:nf|q|fp|turbo)\S+)\s+(\d+):", table))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--test-cache", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rounds = {}
    for _ in range(args.rounds):
        for kind in ("f16", "q8_0", "q4_0"):
            rounds.setdefault(f"llama.cpp {kind}", []).append(llama_attention(args, kind))
        for name, value in our_attention(args).items():
            rounds.setdefault(name, []).append(value)
    print(f"{LONG} tokens, {args.threads} threads; microseconds of attention a layer")
    for name, values in rounds.items():
        print(f"{name:24} {statistics.median(values):7.0f}   rounds: {' '.join(f'{value:.0f}' for value in values)}")


if __name__ == "__main__":
    main()
