#!/usr/bin/env python3
"""Times the CUDA kernels against torch's SDPA in fp16 on one GPU.

usage: kvq-bench [--library FILE] [--shapes gqa,mha] [--bits 4,3,2] [--kvq] [--json FILE] [--quick]

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
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "head_dim", "tokens", "key_bits", "value_bits", "value_levels", "icm")]
    _fields_ += [("outliers", ctypes.c_double)]


LEVELS = {4: 20, 3: 10, 2: 5}  # of values in kvq recipes
PREFILL = 8192


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

    def __init__(self, library, batch, heads, kv_heads, head_dim, tokens, bits, outliers, most_copies=48, levels=0, icm=0):
        self.library, self.batch, self.heads, self.head_dim, self.tokens = library, batch, heads, head_dim, tokens
        self.kv_heads, self.bits = kv_heads, bits
        self.problem = library.kvq_bench_create(Shape(batch, heads, kv_heads, head_dim, tokens, bits, bits, levels, icm, outliers))
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
            book = torch.sort(torch.rand(256 if levels else 2**bits, device=DEVICE) * 2 - 1)[0]
            self.point(f"{side}_decoded", book)
            self.point(f"{side}_boundaries", (book[1:] + book[:-1]) / 2)
        if levels:
            self.prepare_rounding(levels)
        self.point("query", torch.randn(batch, heads, head_dim, device=DEVICE).half())
        self.point("output", torch.full((batch, heads, head_dim), float("nan"), device=DEVICE).half())
        self.point("workspace", torch.empty(max(16, self.number("workspace_bytes")), dtype=torch.uint8, device=DEVICE))
        self.point("arrivals", torch.zeros(batch, heads, dtype=torch.int32, device=DEVICE))
        rope = torch.empty(self.number("rope_bytes"), dtype=torch.uint8, device=DEVICE)
        self.keep["rope"] = rope
        frequencies = (ctypes.c_double * (head_dim // 2))(*(500000.0 ** (-2.0 * pair / head_dim) for pair in range(head_dim // 2)))
        self.check(library.kvq_bench_rope(self.problem, frequencies, rope.data_ptr(), stream()))

    def prepare_rounding(self, levels):
        """Widths that alternate by pairs, and matrices of no meaning: time does not depend on them."""
        dim, bits = self.head_dim, self.bits
        choices = list(range(max(1, bits - 2), bits + 3))
        widths = [bits - 1 + 2 * (channel % (dim // 2) % 2) for channel in range(dim)]
        offsets = [8 * sum(widths[:channel]) for channel in range(dim)]
        infos = [offset | width << 16 | sum(2**c for c in choices if c < width) << 24 for offset, width in zip(offsets, widths)]
        self.point("key_rows", torch.tensor([i - (i >> 31 << 32) for i in infos] * self.kv_heads, dtype=torch.int32, device=DEVICE))

        def padded(counts, fill):
            rows = [torch.cat([torch.linspace(-1, 1, n, device=DEVICE), torch.full((256 - n,), fill, device=DEVICE)]) for n in counts]
            return torch.stack(rows)

        self.point("key_round_decoded", padded([2**c for c in choices], 0.0))
        self.point("key_round_boundaries", padded([2**c - 1 for c in choices], float("inf")))
        self.point("key_most", torch.tensor([2**c - 1 for c in choices], dtype=torch.int32, device=DEVICE))
        self.point("value_round_boundaries", padded([levels - 1], float("inf")))
        self.point("value_most", torch.tensor([levels - 1], dtype=torch.int32, device=DEVICE))
        self.point("key_book", torch.tensor([choices.index(w) for w in widths] * self.kv_heads, dtype=torch.uint8, device=DEVICE))
        self.point("value_book", torch.zeros(self.width, dtype=torch.uint8, device=DEVICE))
        self.point("key_inverse", 1 / self.keep["key_scale"])
        self.point("order", torch.arange(dim - 1, -1, -1, dtype=torch.int32, device=DEVICE).repeat(self.kv_heads))
        correlated = torch.full((dim, dim), 0.02, device=DEVICE) + 0.98 * torch.eye(dim, device=DEVICE)
        self.point("updates", torch.triu(correlated, 1).repeat(self.kv_heads, 1, 1))
        self.point("hessian", correlated.repeat(self.kv_heads, 1, 1))
        self.point("inverse_diagonal", torch.ones(self.width, device=DEVICE))
        self.point("rotation", torch.full((self.width,), dim**-0.5, device=DEVICE))
        rows = max(PREFILL, self.batch)
        for name in ("key_codes", "value_codes"):
            self.point(name, torch.zeros(rows, self.width, dtype=torch.uint8, device=DEVICE))
        self.point("key_exact", torch.zeros(rows, self.width, dtype=torch.int16, device=DEVICE))
        self.point("value_rotated", torch.zeros(rows, self.width, device=DEVICE))
        self.point("value_ranges", torch.zeros(rows, 2, device=DEVICE))

    def prefill_us(self):
        """Appends PREFILL tokens to an empty sequence of one layer; batch 1."""
        self.point("first", torch.tensor([0, PREFILL], dtype=torch.int32, device=DEVICE))
        self.point("append_lengths", torch.zeros(1, dtype=torch.int32, device=DEVICE))
        self.point("block_table", self.tables[0])
        for side in ("key", "value"):
            self.point(side, (torch.randn(PREFILL, self.width, device=DEVICE) * 0.29).bfloat16())
        self.point("free_count", torch.full((1,), 4096, dtype=torch.int32, device=DEVICE))
        self.point("report", torch.full((2,), -1, dtype=torch.int64, device=DEVICE))

        def call():
            self.keep["free_count"].fill_(4096)
            self.check(self.library.kvq_bench_append(self.problem, PREFILL, stream()))

        return median_us([call], least=2, repeats=5)

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
            if entries == 0:  # kvq recipes
                continue
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


def bench_kvq(library, bits_list, peak, rows):
    """kvq recipes beside the plain ones of the same bits, 32 heads on 8 kv heads of 128."""
    for batch, tokens in ((1, 32768), (8, 32768), (8, 131072)):
        peer = sdpa_us(batch, 32, 8, 128, tokens)
        torch.cuda.empty_cache()
        for bits in bits_list:
            times = {}
            for levels in (0, LEVELS[bits]):
                cache = Cache(library, batch, 32, 8, 128, tokens, bits, 0.01, levels=levels)
                us = times[levels] = cache.decode_us()
                share = cache.pages * cache.page_bytes / us * 1e6 / peak
                name = f"kvq{bits}" if levels else f"nuq{bits}-1%"
                rows.append(dict(recipe=name, batch=batch, heads=32, kv_heads=8, head_dim=128, tokens=tokens, us=us, sdpa_us=peer,
                                 ratio=peer / us, roofline=share, bytes=cache.pages * cache.page_bytes))
                against = f"   {times[0] / us:.2f} of nuq's speed" if levels else ""
                print(f"{batch:5d}   32/8 {tokens:7d} {name:>8} {us:8.1f} {peer:9.1f} {peer / us:6.2f} {share:7.2f}{against}", flush=True)
                del cache
                torch.cuda.empty_cache()
    for icm in (0, 1, 3):
        cache = Cache(library, 8, 32, 8, 128, 32768, 3, 0.01, levels=10, icm=icm)
        one = cache.append_us()
        del cache
        cache = Cache(library, 1, 32, 8, 128, PREFILL, 3, 0.01, levels=10, icm=icm)
        many = cache.prefill_us()
        del cache
        torch.cuda.empty_cache()
        rows.append(dict(recipe=f"kvq3:icm={icm}", append_batch8_us=one, prefill_tokens=PREFILL, prefill_us=many))
        print(f"kvq3:icm={icm}: append of a token, batch 8: {one:.1f} us a layer; of {PREFILL} tokens at once: {many / 1e3:.2f} ms a layer", flush=True)


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
    parser.add_argument("--kvq", action="store_true", help="also the recommended recipes")
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
    for name in filter(None, arguments.shapes.split(",")):
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
    if arguments.kvq:
        bench_kvq(library, [int(word) for word in arguments.bits.split(",")], peak, rows)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(dict(device=device, torch=torch.__version__, read_bytes_per_second=peak, rows=rows), file, indent=1)


if __name__ == "__main__":
    main()
