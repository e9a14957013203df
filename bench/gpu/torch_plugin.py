#!/usr/bin/env python3
"""torch_plugin.py [--steps N] [--out FILE] - PyTorch training a LLaMA-1B on a GPU: its own allocator against Plimsoll's plug-in.

Each run is a process of its own:
    native-exact      512 tokens, attention whose gradient is the same at every run: for the losses
    plugin-exact      the same through plimsoll.torch.use_allocator
    native            PyTorch's allocator, default options
    plugin            plimsoll.torch.use_allocator
    packed            the same with pack=True: equal steps from one arena
    varied            rows of varied lengths, PyTorch's allocator; its reserved peak is the measure of the next two
    varied-native     inside 0.9 of that peak (set_per_process_memory_fraction)
    varied-plugin     inside 0.9 of that peak (budget)
    leak              a list that keeps one tensor of each step; the plug-in must name its line
Prints a table and writes JSON. Needs PyTorch with CUDA, transformers, and a build with CUDA (PLIMSOLL_LIBRARY).
"""
import argparse
import json
import os
import random
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))


def build_model(torch, size, exact):
    from transformers import LlamaConfig, LlamaForCausalLM
    shape = {"1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=32000),
             "tiny": dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, vocab_size=1000)}[size]
    torch.manual_seed(0)
    with torch.device("cuda"):
        return LlamaForCausalLM(LlamaConfig(max_position_embeddings=4096, attn_implementation="eager" if exact else "sdpa", **shape)).to(torch.bfloat16), shape["vocab_size"]


def lengths_of(mode, steps):
    random.seed(7)
    if not mode.startswith("varied"): return [512 if mode.endswith("exact") else 2048] * steps
    return [random.choice(range(256, 4097, 64)) for _ in range(steps)]


def work(args):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    torch.use_deterministic_algorithms(True, warn_only=True)  # so that losses can be compared
    memory = None
    if args.mode in ("plugin", "plugin-exact", "packed", "varied-plugin", "leak"):
        import plimsoll.torch
        budget = args.limit or None
        memory = plimsoll.torch.use_allocator(budget=budget, record=args.mode == "leak", pack=args.mode == "packed")
    if args.mode == "varied-native":
        torch.cuda.set_per_process_memory_fraction(args.limit / torch.cuda.mem_get_info()[1])
    model, vocab = build_model(torch, args.size, args.mode.endswith("exact"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, times, kept = [], [], []
    for step, length in enumerate(lengths_of(args.mode, args.steps)):
        torch.manual_seed(step)
        ids = torch.randint(0, vocab, (4, length), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
        if args.mode == "leak": kept.append(torch.zeros(1 << 20, device="cuda"))  # the planted leak
        del loss, ids
        if memory: memory.step()
        if step == 3: torch.cuda.reset_peak_memory_stats()  # a packed step begins behind the third
    stats = torch.cuda.memory_stats()
    out = {"losses": losses, "seconds": sorted(times[2:])[len(times[2:]) // 2], "reserved": stats["reserved_bytes.all.peak"],
           "active": stats["active_bytes.all.peak"], "allocated": stats["allocated_bytes.all.peak"]}
    if memory:
        out["packing"], out["leaks"] = memory.packing(), memory.leaks()[:3]
        out["fragmentation"] = {k: v for k, v in memory.stats().items() if "fragmentation" in k}
        if args.mode == "leak":
            torch.cuda.memory._dump_snapshot(args.snapshot)
            try:
                torch.empty(1 << 41, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                out["refusal"] = str(error)
    print("RESULT " + json.dumps(out), flush=True)


def run(mode, args, limit=0):
    command = [sys.executable, os.path.abspath(__file__), "--mode", mode, "--size", args.size, "--steps", str(args.steps), "--limit", str(limit),
               "--snapshot", args.snapshot]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "): return json.loads(line[7:])
    lines = [line for line in done.stderr.splitlines() if "Error" in line] or done.stderr.splitlines()[-1:]
    return {"failed": (lines or [f"exit {done.returncode}"])[-1][:600], "code": done.returncode}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--mode")
    p.add_argument("--size", default="1b")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--snapshot", default="/tmp/plimsoll_torch.pickle")
    p.add_argument("--out")
    p.add_argument("--only", help="some of the runs, separated by commas")
    args = p.parse_args()
    if args.mode: return work(args)
    wanted = args.only.split(",") if args.only else ["native-exact", "plugin-exact", "native", "plugin", "packed", "varied", "varied-native", "varied-plugin", "leak"]
    results = {}
    for mode in wanted:
        limit = int(0.9 * results.get("varied", {}).get("reserved", 0)) if mode in ("varied-native", "varied-plugin") else 0
        results[mode] = run(mode, args, limit)
    if args.out:
        with open(args.out, "w") as f: json.dump(results, f, indent=1)
    same = results.get("native-exact", {}).get("losses")
    for mode, r in results.items():
        if "failed" in r: print(f"{mode:14} failed: {r['failed'][:300]}")
        else: print(f"{mode:14} {1000 * r['seconds']:8.1f} ms  reserved {r['reserved'] / 2**30:7.3f} GiB  active {r['active'] / 2**30:7.3f} GiB  "
                    f"{'same losses' if r['losses'] == same else ''} {json.dumps(r.get('packing', ''))} {json.dumps(r.get('leaks', ''))[:300]}")
    if "refusal" in results.get("leak", {}): print(results["leak"]["refusal"])


main()
