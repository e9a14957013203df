#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""PyTorch's own torch.cuda._memory_viz reads our pickle: its plots, its text of segments and events, its flame graphs.

Skips itself where torch is not installed (with_torch.py)."""
import os
import pickle
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import plim
from torch.cuda import _memory_viz as viz

CASES = {"cpu": [], "gpu with its host": ["--device", "a10g", "--set", "training.deepspeed.cpu_offload=true"]}


def sums(text):
    """Bytes by first frame of a flame graph's lines."""
    out = {}
    for line in text.splitlines():
        path, _, size = line.rpartition(" ")
        out[path.split(";")[2 if "active" in path else 1]] = out.get(path.split(";")[2 if "active" in path else 1], 0) + int(size)
    return out


def check(name, snapshot, plan):
    lines = lambda text: text  # format_flamegraph draws with a script from the network; we want what it is given
    plot, state = viz.trace_plot(snapshot), viz.segment_plot(snapshot)
    plim.ok("Active Memory Timeline" in plot and "Allocator State History" in state, f"{name}: trace_plot and segment_plot")
    text = viz.segsum(snapshot)  # asserts that blocks and gaps fill their segments
    plim.ok(f"segments: {len(snapshot['segments'])}" in text and "total_reserved" in text, f"{name}: segsum")
    told = viz.trace(snapshot)
    plim.ok("cudaMalloc" in told and "Device 0" in told, f"{name}: trace, {len(told.splitlines())} lines")
    graph = viz.memory(snapshot, format_flamegraph=lines)
    classes = sums(graph)
    plim.ok(sum(classes.values()) == sum(s["total_size"] for s in snapshot["segments"]), f"{name}: memory() has every byte {classes}")
    plim.ok(re.search(r"kept:0:param;param:\d+:model.embed_tokens.weight \d+", graph), f"{name}: by class and tensor")
    plim.ok(len(viz.segments(snapshot, format_flamegraph=lines).splitlines()) == len(graph.splitlines()), f"{name}: segments()")
    left = viz.filter_alloc_free_pairs(snapshot)["device_traces"][0]
    plim.ok(left and all(e["action"] in ("alloc", "segment_alloc") for e in left), f"{name}: every free has its allocation, {len(left)} stay")


def main():
    with tempfile.TemporaryDirectory() as folder:
        path, file = plim.job(folder), os.path.join(folder, "plan.pickle")
        for name, args in CASES.items():
            plan, result = plim.plan(path, "--memory-viz", file, *args)
            plim.ok(result.returncode == 0, f"{name}: planned {result.stderr.strip()}")
            with open(file, "rb") as f: check(name, pickle.load(f), plan)
    plim.done()


main()
