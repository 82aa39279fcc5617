"""Our speed and memory beside transformers', in one run: the same windows, threads and torch. Prints a table, or JSON.

    python compare_speed.py --bin build/release/bin --gguf MODEL.gguf --hf HF_FOLDER --text TEXT --ids IDS.json \
        [--threads 2] [--seqlen 2048] [--windows 2] [--rounds 3] [--only forward,fisher,bf16]

Each round runs every program once, one after another, so that a slow minute of the machine meets all of them; the table
has the medians over the rounds. Loading is left out on both sides: transformers loads and runs a window of 64 tokens
before the clock starts, and from our times the time of a run over one window of 64 tokens is taken off. Ours are those
that the program reports of itself: for kvq-fisher forward and backward, then ("with rest") with statistics, journal and
file; for kvq-eval all of the evaluation. Memory is the peak resident set of the process.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def run(command):
    """Standard output, peak resident bytes."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=said)
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            said.seek(0)
            sys.exit(f"failed: {' '.join(map(str, command))}\n{said.read().rstrip()}")
    return json.loads(out), usage.ru_maxrss * 1024


def transformers(args, mode, dtype):
    result, peak = run([sys.executable, HERE / "bench_transformers.py", "--model", args.hf, "--mode", mode, "--threads", args.threads,
                        "--seqlen", args.seqlen, "--windows", args.windows, "--dtype", dtype, "--ids", args.ids])
    return {"tokens/s": result["tokens_per_second"], "peak": peak}


def evaluation(args, dtype):
    def evaluate(windows, seqlen):
        return run([args.bin / "kvq-eval", "perplexity", "--model", args.gguf, "--text", args.text, "--seqlen", seqlen,
                    "--max-windows", windows, "--dtype", dtype, "--threads", args.threads, "--json", "--quiet"])

    loading = evaluate(1, 64)[0]["seconds"]
    result, peak = evaluate(args.windows, args.seqlen)
    return {"tokens/s": args.windows * args.seqlen / (result["seconds"] - loading), "peak": peak,
            "nll": result["results"][0]["window_nll"]}


def fisher(args, recompute, dtype):
    def calibrate(samples, seqlen):
        with tempfile.TemporaryDirectory() as folder:
            return run([args.bin / "kvq-fisher", "--model", args.gguf, "--text", args.text, "--samples", samples,
                        "--sequential", "--seqlen", seqlen, "--recompute", recompute, "--dtype", dtype,
                        "--threads", args.threads, "--json", "--quiet", "-o", f"{folder}/calib.h5"])

    loading = calibrate(1, 64)[0]["compute_seconds"]
    result, peak = calibrate(args.windows, args.seqlen)
    tokens, compute = args.windows * args.seqlen, result["compute_seconds"] - loading
    rest = result["seconds"] - result["compute_seconds"]
    return {"tokens/s": tokens / compute, "all": tokens / (compute + rest), "peak": peak, "rest": rest / (compute + rest)}


def programs(args):
    groups = {
        "forward": {"transformers forward fp32": lambda: transformers(args, "forward", "fp32"),
                    "kvq-eval fp32": lambda: evaluation(args, "fp32")},
        "fisher": {"transformers backward fp32": lambda: transformers(args, "fisher", "fp32"),
                   "transformers checkpointing fp32": lambda: transformers(args, "fisher-checkpoint", "fp32"),
                   "kvq-fisher auto fp32": lambda: fisher(args, "auto", "fp32"),
                   "kvq-fisher layer fp32": lambda: fisher(args, "layer", "fp32")},
        "bf16": {"kvq-eval bf16": lambda: evaluation(args, "bf16"), "kvq-fisher auto bf16": lambda: fisher(args, "auto", "bf16")},
    }
    chosen = {}
    for name in args.only.split(","):
        chosen.update(groups[name])
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bin", "gguf", "hf", "text", "ids"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="forward,fisher,bf16")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    measured = {}
    for _ in range(args.rounds):
        for name, program in programs(args).items():
            measured.setdefault(name, []).append(program())
    if args.json:
        print(json.dumps(measured))
        return
    print(f"{args.windows} windows of {args.seqlen} tokens, {args.threads} threads, medians of {args.rounds} rounds")
    print(f"{'':34}{'tokens/s':>10}{'with rest':>10}{'rest %':>8}{'peak MiB':>10}   all rounds")
    for name, rounds in measured.items():
        median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0] if key != "nll"}
        every = " ".join(f"{r['tokens/s']:.0f}" for r in rounds)
        extra = f"{median['all']:10.1f}{100 * median['rest']:8.1f}" if "all" in median else " " * 18
        print(f"{name:34}{median['tokens/s']:10.1f}{extra}{median['peak'] / 2**20:10.0f}   {every}")


if __name__ == "__main__":
    main()
