#!/usr/bin/env python3
"""Serving on one GPU: bench_serve's lines over models of random numbers, llama.cpp beside those it can read; prints the table.

    python3 bench/gpu/serve.py --list
    python3 bench/gpu/serve.py --out FILE.json --append --missing --minutes 9 --folder /dev/shm     # again until all is there
    python3 bench/gpu/serve.py --cases quantised --llama llama.cpp --out FILE.json                   # its library built for the GPU
    python3 bench/gpu/serve.py --merge A.json B.json --out BOTH.json                                 # runs nothing

Every line is a process of its own, so one that fails costs no other. The file is written after every run, as compare.py's is. Rounds alternate
between the two programs; the table has medians. Memory is the driver's figure beside the plan.
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "tests", "support")]  # behind this folder: both have a machine.py

import base_folder
import machine
import random_gguf
import serve_cpu
from cases import GIB, MODELS
from compare import LEAST, Failed, launch
from report import write

LLAMA_BATCH = 2048  # tokens that llama.cpp reads at once: faster on a card than its default of 512


@dataclass(frozen=True)
class Case:
    model: str  # a folder in bf16 (1b, 8b) or a GGUF file (1b-q4_k_m)
    line: str  # KIND:STREAMS:PROMPT:TOKENS of bench_serve
    goal: float = None  # tok/s
    settings: tuple = ()  # NAME=VALUE of bench_serve
    adapters: int = 0  # PEFT folders of rank 16, all in use
    against: str = None  # the case whose speed this one is a share of
    share: float = None  # goal of that share
    rival: bool = False  # llama.cpp reads the same file
    seconds: float = 20  # about how long it takes, on an H200
    rounds: int = 3


def few_and_prompt(name, model, one, settings=(), rival=False):
    """One, 8 and 32 streams and a prompt; one: the goal of one stream, which differs between types."""
    lines = (("1", "decode:1:8:256", one), ("8", "decode:8:8:256", 5500), ("32", "decode:32:8:256", 18000), ("prompt", "prefill:1:4000:1", 150000))
    return {f"{name}-{end}": Case(model, line, goal, settings, rival=rival) for end, line, goal in lines}


def of_file(kind, one):
    return few_and_prompt(f"1b-{kind}", f"1b-{kind}", one, rival=True)


@dataclass(frozen=True)
class Row:
    """Of full load. rate: TensorRT-LLM's, published for LLaMA-3.1-8B in fp8 on one H200."""
    prompt: int
    answer: int
    rate: int
    requests: int  # enough for a minute or two
    budget: int  # GiB; where prompts take the time, as much as half a minute of them fills


FULL_LOAD = (Row(128, 128, 27911, 14000, 130), Row(128, 2048, 26221, 1600, 130), Row(500, 2000, 20770, 1400, 130),
             Row(1000, 1000, 17744, 1800, 130), Row(2048, 128, 3538, 2000, 50), Row(2048, 2048, 12194, 850, 130),
             Row(5000, 500, 3902, 600, 60), Row(20000, 2000, 1804, 82, 60))
WINDOW = 15  # seconds of which a steady rate is measured
START = 15  # until the first request
READ = 50000  # tokens of prompts that are read in a second, or more
POSITION = 64 << 10  # bytes of LLaMA-8B's keys and values in 8 bits


def full_load(name, kind, settings, share=1.0, against=None):
    """All eight from the first request to the last; of bf16 the goal is a share of the published rate, of HTTP a share of the engine's."""
    return {f"{name}-{r.prompt}-{r.answer}":
            Case("8b", f"{kind}:{r.requests}:{r.prompt}:{r.answer}", None if against else share * r.rate, ("running=2048", *settings),
                 against=f"{against}-{r.prompt}-{r.answer}" if against else None, share=0.95 if against else None,
                 seconds=START + r.requests * r.answer / r.rate / (share if not against else 1), rounds=1) for r in FULL_LOAD}


