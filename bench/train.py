#!/usr/bin/env python3
"""Training speed and memory against PyTorch, same shapes, same threads, same run, medians.

    python bench/train.py [--plimsoll build/release/plimsoll] [--python python3] [--models 30m,120m] [--steps 3]

PyTorch runs as people run it (transformers' LlamaForCausalLM, fused AdamW), with both of its attentions, in fp32, under bf16 autocast and
all in bf16, eager and compiled; its best in either precision is what bf16 is compared with. We run without a
budget, so the planner is free. Also says what the machine's arithmetic limit is and what share we reach.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

LIMIT = 240  # seconds for one PyTorch run
MODELS = {
    "30m": dict(vocab=16384, hidden=512, inter=1408, layers=8, heads=8, kv=4, T=512, B=4),
    "120m": dict(vocab=32000, hidden=768, inter=2048, layers=15, heads=12, kv=4, T=512, B=4),
}


def torch_run(python, shape, mode, attention, compile_, steps, threads):
    config = dict(shape, mode=mode, attention=attention, compile=compile_, steps=steps, threads=threads)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_train.py")
    try:
        result = subprocess.run([python, script, json.dumps(config)], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return dict(error=f"no result after {LIMIT} s")
    if result.returncode:
        return dict(error=result.stderr.strip().splitlines()[-1:] or result.returncode)
    return json.loads(result.stdout.strip().splitlines()[-1])


def our_run(program, shape, mode, steps, threads):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/corpus.txt", "wb") as f:
            f.write(bytes(32 + (i * 7919 + i // 97) % 90 for i in range(200000)))
        with open(f"{folder}/job.yaml", "w") as f:
            f.write(f"""model: {{architecture: llama, vocab_size: {shape['vocab']}, hidden_size: {shape['hidden']},
  intermediate_size: {shape['inter']}, num_layers: {shape['layers']}, num_attention_heads: {shape['heads']},
  num_key_value_heads: {shape['kv']}, tie_word_embeddings: true}}
data: {{train: [{folder}/corpus.txt], max_length: {shape['T']}}}
training: {{batch_size: {shape['B']}, steps: {steps + 1}, learning_rate: 1e-4, mixed_precision: {mode}, threads: {threads},
  device: cpu}}
output: {{dir: {folder}/run}}
""")
        result = subprocess.run([program, "train", f"{folder}/job.yaml", "--json", "--no-checkpoint", "-q"],
                                capture_output=True, text=True)
        if result.returncode:
            return dict(error=result.stderr.strip())
        events = [json.loads(line) for line in result.stdout.splitlines()]
        speeds = sorted(e["tokens_per_s"] for e in events[2:] if e["event"] == "step")
        plan = events[0]["knobs"]
        return dict(tokens_per_s=speeds[len(speeds) // 2], rss=events[-1]["rss_peak"], knobs=plan)


def flops_per_token(s):
    head = s["hidden"] // s["heads"]
    layer = s["hidden"] * (s["hidden"] * 2 + 2 * s["kv"] * head) + 3 * s["hidden"] * s["inter"]
    return 6 * (layer * s["layers"] + s["vocab"] * s["hidden"]) + 6 * s["layers"] * s["hidden"] * s["T"]


def show(label, r, shape):
    if "error" in r:
        print(f"  {label:30} failed: {r['error']}", flush=True)
    else:
        print(f"  {label:30} {r['tokens_per_s']:9.1f} tok/s {r['tokens_per_s'] * flops_per_token(shape) / 1e9:8.1f} GFLOP/s "
              f"{r['rss'] / 2**20:8.0f} MiB", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plimsoll", default="build/release/plimsoll")
    p.add_argument("--python", default=sys.executable, help="an interpreter that has torch and transformers")
    p.add_argument("--models", default="30m,120m")
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--attention", default="sdpa,eager", help="PyTorch's attention; sdpa's bf16 backward is slow on some CPUs")
    p.add_argument("--torch", default="fp32,autocast,bf16", help="PyTorch's modes")
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    a = p.parse_args()
    for name in a.models.split(","):
        shape = MODELS[name]
        ours, theirs = {}, {}
        print(f"\n{name}: {flops_per_token(shape) / 1e9:.3f} GFLOP a token, B={shape['B']} T={shape['T']}, {a.threads} threads")
        for mode in ("fp32", "bf16"):
            ours[mode] = our_run(a.plimsoll, shape, mode, a.steps, a.threads)
            show(f"plimsoll {mode}", ours[mode], shape)
        for mode in a.torch.split(","):
            for attention in a.attention.split(","):
                for compile_ in (False, True)[: 1 if a.no_compile else 2]:
                    r = torch_run(a.python, shape, mode, attention, compile_, a.steps, a.threads)
                    theirs[(mode, attention, compile_)] = r
                    show(f"torch {mode} {attention}{' compiled' if compile_ else ''}", r, shape)
        good = {k: r for k, r in theirs.items() if "error" not in r}
        speed_of = lambda r: r["tokens_per_s"]
        best32 = max((r for k, r in good.items() if k[0] == "fp32"), key=speed_of, default=None)
        best = max(good.values(), key=speed_of, default=None)
        for mode, rival, goal in (("fp32", best32, 1.2), ("bf16", best, 1.5)):
            if not rival:
                continue
            speed, memory = ours[mode]["tokens_per_s"] / rival["tokens_per_s"], ours[mode]["rss"] / rival["rss"]
            print(f"  {mode}: {speed:.2f} x PyTorch's {'fp32' if mode == 'fp32' else 'best'} (goal {goal}), {memory:.2f} x its memory (goal 0.6)")


main()
