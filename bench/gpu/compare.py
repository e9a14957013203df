#!/usr/bin/env python3
"""Training on one GPU against PyTorch: same shapes, same card, same run, medians of steps.

    python3 bench/gpu/compare.py [--plimsoll build/release/plimsoll] [--cases llama1b,...] [--no-torch] [--out FILE.json]

Each case names what it asks of us; --list shows them. PyTorch runs eager with checkpointing and compiled
(bench/gpu/torch_step.py). Memory of ours is what the driver says the process takes, context and libraries included;
PyTorch's is its allocator's peak, which leaves those out.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

LLAMA_1B = dict(architecture="llama", vocab=128256, hidden=2048, inter=8192, layers=16, heads=32, kv=8, tie=True)
LLAMA_8B = dict(architecture="llama", vocab=128256, hidden=4096, inter=14336, layers=32, heads=32, kv=8, tie=False)
GPT2 = dict(architecture="gpt2", vocab=50304, hidden=768, inter=3072, layers=12, heads=12, kv=12, tie=True)

MASTER = "training.grad_dtype=bf16"
NARROW = "training.grad_dtype=bf16 training.master_weights=none training.state_dtype=bf16"
GIB = 2**30

# name: model, B, T, accumulation, torch mode, our --set words, our budget in GiB, torch variants
CASES = {
    "llama1b": (LLAMA_1B, 4, 2048, 1, "amp", MASTER, None, ("compile", "checkpointing")),
    "llama1b-21": (LLAMA_1B, 4, 2048, 1, "amp", MASTER, 21.5, ()),
    "llama1b-bf16": (LLAMA_1B, 4, 2048, 1, "bf16", NARROW, None, ("compile",)),
    "llama1b-bf16-13": (LLAMA_1B, 4, 2048, 1, "bf16", NARROW, 13.7, ()),
    "llama1b-16x4": (LLAMA_1B, 16, 2048, 4, "bf16", NARROW, 24, ()),
    "gpt2": (GPT2, 32, 1024, 1, "amp", MASTER, None, ("compile",)),
    "gpt2-9": (GPT2, 32, 1024, 1, "amp", MASTER, 9, ()),
    **{f"llama1b-at-{gib}": (LLAMA_1B, 4, 2048, 1, "amp", MASTER, gib, ()) for gib in (24, 20, 16, 12, 10, 8, 6, 4, 3)},
    "llama8b": (LLAMA_8B, 8, 2048, 8, "bf16", MASTER, None, ()),
    "llama8b-80": (LLAMA_8B, 8, 2048, 8, "bf16", MASTER, 80, ()),
    "llama8b-24": (LLAMA_8B, 8, 2048, 8, "bf16", MASTER, 24, ()),
}


def our_run(a, case, folder, steps, extra=()):
    model, batch, time_, accumulation, _, words, budget, _ = CASES[case]
    kv = f"num_key_value_heads: {model['kv']}, rope_theta: 500000.0," if model["architecture"] == "llama" else ""
    with open(f"{folder}/{case}.yaml", "w") as f:
        f.write(f"""model: {{architecture: {model['architecture']}, vocab_size: {model['vocab']}, hidden_size: {model['hidden']},
  intermediate_size: {model['inter']}, num_layers: {model['layers']}, num_attention_heads: {model['heads']}, {kv}
  tie_word_embeddings: {str(model['tie']).lower()}}}
data: {{train: [{folder}/corpus.txt], max_length: {time_}}}
training: {{batch_size: {batch}, gradient_accumulation_steps: {accumulation}, steps: {steps}, learning_rate: 1e-4,
  mixed_precision: bf16, max_grad_norm: 1.0, device: cuda}}
output: {{dir: {folder}/run}}
""")
    command = [a.plimsoll, "train", f"{folder}/{case}.yaml", "--json", "--no-checkpoint", "-q"]
    for word in words.split() + list(extra):
        command += ["--set", word]
    if budget:
        command += ["--budget", str(int(budget * GIB))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=a.limit)
    if result.returncode:
        return dict(error=result.stderr.strip()[-300:])
    events = [json.loads(line) for line in result.stdout.splitlines()]
    stepped = [e for e in events if e["event"] == "step"]
    speeds = sorted(e["tokens_per_s"] for e in stepped[2:])
    return dict(tokens_per_s=speeds[len(speeds) // 2], peak_gib=max(e["memory"]["used"] for e in stepped) / GIB,
                planned_gib=events[0]["planned_total"] / GIB if "planned_total" in events[0] else None,
                knobs=events[0].get("knobs"), loss=[round(e["loss"], 4) for e in stepped[:3]])


def torch_run(a, case, variant, steps):
    model, batch, time_, accumulation, mode, _, _, _ = CASES[case]
    config = dict(model=model, B=batch, T=time_, accumulation=accumulation, mode=mode, steps=steps, **{variant: True})
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_step.py")
    result = subprocess.run([a.python, script, json.dumps(config)], capture_output=True, text=True, timeout=a.limit)
    lines = result.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else dict(error=result.stderr.strip()[-300:])


def show(label, r, rival=None):
    if "error" in r:
        return f"{label:34} {r['error']}"
    text = f"{label:34} {r['tokens_per_s']:10.0f} tok/s {r['peak_gib']:7.2f} GiB"
    if rival and "error" not in rival:
        text += f"   {r['tokens_per_s'] / rival['tokens_per_s']:.2f} x speed, {r['peak_gib'] / rival['peak_gib']:.2f} x memory"
    if r.get("knobs"):
        text += "   " + " ".join(f"{k}={v}" for k, v in r["knobs"].items())
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plimsoll", default="build/release/plimsoll")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--cases", default="llama1b,llama1b-21,llama1b-bf16,llama1b-bf16-13,gpt2,gpt2-9")
    p.add_argument("--set", action="append", default=[], help="more KEY=VALUE for our runs")
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--limit", type=int, default=300, help="seconds for one run")
    p.add_argument("--no-torch", action="store_true")
    p.add_argument("--list", action="store_true")
    p.add_argument("--out", help="write everything measured here, as JSON")
    a = p.parse_args()
    if a.list:
        print("\n".join(CASES))
        return
    rows, results = [], {}
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/corpus.txt", "wb") as f:
            f.write(random.Random(1).randbytes(16 << 20))
        for case in a.cases.split(","):
            theirs = {}
            if not a.no_torch:
                for variant in CASES[case][7]:
                    theirs[variant] = torch_run(a, case, variant, a.steps)
                    rows.append(show(f"{case} torch {variant}", theirs[variant]))
                    print(rows[-1], flush=True)
            start = time.time()
            ours = our_run(a, case, folder, a.steps + 3, a.set)
            rows.append(show(f"{case} plimsoll", ours, theirs.get("compile")) + f"   ({time.time() - start:.0f} s)")
            print(rows[-1], flush=True)
            results[case] = dict(plimsoll=ours, torch=theirs)
    if a.out:
        with open(a.out, "w") as f:
            json.dump(results, f, indent=1)
    print("\n" + "\n".join(rows))


main()