def steady(name, kind, settings, share=1.0, against=None):
    """The same in steady state (bench/load/steady.h): requests for twice the rate that is asked for, connections for all that run."""
    cases = {}
    for r in FULL_LOAD:
        held = r.prompt + r.answer // 2  # at the mean age of a request
        first = min(2048, r.budget * GIB // held // POSITION)  # of all bytes: as many as run
        fill = first * held / READ / share  # seconds until requests of all ages run
        cases[f"{name}-{r.prompt}-{r.answer}"] = Case(
            "8b", f"{kind}:{first + int(2 * (WINDOW + fill) * r.rate / r.answer)}:{r.prompt}:{r.answer}", None if against else share * r.rate,
            ("running=2048", f"steady={WINDOW}", f"budget={r.budget}GiB", *((f"client={first * 5 // 4}",) if against else ()), *settings),
            against=f"{against}-{r.prompt}-{r.answer}" if against else None, share=0.95 if against else None,
            seconds=START + fill + WINDOW, rounds=1)
    return cases


FP8 = ("weights=fp8", "kv=fp8")
GROUPS = {
    "quantised": {**of_file("f16", None), **of_file("q8", 1500), **of_file("q4", 1900), **of_file("q4_k_m", 1800),
                  "8b-q4_k_m-1": Case("8b-q4_k_m", "decode:1:8:256", 450, rival=True, seconds=60)},
    "own": {**few_and_prompt("1b-own-q8", "1b", 1500, ("weights=q8",)), **few_and_prompt("1b-own-q4", "1b", 1900, ("weights=q4",))},
    "adapters": {"1b-256": Case("1b", "decode:256:128:128"), "1b-256-all": Case("1b", "all:256:128:128"),
                 "1b-64-adapters": Case("1b", "decode:256:128:128", adapters=64, against="1b-256", share=0.85),
                 "1b-64-adapters-all": Case("1b", "all:256:128:128", adapters=64, against="1b-256-all", share=0.85)},
    "streams": {"1b-1": Case("1b", "decode:1:8:512", 1200), "1b-64": Case("1b", "decode:64:512:128", 35000),
                "1b-64-fp8kv": Case("1b", "decode:64:512:128", settings=("kv=fp8",), against="1b-64", share=1.0),
                "1b-64-i8kv": Case("1b", "decode:64:512:128", settings=("kv=i8",), against="1b-64", share=1.0),
                "1b-256-512": Case("1b", "decode:256:512:128", 60000),
                "1b-32k": Case("1b", "decode:1:32000:128"), "1b-128k": Case("1b", "decode:1:130000:128", seconds=30)},
    "full-load": full_load("8b-fp8", "all", FP8),
    "full-load-http": {**full_load("8b-fp8-http", "http", FP8, against="8b-fp8"), **full_load("8b-fp8-stream", "stream", FP8, against="8b-fp8")},
    "full-load-bf16": full_load("8b-bf16", "all", (), share=0.65),
    "steady": steady("8b-fp8-steady", "all", FP8),
    "steady-http": {**steady("8b-fp8-steady-http", "http", FP8, against="8b-fp8-steady"),
                    **steady("8b-fp8-steady-stream", "stream", FP8, against="8b-fp8-steady")},
    "steady-bf16": steady("8b-bf16-steady", "all", (), share=0.65),
}
CASES = {name: case for group in GROUPS.values() for name, case in group.items()}


def chosen(text):
    """Names of "a,b,group"; a case that is a share of another follows it."""
    out = []
    for word in text.split(","):
        for name in CASES if word == "all" else GROUPS.get(word, [word]):
            if name not in CASES: raise ValueError(f"'{name}' is no case and no group (--list shows them)")
            if CASES[name].against and CASES[name].against not in out: out.append(CASES[name].against)
            if name not in out: out.append(name)
    return out


# --- models --------------------------------------------------------------------------------------------------------------

def model_path(folder, case):
    """The case's model, made when it is first asked for."""
    size, _, kind = case.model.partition("-")
    path = os.path.join(folder, case.model + (".gguf" if kind else ""))
    if os.path.exists(path): return path
    if kind: random_gguf.make(path, random_gguf.SHAPES[{"1b": "1.2B", "8b": "8B"}[size]], kind)
    else: base_folder.make(path, MODELS[f"llama{size}"], 131072, blank=False)
    return path


def adapters_path(folder, case):
    import lora_folder
    path, m = os.path.join(folder, f"adapters-{case.adapters}"), MODELS["llama1b"]
    if not os.path.exists(path):
        sizes = dict(hidden_size=m["hidden"], intermediate_size=m["inter"], num_hidden_layers=m["layers"], num_attention_heads=m["heads"],
                     num_key_value_heads=m["kv"], vocab_size=m["vocab"], head_dim=m["hidden"] // m["heads"])
        for i in range(case.adapters): lora_folder.make(f"{path}/a{i:02}", r=16, alpha=32, seed=i + 1, size=0.01, **sizes)
    return path


# --- runs ----------------------------------------------------------------------------------------------------------------

def ours(a, case, folder, limit):
    result = os.path.join(folder, "line.json")
    if os.path.exists(result): os.remove(result)
    settings = [*case.settings, f"json={result}"] + ([f"adapters={adapters_path(a.folder, case)}"] if case.adapters else [])
    launch([a.program, model_path(a.folder, case), a.device, *settings, case.line], limit, folder)
    with open(result) as f: return json.loads(f.read())


def theirs(a, case, folder, limit):
    kind, streams, prompt, answer = case.line.split(":")
    text = launch([a.driver, model_path(a.folder, case), "1", streams, prompt, str(max(2, int(answer))), str(LLAMA_BATCH), "given"], limit, folder)[0]
    prefill, decode = (float(v) for v in text.split()[:2])
    return dict(tokens_per_s=prefill if kind == "prefill" else decode)


def median(rounds):
    """The round in the middle, with the speeds of all."""
    speeds = sorted(r["tokens_per_s"] for r in rounds)
    middle = min(rounds, key=lambda r: abs(r["tokens_per_s"] - statistics.median(speeds)))
    return dict(middle, tokens_per_s=statistics.median(speeds), rounds=speeds)


def run(a, name, folder, limit):
    """Medians of ours and, where it reads the file, of llama.cpp's, in turn."""
    case, mine, its = CASES[name], [], []
    for _ in range(a.rounds or case.rounds):
        mine.append(ours(a, case, folder, limit))
        if case.rival and a.driver: its.append(theirs(a, case, folder, limit))
    return dict(ours=median(mine), **(dict(llama=median(its)) if its else {}))


def run_all(a, results, folder):
    start, left = time.monotonic(), []
    for name in chosen(a.cases):
        have, case = results["cases"].get(name), CASES[name]
        if a.missing and have and "error" not in have and ("llama" in have or not (case.rival and a.driver)): continue
        room = a.minutes * 60 - (time.monotonic() - start) if a.minutes else math.inf
        needs = max(LEAST, (have or {}).get("seconds", case.seconds * (a.rounds or case.rounds)))
        if room < needs:
            left.append(name)
            continue
        begun = time.monotonic()
        try:
            value = run(a, name, folder, min(a.limit, room))
        except Exception as e:  # whatever it was: it is this run's result, and the next one begins
            value = dict(error=str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}")
        results["cases"][name] = dict(value, run=len(results["runs"]) - 1, seconds=round(time.monotonic() - begun, 1))
        print(" | ".join(cells(results, name)), flush=True)
        write(results, a.out)
    return left


# --- the table -----------------------------------------------------------------------------------------------------------

def merge(paths):
    """Files in order; a later result takes the place of an earlier one unless it is an error."""
    out = dict(runs=[], cases={})
    for path in paths:
        with open(path) as f: more = json.load(f)
        if not isinstance(more, dict) or "runs" not in more: raise ValueError(f"{path}: no file of serve.py's")
        for name, entry in more["cases"].items():
            entry["run"] += len(out["runs"])
            if "error" not in entry or name not in out["cases"]: out["cases"][name] = entry
        out["runs"] += more["runs"]
    return out


def verdict(results, case, speed):
    if case.goal: return f"goal {case.goal:,.0f}: {'met' if speed >= case.goal else 'missed'}"
    other = results["cases"].get(case.against, {}).get("ours") if case.against else None
    return f"{speed / other['tokens_per_s']:.2f} of {case.against} (goal {case.share:g})" if other else ""


def cells(results, name):
    case, entry = CASES[name], results["cases"][name]
    what = " ".join([case.line, *case.settings] + ([f"{case.adapters} adapters"] if case.adapters else []))
    if "error" in entry: return [name, what, entry["error"].replace("|", "/").replace("\n", " "), "", "", ""]
    mine, its = entry["ours"], entry.get("llama")
    spread = f" ({mine['rounds'][0]:,.0f}-{mine['rounds'][-1]:,.0f})" if len(mine["rounds"]) > 1 else ""
    beside = f"llama.cpp {its['tokens_per_s']:,.0f}: {mine['tokens_per_s'] / its['tokens_per_s']:.2f} x" if its else ""
    memory = f"{mine['planned_bytes'] / GIB:.2f}, {mine['driver_bytes'] / GIB:.2f} GiB" if "driver_bytes" in mine else f"{mine['planned_bytes'] / GIB:.2f} GiB"
    return [name, what, f"{mine['tokens_per_s']:,.0f}{spread}", verdict(results, case, mine["tokens_per_s"]), beside, memory]


def table(results):
    out = [f"run {number}: " + ", ".join(f"{k} {v}" for k, v in run.items() if v is not None) for number, run in enumerate(results["runs"])]
    out += ["", "| | line | tok/s | goal | beside | planned, the driver says |", "|---|---|---|---|---|---|"]
    return "\n".join(out + [f"| {' | '.join(cells(results, name))} |" for name in CASES if name in results["cases"]])


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="build/release/bench_serve")
    p.add_argument("--device", default="cuda")
    p.add_argument("--cases", default="all", help="names and groups with commas between (default: all)")
    p.add_argument("--rounds", type=int, help="runs of each line (default: 3, full load 1)")
    p.add_argument("--limit", type=int, default=400, help="seconds for one line")
    p.add_argument("--minutes", type=float, help="begin no case that would not end within so many minutes")
    p.add_argument("--folder", help="where models are made and kept, e.g. /dev/shm (default: a temporary folder)")
    p.add_argument("--llama", help="llama.cpp's source folder, with its library in build/")
    p.add_argument("--llama-build", help="its build folder, if it is another")
    p.add_argument("--out", help="write everything measured here, as JSON")
    p.add_argument("--append", action="store_true", help="keep what --out already has")
    p.add_argument("--missing", action="store_true", help="with --append: run only what is not there or failed")
    p.add_argument("--merge", nargs="+", metavar="FILE", help="run nothing: put files together and print their table")
    p.add_argument("--commit", help="what was measured, where git cannot tell")
    p.add_argument("--list", action="store_true")
    return p.parse_args()


def main():
    a = options()
    try:
        names = chosen(a.cases)
        results = merge(a.merge or ([a.out] if a.append and a.out and os.path.exists(a.out) else []))
    except (OSError, ValueError) as e:
        sys.exit(f"serve.py: {e}")
    if a.list:
        for group, held in GROUPS.items(): print(f"{group}:", *(n for n in held if n in names))
        return 0
    left = []
    with tempfile.TemporaryDirectory() as folder:
        a.folder = a.folder or folder
        os.makedirs(a.folder, exist_ok=True)
        if not a.merge:
            a.driver = serve_cpu.driver(folder, a.llama, a.llama_build)
            results["runs"].append(machine.header(a.program, a.commit))
            left = run_all(a, results, folder)
    write(results, a.out)
    print("\n" + table(results))
    if left: print("no time was left for: " + ", ".join(left))
    return 1 if left or any("error" in entry for entry in results["cases"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
