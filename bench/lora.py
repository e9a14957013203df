#!/usr/bin/env python3
"""LoRA of a LLaMA with 276 M parameters on the CPU against PEFT: same base, rank 16 on all linear layers, same threads, one run.

    python bench/lora.py [--plimsoll build/release/plimsoll] [--python python3] [--rounds 3] [--steps 3] [--threads 2] [--out FILE.json]

--python names an interpreter that has torch, transformers and peft. PEFT is first run once in every way that a user has: fp32, bf16
autocast over fp32 weights, all in bf16, and bf16 with an fp32 adapter (PEFT's default for such a base), with both attentions, eager and
compiled, with and without checkpointing. Its fastest way and its leanest way then alternate with us, and medians are compared. We train with a
bf16 base in a budget of `share` of what that way took. CPU seconds of a step are told as well: on a busy machine they say more than the
clock. Run it alone on the machine, or with PRIORITY=1 (as root), so that both sides have the processors before other programs.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 400  # seconds for one PyTorch run
SHAPES = {
    "tiny": dict(vocab=512, hidden=64, inter=128, layers=2, heads=4, kv=4, T=64, B=2),
    "276M": dict(vocab=34304, hidden=1024, inter=2816, layers=16, heads=16, kv=16, T=512, B=4),
}


def take_priority():
    """Before others, and before their sessions where the kernel shares processors among sessions first."""
    os.setpriority(os.PRIO_PROCESS, 0, -19)
    with open("/proc/self/autogroup", "w") as f: f.write("-19")


def write_job(folder, shape, base, **training):
    model = f"path: {base}" if base else (
        f"architecture: llama, vocab_size: {shape['vocab']}, hidden_size: {shape['hidden']}, intermediate_size: {shape['inter']}, "
        f"num_layers: {shape['layers']}, num_attention_heads: {shape['heads']}, num_key_value_heads: {shape['kv']}, tie_word_embeddings: false")
    with open(f"{folder}/corpus.txt", "wb") as f: f.write(bytes(32 + (i * 7919 + i // 97) % 90 for i in range(200000)))
    settings = ", ".join(f"{k}: {v}" for k, v in dict(device="cpu", learning_rate=1e-4, **training).items())
    with open(f"{folder}/job.yaml", "w") as f:
        f.write(f"model: {{{model}}}\ndata: {{train: [{folder}/corpus.txt], max_length: {shape['T']}}}\ntraining: {{{settings}}}\noutput: {{dir: {folder}/run}}\n")
    return f"{folder}/job.yaml"


def make_base(program, folder, shape):
    """A model of random numbers as a folder of bf16, which both sides read."""
    job = write_job(folder, dict(shape, T=8), None, batch_size=1, steps=1, optimizer="sgd")
    subprocess.run([program, "train", job, "-q", "--json"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([program, "export", f"{folder}/run", "-o", f"{folder}/base", "--dtype", "bf16", "-q"], check=True)
    subprocess.run(["rm", "-r", f"{folder}/run"], check=True)
    return f"{folder}/base"


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f: fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def our_run(program, folder, base, shape, rank, steps, threads, budget):
    job = write_job(folder, shape, base, batch_size=shape["B"], steps=steps + 1, mixed_precision="bf16", threads=threads)
    command = [program, "train", job, "--lora", f"r={rank}", "--json", "--no-checkpoint", "-q"] + (["--budget", str(budget)] if budget else [])
    child, events, marks = subprocess.Popen(command, stdout=subprocess.PIPE, text=True), [], []
    for line in child.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "step": marks.append(cpu_seconds(child.pid))
    if child.wait(): sys.exit("plimsoll failed")
    speeds = [e["tokens_per_s"] for e in events if e["event"] == "step"][1:]
    return dict(tokens_per_s=statistics.median(speeds), cpu=(marks[-1] - marks[0]) / steps, rss=events[-1]["rss_peak"], knobs=events[0]["knobs"])


def their_run(python, base, shape, rank, way, steps, threads):
    config = dict(shape, path=base, lora=rank, steps=steps, threads=threads, **way)
    try:
        result = subprocess.run([python, f"{HERE}/torch_train.py", json.dumps(config)], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return dict(error=f"no result after {LIMIT} s")
    if result.returncode: return dict(error=(result.stderr.strip().splitlines() or [result.returncode])[-1])
    return json.loads(result.stdout.strip().splitlines()[-1])


def name_of(way): return " ".join([way["mode"], way["attention"]] + [k for k in ("compile", "checkpoint") if way[k]])


def show(label, r):
    text = f"failed: {r['error']}" if "error" in r else f"{r['tokens_per_s']:8.1f} tok/s {r['cpu']:7.2f} CPU s a step {r['rss'] / 2**20:6.0f} MiB"
    print(f"  {label:36} {text}", flush=True)


def middle(runs): return {k: statistics.median(r[k] for r in runs) for k in ("tokens_per_s", "cpu", "rss")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plimsoll", default="build/release/plimsoll")
    p.add_argument("--python", default=sys.executable, help="an interpreter that has torch, transformers and peft")
    p.add_argument("--size", default="276M", choices=SHAPES)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--share", type=float, default=0.4, help="our budget as a share of what PEFT took; 0: none")
    p.add_argument("--attention", default="sdpa,eager")
    p.add_argument("--modes", default="fp32,autocast,bf16,mixed", help="PyTorch's modes")
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    p.add_argument("--out", help="add all measurements to this file as one line of JSON")
    a = p.parse_args()
    if os.environ.get("PRIORITY"): take_priority()
    shape = SHAPES[a.size]
    ways = [dict(mode=m, attention=t, compile=c, checkpoint=k) for m, t, c, k in
            itertools.product(a.modes.split(","), a.attention.split(","), [False] if a.no_compile else [False, True], [False, True])]
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(a.plimsoll, folder, shape)
        print(f"{a.size}: B={shape['B']} T={shape['T']}, r={a.rank}, {a.threads} threads; PEFT in every way, once", flush=True)
        survey = {}
        for way in ways:
            survey[name_of(way)] = r = their_run(a.python, base, shape, a.rank, way, 1, a.threads)
            show(name_of(way), r)
        good = [w for w in ways if "error" not in survey[name_of(w)]]
        if not good: sys.exit("PEFT ran in no way; does --python have torch, transformers and peft?")
        fastest = max(good, key=lambda w: survey[name_of(w)]["tokens_per_s"])
        leanest = min(good, key=lambda w: survey[name_of(w)]["rss"])
        rivals = {name_of(w): w for w in (fastest, leanest)}
        ours, theirs = {name: [] for name in rivals}, {name: [] for name in rivals}
        print(f"alternating, {a.rounds} rounds of {a.steps} steps", flush=True)
        for name, way in list(rivals.items()) * a.rounds:
            budget = int(a.share * survey[name]["rss"])
            ours[name].append(our_run(a.plimsoll, folder, base, shape, a.rank, a.steps, a.threads, budget))
            show(f"plimsoll bf16, {budget / 2**20:.0f} MiB", ours[name][-1])
            theirs[name].append(their_run(a.python, base, shape, a.rank, way, a.steps, a.threads))
            show(name, theirs[name][-1])
        print("medians")
        for name in rivals:
            mine, r = middle(ours[name]), middle([x for x in theirs[name] if "error" not in x])
            show("plimsoll bf16", mine)
            show(name, r)
            print(f"  {mine['tokens_per_s'] / r['tokens_per_s']:.2f} x its speed ({r['cpu'] / max(mine['cpu'], 0.01):.2f} x by CPU seconds), {mine['rss'] / r['rss']:.2f} x its memory; {ours[name][-1]['knobs']}")
        if a.out:
            with open(a.out, "a") as f: print(json.dumps(dict(size=a.size, rank=a.rank, threads=a.threads, survey=survey, ours=ours, theirs=theirs)), file=f)


main()
