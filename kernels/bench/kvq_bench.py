#!/usr/bin/env python3
"""Times the CUDA kernels against torch's SDPA in fp16 on one GPU.

usage: kvq-bench [--library FILE] [--shapes gqa,mha] [--bits 4,3,2] [--json FILE] [--quick]

Medians of CUDA-graph replays, with enough caches in turn that the L2 holds none of them. A cache is random codes with
outliers as frequent as calibrated ones, some pages overflowing. Needs torch with CUDA; the library is libkvq_bench_api.so,
by default in ../lib beside this program.
"""
import argparse
import ctypes
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

PAGE = 64
DEVICE = "cuda"


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "head_dim", "tokens", "key_bits", "value_bits")]
    _fields_ += [("outliers", ctypes.c_double)]


def load(path):
    library = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.kvq_bench_create.restype = pointer
    library.kvq_bench_create.argtypes = [ctypes.POINTER(Shape)]
    library.kvq_bench_destroy.argtypes = [pointer]
    library.kvq_bench_destroy.restype = None
    library.kvq_bench_number.restype = integer
    library.kvq_bench_number.argtypes = [pointer, ctypes.c_char_p]
    library.kvq_bench_point.argtypes = [pointer, ctypes.c_char_p, pointer]
    library.kvq_bench_point.restype = None
    library.kvq_bench_rope.argtypes = [pointer, ctypes.POINTER(ctypes.c_double), pointer, pointer]
    library.kvq_bench_decode.argtypes = [pointer, pointer]
    library.kvq_bench_append.argtypes = [pointer, integer, pointer]
    library.kvq_bench_read.argtypes = [pointer, integer, pointer, ctypes.c_int, ctypes.c_int, pointer]
    return library


def stream():
    return torch.cuda.current_stream().cuda_stream


