#!/usr/bin/env python3
"""Budget ladder: a 120 M LLaMA, T=512, effective batch 16, at 100, 60, 40, 30 and 20 % of its naive need.

    python bench/ladder.py [--plimsoll build/release/plimsoll] [--precision bf16] [--steps 5]

At each rung it plans, trains and gives the same losses; prints budget, knobs, tokens/s, measured peak and how far the
losses are from the top rung's.
"""
import argparse
import json
import os
import subprocess
import tempfile

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--plimsoll", default="build/release/plimsoll")
p.add_argument("--precision", default="bf16")
p.add_argument("--steps", type=int, default=5)
p.add_argument("--hidden", type=int, default=768, help="smaller for a quick look")
p.add_argument("--rungs", default="100,60,40,30,20")
a = p.parse_args()

with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/corpus.txt", "wb") as f:
        f.write(bytes(32 + (i * 7919 + i // 97) % 90 for i in range(400000)))
    path = f"{folder}/job.yaml"
    with open(path, "w") as f:
        f.write(f"""model: {{architecture: llama, vocab_size: 32000, hidden_size: {a.hidden}, intermediate_size: {a.hidden * 8 // 3},
  num_layers: 15, num_attention_heads: 12, num_key_value_heads: 4, tie_word_embeddings: true}}
data: {{train: [{folder}/corpus.txt], max_length: 512}}
training: {{batch_size: 16, steps: {a.steps}, learning_rate: 3e-4, mixed_precision: {a.precision}}}
output: {{dir: {folder}/run}}
""")
    naive = json.loads(subprocess.run([a.plimsoll, "plan", path, "--json", "--budget", "64GiB"], capture_output=True,
                                      text=True).stdout)
    print(f"{naive['parameters'] / 1e6:.0f} M parameters, {a.precision}, naive need {naive['naive_bytes'] / 2**30:.2f} GiB")
    print(f"{'rung':>5} {'budget':>10} {'planned':>10} {'measured':>10} {'tok/s':>8}  knobs; losses against the first rung")
    first = None
    for rung in map(int, a.rungs.split(",")):
        budget = naive["naive_bytes"] * rung // 100
        result = subprocess.run([a.plimsoll, "train", path, "--budget", str(budget), "--json", "--no-checkpoint", "-q"],
                                capture_output=True, text=True)
        if result.returncode:
            print(f"{rung:4}% {budget / 2**20:7.0f} MiB  {result.stderr.strip()}", flush=True)
            continue
        events = [json.loads(line) for line in result.stdout.splitlines()]
        k, end = events[0]["knobs"], events[-1]
        losses = [e["loss"] for e in events if e["event"] == "step"]
        speeds = sorted(e["tokens_per_s"] for e in events if e["event"] == "step")
        first = first or losses
        same = "bit-identical" if losses == first else f"within {max(abs(x - y) / y for x, y in zip(losses, first)):.1e}"
        knobs = (f"{k['micro_batch']} x {k['accumulation']}, recompute {k['recompute']}"
                 + (f" {k['recompute_layers']} layers" if k["recompute_layers"] else "")
                 + f", loss/{k['loss_chunks']}, state on {k['state_tier']}"
                 + (", optimizer in backward" if k["optimizer_in_backward"] else ""))
        print(f"{rung:4}% {budget / 2**20:7.0f} MiB {end['planned_peak'] / 2**20:6.0f} MiB {end['rss_peak'] / 2**20:6.0f} MiB "
              f"{speeds[len(speeds) // 2]:8.1f}  {knobs}; {same}", flush=True)
