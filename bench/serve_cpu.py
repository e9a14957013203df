#!/usr/bin/env python3
"""Serving on the CPU against llama.cpp: prefill and decoding at 1 and 8 streams, in f16, bf16, 8 and 4 bits.

    bench/serve_cpu.py --folder /tmp/models --llama-python venv/bin/python [--threads 2] [--sizes 276M,1.2B] [--rounds 3]

Both read the same GGUF files of random numbers, which are made on the first run (numpy); llama.cpp is llama-cpp-python as
pip builds it, in the Python that --llama-python names; without it only our own numbers are printed. Rounds alternate
between the two, so that a machine with other work slows both; medians and their ratio are printed. Beside decoding is the
share of the machine's memory bandwidth that reading the weights once a step takes, beside a prompt of 16 bits the share of
its arithmetic that two operations per weight and token take; bench_gemm beside our program measures both.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time

SHAPES = {  # hidden, feed-forward, layers, heads, kv heads, vocabulary, tied
    "tiny": (256, 512, 2, 4, 4, 512, True),
    "276M": (1024, 2816, 16, 16, 16, 34304, False),
    "1.2B": (2048, 8192, 16, 32, 8, 128256, True),
}
KINDS = {"f16": ("F16", 1), "bf16": ("BF16", 30), "q8": ("Q8_0", 8), "q4": ("Q4_0", 2)}
PROMPT, ANSWER = 512, 48


# --- files ---------------------------------------------------------------------------------------------------------------

def text(s): return struct.pack("<Q", len(s)) + s.encode()


def value(v):
    if isinstance(v, float): return struct.pack("<If", 6, v)
    if isinstance(v, int): return struct.pack("<II", 4, v)
    return struct.pack("<I", 8) + text(v)


def payload(kind, rows, columns, numpy, random):
    n = rows * columns
    if kind == "F32": return numpy.ones(n, numpy.float32).tobytes()
    if kind == "F16": return (random.standard_normal(n, numpy.float32) * 0.02).astype(numpy.float16).tobytes()
    if kind == "BF16":
        return ((random.standard_normal(n, numpy.float32) * 0.02).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    width, deviation = {"Q8_0": (32, 73.0), "Q4_0": (16, 4.6)}[kind]
    blocks = numpy.empty((n // 32, 2 + width), numpy.uint8)
    blocks[:, 2:] = random.integers(0, 256, (n // 32, width), numpy.uint8)
    blocks[:, :2] = numpy.full(n // 32, 0.02 / deviation, numpy.float16).view(numpy.uint8).reshape(-1, 2)
    return blocks.tobytes()


def tensors_of(shape, kind):
    hidden, inner, layers, heads, kv, vocab, tied = shape
    size = hidden // heads
    out = [("token_embd.weight", kind, vocab, hidden), ("output_norm.weight", "F32", 1, hidden)]
    if not tied: out.append(("output.weight", kind, vocab, hidden))
    for i in range(layers):
        b = f"blk.{i}."
        out += [(b + "attn_norm.weight", "F32", 1, hidden), (b + "ffn_norm.weight", "F32", 1, hidden),
                (b + "attn_q.weight", kind, hidden, hidden), (b + "attn_k.weight", kind, kv * size, hidden),
                (b + "attn_v.weight", kind, kv * size, hidden), (b + "attn_output.weight", kind, hidden, hidden),
                (b + "ffn_gate.weight", kind, inner, hidden), (b + "ffn_up.weight", kind, inner, hidden),
                (b + "ffn_down.weight", kind, hidden, inner)]
    return out


def make(path, shape, kind):
    import numpy
    name, number = KINDS[kind]
    hidden, inner, layers, heads, kv, vocab, tied = shape
    random = numpy.random.default_rng(1)
    meta = {"general.architecture": "llama", "general.name": "random", "llama.context_length": 4096, "llama.embedding_length": hidden,
            "llama.block_count": layers, "llama.feed_forward_length": inner, "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
            "llama.rope.dimension_count": hidden // heads, "llama.vocab_size": vocab, "tokenizer.ggml.model": "none"}
    tensors, at = tensors_of(shape, name), 0
    numbers = {"F32": 0, name: number}
    sizes = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18)}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(text(k) + value(v) for k, v in meta.items())
    for tensor, kind_name, rows, columns in tensors:
        dims = [columns] if kind_name == "F32" else [columns, rows]
        head += text(tensor) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        head += struct.pack("<IQ", numbers[kind_name], at)
        each, many = sizes[kind_name]
        at += (rows * columns // each * many + 31) // 32 * 32
    with open(path + ".part", "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for tensor, kind_name, rows, columns in tensors:
            data = payload(kind_name, rows, columns, numpy, random)
            f.write(data + b"\0" * (-len(data) % 32))
    os.rename(path + ".part", path)


# --- ours ----------------------------------------------------------------------------------------------------------------

def ours(program, path, threads, streams):
    prompts = [(chr(97 + i) * 7 + " ") * (PROMPT // 8 if streams == 1 else 2) for i in range(streams)]
    command = [program, "generate", path, "--tokenizer", "bytes", "--device", "cpu", "--threads", str(threads), "-t", "0", "-q",
               "-n", str(ANSWER), "--json", "--parallel", str(streams)] + [a for p in prompts for a in ("-p", p)]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    answers = done.get("answers") or [done]
    return {"prefill": PROMPT / answers[0]["prompt_ms"] * 1e3 if streams == 1 else 0, "decode": sum(a["tokens_per_s"] for a in answers)}


# --- llama.cpp -----------------------------------------------------------------------------------------------------------

def llama(path, threads, streams, plain):
    """In the Python that has llama-cpp-python. plain: without layouts of its own, whose AMX code does not run when gcc 12 built it."""
    import llama_cpp as lib
    quiet = lib.llama_log_callback(lambda level, line, data: None)  # must outlive the library's last word
    lib.llama_log_set(quiet, None)
    lib.llama_backend_init()
    how = lib.llama_model_default_params()
    how.use_extra_bufts = not plain
    model = lib.llama_model_load_from_file(path.encode(), how)
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 1024, 512, 512, threads, threads
    params.n_seq_max = streams
    context = lib.llama_init_from_model(model, params)
    sampler = lib.llama_sampler_init_greedy()
    batch = lib.llama_batch_init(512, 0, streams)

    def put(rows):
        batch.n_tokens = len(rows)
        for i, (token, position, stream, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, logits
            batch.seq_id[i][0] = stream
        assert lib.llama_decode(context, batch) == 0
        return [lib.llama_sampler_sample(sampler, context, i) for i, row in enumerate(rows) if row[3]]

    prompt = PROMPT if streams == 1 else 16
    put([(5, i, 0, i == 7) for i in range(8)])  # everything is touched once
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    start = time.perf_counter()
    tokens = put([(10 + i % 200, i, s, i == prompt - 1) for s in range(streams) for i in range(prompt)])
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    for step in range(ANSWER - 1):
        tokens = put([(tokens[s], prompt + step, s, True) for s in range(streams)])
    seconds = time.perf_counter() - start
    return {"prefill": PROMPT / prefill if streams == 1 else 0, "decode": streams * (ANSWER - 1) / seconds}


# --- the table -----------------------------------------------------------------------------------------------------------

def peaks(program, threads):
    """What bench_gemm beside the program measures: GB/s of reading, GFLOP/s by type; nothing where it was not built."""
    bench = os.path.join(os.path.dirname(program), "bench_gemm")
    if not os.path.exists(bench): return {}
    out = subprocess.run([bench, str(threads), "peaks"], capture_output=True, text=True, check=True).stdout
    return {name: float(rate) for name, rate in (line.split() for line in out.splitlines()[1:])}


def share(what, path, kind, speed, peak):
    """Of memory when decoding (steps/s), of arithmetic for a prompt (tokens/s), as text; f16 is multiplied as f32."""
    size = os.path.getsize(path)
    if what == "decode" and "read" in peak: return f"   {size * speed / peak['read'] / 1e9:.2f} of memory"
    rate = peak.get({"f16": "f32", "bf16": "bf16"}.get(kind))
    return f"   {size * speed / rate / 1e9:.2f} of arithmetic" if what == "prefill" and rate else ""  # 2 bytes, 2 operations


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--folder", default="/tmp/serve_cpu")
    p.add_argument("--program", default="build/release/plimsoll")
    p.add_argument("--llama-python")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--sizes", default="276M,1.2B")
    p.add_argument("--kinds", default="f16,bf16,q8,q4")
    p.add_argument("--streams", default="1,8")
    p.add_argument("--as-llama", metavar="FILE", help=argparse.SUPPRESS)
    p.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.as_llama:
        print(json.dumps(llama(a.as_llama, a.threads, int(a.streams), a.plain)))
        return
    os.makedirs(a.folder, exist_ok=True)
    peak = peaks(a.program, a.threads)
    machine = ", ".join(f"{name} {rate:.0f} {'GB/s' if name == 'read' else 'GFLOP/s'}" for name, rate in peak.items())
    print(f"{'':12} {'':>9} {'ours':>10} {'llama.cpp':>10} {'ratio':>6}   {machine}")
    for size in a.sizes.split(","):
        for kind in a.kinds.split(","):
            path = f"{a.folder}/{size}-{kind}.gguf"
            if not os.path.exists(path): make(path, SHAPES[size], kind)
            for streams in (int(s) for s in a.streams.split(",")):
                table(a, path, size, kind, streams, peak)


def theirs(a, path, streams):
    """As it is; where that dies, without its own layouts, which is said."""
    command = [a.llama_python, os.path.abspath(__file__), "--as-llama", path, "--threads", str(a.threads), "--streams", str(streams)]
    for more in ([], ["--plain"]):
        done = subprocess.run(command + more, capture_output=True, text=True)
        if done.returncode == 0: return {**json.loads(done.stdout.splitlines()[-1]), "plain": bool(more)}
    sys.exit(f"llama.cpp: {done.stderr.strip()}")


def table(a, path, size, kind, streams, peak):
    runs = {"ours": [], "llama": []}
    for _ in range(a.rounds):
        runs["ours"].append(ours(a.program, path, a.threads, streams))
        if a.llama_python:
            runs["llama"].append(theirs(a, path, streams))
    for what in ("prefill", "decode") if streams == 1 else ("decode",):
        mine = statistics.median(r[what] for r in runs["ours"])
        its = statistics.median(r[what] for r in runs["llama"]) if runs["llama"] else float("nan")
        part = share(what, path, kind, mine / streams, peak)
        note = "   (llama.cpp without its own layouts)" if any(r["plain"] for r in runs["llama"]) else ""
        label = f"{what} {streams}"
        print(f"{size + ' ' + kind:12} {label:>9} {mine:10.1f} {its:10.1f} {mine / its:6.2f}{part}{note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
