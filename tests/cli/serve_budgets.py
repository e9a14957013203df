#!/usr/bin/env python3
"""More budget is never refused and never gets less service: models x devices x budgets from too small to far too large.

    tests/cli/serve_budgets.py [BUDGETS [DEVICES]]      budgets of each pair (9), devices (4; 99: all presets)
"""
# run-tests: slow, timeout=900
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import concurrent.futures
import json
import re
import tempfile

import llama_folder
import plim
from plim import ok
import server

server.need_http()
BUDGETS = int(sys.argv[1]) if len(sys.argv) > 1 else 9
DEVICES = int(sys.argv[2]) if len(sys.argv) > 2 else 4
SHAPES = {  # hidden, feed-forward, layers, heads, key heads, head, vocabulary, positions
    "1b": (2048, 8192, 16, 32, 8, 64, 128256, 131072), "8b": (4096, 14336, 32, 32, 8, 128, 128256, 131072),
    "7b": (4096, 11008, 32, 32, 32, 128, 32000, 4096), "0.6b": (1024, 3072, 28, 16, 8, 128, 151936, 40960),
    "tiny": (288, 768, 6, 6, 6, 48, 32000, 256), "70b": (8192, 28672, 80, 64, 8, 128, 128256, 131072)}
NAMES = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size max_position_embeddings".split()
USUAL = ("rtx-4090", "h200", "cpu-4gb", "a10g")


def presets():
    """Memory of each device by name, the usual ones first."""
    found = re.findall(r"^(\S+) +([\d.]+) ([GM])iB", plim.run("plan", "--list-devices").stdout, re.M)
    listed = {name: float(number) * (1 << (30 if unit == "G" else 20)) for name, number, unit in found}
    return {d: listed[d] for d in sorted(listed, key=lambda d: (d not in USUAL, d))}


def plan(model, device, *flags):
    r = plim.run("plan", "--serve", model, "--json", "--device", device, *flags)
    return (r.returncode, json.loads(r.stdout)["plan"] if r.returncode == 0 else r.stderr)


def weights(model): return os.path.getsize(os.path.join(model, "model.safetensors"))


def budgets(model):
    """From far too small to far too large, most of them about as large as the weights."""
    low, high = weights(model) * 0.05, weights(model) * 3 + (40 << 30)
    return sorted({int(low * (high / low) ** (i / (BUDGETS - 1))) for i in range(BUDGETS)})


def compare(small, large):
    """The reasons why a plan of a larger budget is worse; empty: it is not."""
    worse = [k for k in ("context", "parallel", "parameters") if large[k] < small[k]]
    if large["step_tokens"] < small["step_tokens"] and not small["window"]: worse.append("step_tokens")
    if large["streamed"] > small["streamed"]: worse.append("streamed")
    for rate in ("prefill_tokens_per_second", "decode_tokens_per_second", "decode_tokens_per_second_full"):
        if large[rate] < 0.99 * small[rate]: worse.append(f"{rate} {small[rate]:.1f} -> {large[rate]:.1f}")
    return worse


MEMORY = presets()


def sweep(name, model, device):
    best = at = None
    problems = []
    for budget in budgets(model):
        code, p = plan(model, device, "--budget", str(budget))
        if code and best: problems.append(f"{budget} refused after {at}: {p.strip()}")
        if code and code != 3: problems.append(f"{budget}: exit {code}: {p.strip()}")
        if code: continue
        if p["total"] > min(budget, MEMORY[device] * 1.005): problems.append(f"{budget}: takes {p['total']}")
        if best and compare(best, p): problems.append(f"{at} -> {budget}: {compare(best, p)}")
        best, at = p, budget
    code, p = plan(model, device)
    if code not in (0, 3): problems.append(f"no budget: exit {code}")
    return name, device, problems, p if not code else None


def main():
    devices = dict(list(MEMORY.items())[:DEVICES])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        models = {n: llama_folder.make_hollow(f"{folder}/{n}", **dict(zip(NAMES, s))) for n, s in SHAPES.items()}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda a: sweep(*a), [(n, m, d) for n, m in models.items() for d in devices]))
        for name, device, problems, p in done:
            ok(not problems, f"{name} on {device}: {len(problems)} of {BUDGETS} budgets: {problems[:3]}")
        for low, high in ((1162090124, 1200000000), (1162090124, 1286707891)):  # a longer context must not make the same step slower
            small, large = (plan(models["1b"], "t4", "--budget", str(b))[1] for b in (low, high))
            ok(small["context"] < large["context"] and not compare(small, large), f"1b on t4 at {low} and {high}: {compare(small, large)}")
        usual = plan(models["8b"], "rtx-4090")[1]
        ok(usual["context"] >= 8192 and usual["parallel"] >= 64, f"8 B on an RTX 4090 by default: {usual['parallel']} requests, context {usual['context']}")
        for name, device, _, p in done:
            if p: ok(p["total"] <= devices[device] * 1.005, f"{name} on {device} without a budget: {p['total'] >> 20} of {devices[device] / 2**20:.0f} MiB")
    plim.done()


main()
