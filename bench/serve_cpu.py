#!/usr/bin/env python3
"""Serving on the CPU against llama.cpp: prefill and decoding at 1 and 8 streams, in f16, bf16 and quantised blocks.

    bench/serve_cpu.py --folder /tmp/models --llama llama.cpp [--threads 2] [--sizes 276M,1.2B] [--kinds q4,q4_k_m] [--rounds 3]

Both read the same GGUF files of random numbers, which are made on the first run (numpy). --llama names llama.cpp's source folder, in whose
folder build its library was built (cmake -B build; GGML_NATIVE is on by itself); --llama-build names another. Without --llama only our own
numbers are printed. bench/llama/decode.c is compiled against that library. Rounds alternate
between the two, so that a machine with other work slows both; medians and their ratio are printed. Beside decoding is the
share of the machine's memory bandwidth that reading the weights once a step takes, beside a prompt of 16 bits the share of
its arithmetic that two operations per weight and token take; bench_gemm beside our program measures both.
--clock cpu compares CPU time instead (bench_serve beside our program), for machines with other work, best with --threads 1: threads
that spin while they wait cost CPU time as well.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

from random_gguf import KINDS, SHAPES, make

PROMPT, ANSWER = 512, 48


# --- ours ----------------------------------------------------------------------------------------------------------------

def ours(a, path, streams):
    return (by_cpu if a.clock == "cpu" else by_wall)(a.program, path, a.threads, streams)


def by_cpu(program, path, threads, streams):
    prompt = PROMPT if streams == 1 else 16
    lines = [f"{kind}:{streams}:{prompt}:{ANSWER}" for kind in ("prefill", "decode")]
    out = subprocess.run([os.path.join(os.path.dirname(program), "bench_serve"), path, "cpu", f"threads={threads}"] + lines,
                         check=True, capture_output=True, text=True).stdout
    prefill, decode = (float(re.search(r"cpu ([0-9.]+)", line)[1]) for line in out.splitlines() if "tok/s" in line)
    return {"prefill": prefill if streams == 1 else 0, "decode": decode}


def by_wall(program, path, threads, streams):
    prompts = [(chr(97 + i) * 7 + " ") * (PROMPT // 8 if streams == 1 else 2) for i in range(streams)]
    command = [program, "generate", path, "--tokenizer", "bytes", "--device", "cpu", "--threads", str(threads), "-t", "0", "-q",
               "-n", str(ANSWER), "--json", "--parallel", str(streams)] + [a for p in prompts for a in ("-p", p)]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    answers = done.get("answers") or [done]
    return {"prefill": PROMPT / answers[0]["prompt_ms"] * 1e3 if streams == 1 else 0, "decode": sum(a["tokens_per_s"] for a in answers)}


# --- llama.cpp -----------------------------------------------------------------------------------------------------------

def driver(folder, llama, build=None):
    """bench/llama/decode.c in `folder`, compiled against llama.cpp's library; None: llama.cpp is not measured."""
    if not llama: return None
    source, build, program = os.path.abspath(llama), os.path.abspath(build or llama + "/build"), f"{folder}/llama-decode"
    subprocess.run(["cc", "-O2", f"-I{source}/include", f"-I{source}/ggml/include",
                    os.path.dirname(os.path.abspath(__file__)) + "/llama/decode.c", "-o", program, f"-L{build}/bin", "-lllama", "-lggml",
                    "-lggml-base", f"-Wl,-rpath,{build}/bin"], check=True)
    return program


def theirs(a, path, streams):
    prompt = PROMPT if streams == 1 else 16
    out = subprocess.run([a.driver, path, str(a.threads), str(streams), str(prompt), str(ANSWER)], capture_output=True, text=True, check=True).stdout
    prefill, decode = (float(v) for v in out.split()[2 if a.clock == "cpu" else 0:][:2])
    return {"prefill": prefill if streams == 1 else 0, "decode": decode}


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
    p.add_argument("--llama")
    p.add_argument("--llama-build")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--sizes", default="276M,1.2B")
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--streams", default="1,8")
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    a.driver = driver(a.folder, a.llama, a.llama_build)
    peak = peaks(a.program, a.threads)
    machine = ", ".join(f"{name} {rate:.0f} {'GB/s' if name == 'read' else 'GFLOP/s'}" for name, rate in peak.items())
    print(f"{'':12} {'':>9} {'ours':>10} {'llama.cpp':>10} {'ratio':>6}   {machine}")
    for size in a.sizes.split(","):
        for kind in a.kinds.split(","):
            path = f"{a.folder}/{size}-{kind}.gguf"
            if not os.path.exists(path): make(path, SHAPES[size], kind)
            for streams in (int(s) for s in a.streams.split(",")):
                table(a, path, size, kind, streams, peak)


def table(a, path, size, kind, streams, peak):
    runs = {"ours": [], "llama": []}
    for _ in range(a.rounds):
        runs["ours"].append(ours(a, path, streams))
        if a.driver: runs["llama"].append(theirs(a, path, streams))
    for what in ("prefill", "decode") if streams == 1 else ("decode",):
        mine = statistics.median(r[what] for r in runs["ours"])
        its = statistics.median(r[what] for r in runs["llama"]) if runs["llama"] else float("nan")
        part = share(what, path, kind, mine / streams, peak)
        label = f"{what} {streams}"
        print(f"{size + ' ' + kind:12} {label:>9} {mine:10.1f} {its:10.1f} {mine / its:6.2f}{part}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