def median_us(calls, least=8, repeats=9):
    """Microseconds per call; `calls` are taken in turn, captured in one graph."""
    rounds = max(1, -(-least // len(calls)))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (rounds * len(calls)))
    return sorted(times)[len(times) // 2]


def copies_for(bytes_each, most):
    return max(1, min(most, -(-(400 << 20) // bytes_each)))


def packed_tokens(tokens):
    """`[..., n]`, n a multiple of 4, 6 bits each -> bytes."""
    four = tokens.reshape(*tokens.shape[:-1], -1, 4)
    bits = four[..., 0] | four[..., 1] << 6 | four[..., 2] << 12 | four[..., 3] << 18
    return torch.stack([bits & 255, bits >> 8 & 255, bits >> 16 & 255], -1).to(torch.uint8).reshape(*tokens.shape[:-1], -1)


class Cache:
    """A packed problem: `copies` batches of pages in one pool."""

    def __init__(self, library, batch, heads, kv_heads, head_dim, tokens, bits, outliers, most_copies=48):
        self.library, self.batch, self.heads, self.head_dim, self.tokens = library, batch, heads, head_dim, tokens
        self.kv_heads, self.bits = kv_heads, bits
        self.problem = library.kvq_bench_create(Shape(batch, heads, kv_heads, head_dim, tokens, bits, bits, outliers))
        self.keep = {}
        self.width = kv_heads * head_dim
        self.pages = batch * -(-tokens // PAGE)
        self.page_bytes = self.number("page_bytes")
        self.copies = copies_for(self.pages * self.page_bytes, most_copies)
        self.fill(outliers)
        generator = torch.Generator(DEVICE).manual_seed(2)
        self.tables = [torch.randperm(self.pages, device=DEVICE, generator=generator).int() + copy * self.pages for copy in range(self.copies)]
        self.point("lengths", torch.full((batch,), tokens, dtype=torch.int32, device=DEVICE))
        half = self.width
        lower = -torch.rand(half, device=DEVICE) - 0.5
        upper = torch.rand(half, device=DEVICE) + 0.5
        self.point("key_lower", lower), self.point("key_upper", upper)
        self.point("key_zero", 0.5 * lower + 0.5 * upper), self.point("key_scale", 0.5 * upper - 0.5 * lower)
        for side in ("key", "value"):
            levels = torch.sort(torch.rand(2**bits, device=DEVICE) * 2 - 1)[0]
            self.point(f"{side}_decoded", levels)
            self.point(f"{side}_boundaries", (levels[1:] + levels[:-1]) / 2)
        self.point("query", torch.randn(batch, heads, head_dim, device=DEVICE).half())
        self.point("output", torch.full((batch, heads, head_dim), float("nan"), device=DEVICE).half())
        self.point("workspace", torch.empty(max(16, self.number("workspace_bytes")), dtype=torch.uint8, device=DEVICE))
        self.point("arrivals", torch.zeros(batch, heads, dtype=torch.int32, device=DEVICE))
        rope = torch.empty(self.number("rope_bytes"), dtype=torch.uint8, device=DEVICE)
        self.keep["rope"] = rope
        frequencies = (ctypes.c_double * (head_dim // 2))(*(500000.0 ** (-2.0 * pair / head_dim) for pair in range(head_dim // 2)))
        self.check(library.kvq_bench_rope(self.problem, frequencies, rope.data_ptr(), stream()))

    def __del__(self):
        self.library.kvq_bench_destroy(self.problem)

    def number(self, name):
        return self.library.kvq_bench_number(self.problem, name.encode())

    def point(self, name, tensor):
        self.keep[name] = tensor = tensor.contiguous()
        self.library.kvq_bench_point(self.problem, name.encode(), tensor.data_ptr())

    @staticmethod
    def check(status):
        if status != 0:
            raise RuntimeError(f"status {status}")

    def fill(self, outliers):
        pages = self.pages * self.copies
        pool = torch.empty(pages, self.page_bytes, dtype=torch.uint8, device=DEVICE)
        for begin in range(0, pages, 1024):
            part = pool[begin : begin + 1024]
            part.random_(0, 256)

        def put(name, numbers):
            data = numbers.contiguous().view(torch.uint8).reshape(numbers.shape[0], -1)
            at = self.number(name)
            part[:, at : at + data.shape[1]] = data

        capacity, entries = self.number("capacity"), self.number("entries")
        block_bytes, taken = self.number("block_bytes"), 0
        for begin in range(0, pages, 1024):
            part = pool[begin : begin + 1024]
            n = part.shape[0]
            put("ranges", torch.stack([torch.randn(n, PAGE, device=DEVICE) * 0.1, torch.rand(n, PAGE, device=DEVICE) + 0.5], -1).half())
            if outliers <= 0:
                continue
            # Keys: as many as happen to be, token by token; a page's list is in order of head, token.
            trials = torch.full((n, self.kv_heads, PAGE), float(self.head_dim), device=DEVICE)
            per_token = torch.binomial(trials, torch.full_like(trials, outliers)).long()
            counts = per_token.sum(2)
            tokens = torch.zeros(n, capacity + 512, dtype=torch.long, device=DEVICE)
            ends = per_token.reshape(n, -1).cumsum(1)
            place = torch.searchsorted(ends, torch.arange(capacity + 512, device=DEVICE).expand(n, -1).contiguous(), right=True)
            tokens = (place % PAGE) * (place < ends.shape[1])
            put("key_counts", counts.to(torch.int16))
            put("key_values", (torch.randn(n, capacity, device=DEVICE) * 3).half())
            put("key_channels", torch.randint(0, self.head_dim, (n, capacity), device=DEVICE).to(torch.uint8))
            put("key_tokens", packed_tokens(tokens[:, :capacity]))
            more = ((counts.sum(1) - capacity).clamp(min=0) / 8).ceil().long()
            first = taken + more.cumsum(0) - more
            taken += int(more.sum())
            put("key_link", torch.where(more > 0, first, torch.full_like(first, -1)).to(torch.int32)[:, None])
            self.keep.setdefault("chains", []).append((first + more - 1)[more > 0])
            over = tokens[:, capacity:].reshape(n, -1, 8)
            there = torch.arange(over.shape[1], device=DEVICE)[None] < more[:, None]
            self.keep.setdefault("overflow", []).append(packed_tokens(over[there]))
            # Values: the largest and smallest of random numbers.
            channels = torch.rand(n, PAGE, self.width, device=DEVICE).topk(entries, -1)[1]
            heads, places = channels // self.head_dim, channels % self.head_dim
            order = ((heads * PAGE + torch.arange(PAGE, device=DEVICE)[None, :, None]) * self.head_dim + places).reshape(n, -1).sort(1)[0]
            put("value_counts", torch.stack([(heads == head).sum((1, 2)) for head in range(self.kv_heads)], 1).to(torch.int16))
            put("value_values", (torch.randn(n, PAGE * entries, device=DEVICE) * 3).half())
            put("value_channels", (order % self.head_dim).to(torch.uint8))
            put("value_tokens", packed_tokens(order // self.head_dim % PAGE))
        self.point("pages", pool)
        blocks = torch.zeros(taken + 4096, block_bytes, dtype=torch.uint8, device=DEVICE)
        blocks[:, :16] = (torch.randn(blocks.shape[0], 8, device=DEVICE) * 3).half().view(torch.uint8)
        blocks[:, 16:24] = torch.randint(0, self.head_dim, (blocks.shape[0], 8), device=DEVICE).to(torch.uint8)
        links = torch.arange(1, blocks.shape[0] + 1, device=DEVICE, dtype=torch.int32)
        if outliers > 0:
            links[torch.cat(self.keep.pop("chains"))] = -1
            tokens = self.number("block_tokens")
            blocks[:taken, tokens : tokens + 6] = torch.cat(self.keep.pop("overflow"))
        at = self.number("block_link")
        blocks[:, at : at + 4] = links[:, None].contiguous().view(torch.uint8)
        self.point("key_overflow", blocks)
        self.point("free_blocks", torch.arange(taken, taken + 4096, device=DEVICE, dtype=torch.int32))

    def decode_us(self):
        def call(copy):
            self.point("block_table", self.tables[copy])
            self.check(self.library.kvq_bench_decode(self.problem, stream()))

        us = median_us([lambda copy=copy: call(copy) for copy in range(self.copies)], least=4 if self.pages > 8000 else 8)
        if not torch.isfinite(self.keep["output"]).all():
            raise RuntimeError("the output is not finite")
        return us

    def append_us(self):
        """Appends one token to every sequence: a whole last page, token by token."""
        tokens = torch.arange(self.tokens - PAGE, self.tokens, dtype=torch.int32, device=DEVICE)
        self.keep["append"] = lengths = tokens[:, None].expand(-1, self.batch).contiguous()
        self.point("first", torch.arange(self.batch + 1, dtype=torch.int32, device=DEVICE))
        for side in ("key", "value"):
            # One value in a hundred is an outlier: thresholds lie at 0.5 to 1.5.
            self.point(side, (torch.randn(self.batch, self.width, device=DEVICE) * 0.29).bfloat16())
        self.point("free_count", torch.full((1,), 4096, dtype=torch.int32, device=DEVICE))
        self.point("report", torch.full((2,), -1, dtype=torch.int64, device=DEVICE))

        def call(slot, copy):
            self.point("block_table", self.tables[copy])
            self.library.kvq_bench_point(self.problem, b"append_lengths", lengths[slot].data_ptr())
            self.check(self.library.kvq_bench_append(self.problem, 1, stream()))

        calls = [lambda: self.keep["free_count"].fill_(4096)]
        calls += [lambda slot=slot, copy=copy: call(slot, copy) for slot in range(PAGE) for copy in range(min(self.copies, 4))]
        return median_us(calls, least=1)


def sdpa_us(batch, heads, kv_heads, head_dim, tokens):
    copies = copies_for(4 * batch * kv_heads * tokens * head_dim, 40)
    query = torch.randn(batch, heads, 1, head_dim, device=DEVICE, dtype=torch.float16)
    pairs = [[torch.randn(batch, kv_heads, tokens, head_dim, device=DEVICE, dtype=torch.float16) for _ in range(2)] for _ in range(copies)]
    calls = [lambda pair=pair: F.scaled_dot_product_attention(query, *pair, enable_gqa=heads != kv_heads) for pair in pairs]
    return median_us(calls, least=4 if batch * tokens > 500000 else 8)


def read_peak(library):
    data = torch.randint(-(2**31), 2**31 - 1, (1 << 30,), dtype=torch.int32, device=DEVICE)
    sink = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    best = 0.0
    for blocks, threads in ((264, 1024), (528, 512), (1056, 512), (1056, 256), (2112, 256)):
        us = median_us([lambda: library.kvq_bench_read(data.data_ptr(), 4 << 30, sink.data_ptr(), blocks, threads, stream())], least=3, repeats=5)
        best = max(best, (4 << 30) / us * 1e6)
    return best


SHAPES = {
    "gqa": [(b, 32, 8, 128, n) for b, n in ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (8, 32768), (8, 131072))],
    "mha": [(1, 32, 32, 128, n) for n in (4096, 16384, 131072)],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--library", default=here.parent / "lib" / "libkvq_bench_api.so")
    parser.add_argument("--shapes", default="gqa,mha", help="gqa (32 heads, 8 kv heads of 128), mha (LLaMA-7B: 32, 32)")
    parser.add_argument("--bits", default="4,3,2")
    parser.add_argument("--json", help="also write all figures into this file")
    parser.add_argument("--quick", action="store_true", help="only 32K and 128K tokens of a batch of 8")
    parser.add_argument("--no-append", action="store_true")
    parser.add_argument("--no-plain", action="store_true", help="only with outliers")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("kvq-bench: torch finds no GPU")
    library = load(arguments.library)
    torch.manual_seed(1)
    peak = read_peak(library)
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, plain read {peak / 1e12:.2f} TB/s")
    print(f"{'batch':>5} {'heads':>7} {'tokens':>7} {'bits':>4} {'outl.':>5} {'us':>8} {'SDPA fp16':>9} {'ratio':>6} {'of peak':>7}", flush=True)
    rows = []
    for name in arguments.shapes.split(","):
        for batch, heads, kv_heads, head_dim, tokens in SHAPES[name]:
            if arguments.quick and (batch != 8 or tokens < 32768):
                continue
            peer = sdpa_us(batch, heads, kv_heads, head_dim, tokens)
            torch.cuda.empty_cache()
            for bits in (int(word) for word in arguments.bits.split(",")):
                for outliers in (0.01,) if arguments.no_plain else (0.01, 0.0):
                    cache = Cache(library, batch, heads, kv_heads, head_dim, tokens, bits, outliers)
                    us = cache.decode_us()
                    share = cache.pages * cache.page_bytes / us * 1e6 / peak
                    row = dict(batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim, tokens=tokens, bits=bits, outliers=outliers,
                               us=us, sdpa_us=peer, ratio=peer / us, roofline=share, bytes=cache.pages * cache.page_bytes)
                    print(f"{batch:5d} {heads:4d}/{kv_heads:<2d} {tokens:7d} {bits:4d} {outliers:5.2f} {us:8.1f} {peer:9.1f} {peer / us:6.2f} {share:7.2f}", flush=True)
                    if outliers and not arguments.no_append and bits == 4 and tokens in (32768, 131072):
                        row["append_us"] = cache.append_us()
                        print(f"      append of one token: {row['append_us']:.2f} us, {100 * row['append_us'] / us:.1f} % of decode", flush=True)
                    rows.append(row)
                    del cache
                    torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(dict(device=device, torch=torch.__version__, read_bytes_per_second=peak, rows=rows), file, indent=1)


if __name__ == "__main__":
    main()
