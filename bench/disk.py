#!/usr/bin/env python3
"""bench/disk.py [FOLDER] - a model whose optimizer state is three times the memory it trains in, and the disk beside it.

Trains on the CPU with all state on disk and prints which share of the disk's rate the steps reach: bytes that a step read and
wrote, as the run's log tells them, over the step's time and the rate of a raw loop (bench_disk) on the same disk. Both read and
write as many bytes, with O_DIRECT; the loop runs before and after every run, in four ways, of which the one counts that is fastest by its median. Medians of RUNS. Few tokens a step: arithmetic is to be small against the bytes. Run it alone on the machine, or with PRIORITY=1
(as root): steps and loop need the processors, and both then have them before other programs."""
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build", "release"))
PLIMSOLL = os.environ.get("PLIMSOLL", os.path.join(BUILD, "plimsoll"))
RUNS = int(os.environ.get("RUNS", "5"))
STEPS = int(os.environ.get("STEPS", "6"))
HIDDEN = int(os.environ.get("HIDDEN", "2048"))
LAYERS = int(os.environ.get("LAYERS", "3"))
TOKENS = int(os.environ.get("TOKENS", "16"))
LARGE = (16, 1 << 20)  # pieces of the loop's other try

JOB = """
model: {{architecture: llama, vocab_size: 256, hidden_size: {hidden}, intermediate_size: {inner}, num_layers: {layers}, num_attention_heads: 16}}
data: {{train: {corpus}, max_length: {tokens}}}
training: {{batch_size: 1, gradient_accumulation_steps: 1, steps: {steps}, mixed_precision: bf16, optimizer: adamw, max_grad_norm: 0,
  optimizer_in_backward: true, state_tier: disk, grad_dtype: bf16, learning_rate: 1.0e-4}}
budget: {budget}
output: {{dir: {out}}}
"""


def raw(folder, disk, size):
    """GB/s of reading and writing as many bytes: piece by piece in turn, and one after the other; with the tier's pieces and with larger ones."""
    out = []
    for depth, piece in ((disk["depth"], disk["piece"]), LARGE):
        line = [os.path.join(BUILD, "bench_disk"), folder, str(size), str(depth), str(piece), "0.8"]
        rate = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
        out += [rate["mixed"], 2 / (1 / rate["read"] + 1 / rate["write"])]
    return out


def plan(path, *more):
    result = subprocess.run([PLIMSOLL, "plan", path, "--json", "-q", *more], capture_output=True, text=True)
    return json.loads(result.stdout) if result.stdout else sys.exit(result.stderr)


def train(path, log):
    """Of the steps behind the first: median seconds, bytes, and the shares of the time in which the disk was idle and the step waited."""
    subprocess.run([PLIMSOLL, "train", path, "-q", "--overwrite", "--no-checkpoint", "--log", log], check=True, capture_output=True, text=True)
    events = [json.loads(line) for line in open(log)]
    steps = sorted((e for e in events if e["event"] == "step" and e["step"] > 1), key=lambda e: e["step_ms"])
    step = steps[len(steps) // 2]
    disk = step["disk"]
    return (step["step_ms"] / 1e3, disk["read"] + disk["written"], disk["idle_ms"] / step["step_ms"], disk["waited_ms"] / step["step_ms"],
            next((e["text"] for e in events if "disk tier" in e.get("text", "")), ""))


def take_priority():
    """Before others, and before their sessions where the kernel shares processors among sessions first."""
    os.setpriority(os.PRIO_PROCESS, 0, -19)
    with open("/proc/self/autogroup", "w") as f: f.write("-19")


def main():
    if os.environ.get("PRIORITY"): take_priority()
    folder = sys.argv[1] if len(sys.argv) > 1 else "."
    with tempfile.TemporaryDirectory(dir=folder) as work:
        corpus, path, log = f"{work}/corpus.txt", f"{work}/job.yaml", f"{work}/log.jsonl"
        with open(corpus, "w") as f: f.write("the ships of the line went down to the sea again and again\n" * 400)

        def write(budget):
            with open(path, "w") as f:
                f.write(JOB.format(hidden=HIDDEN, inner=HIDDEN * 11 // 4 // 64 * 64, layers=LAYERS, corpus=corpus, tokens=TOKENS, steps=STEPS, budget=budget, out=f"{work}/run"))
        write("16GiB")
        state = plan(path)["peak_bytes"]["disk"]
        write(state // 3)  # the line: a third of the state
        held = plan(path)
        if not held["fits"]: sys.exit(f"bench/disk.py: a third of the state, {state // 3} bytes, is not enough for the rest")
        kept = subprocess.run([PLIMSOLL, "calibrate", "--device", "cpu", "--force", "--json", "--disk", work], capture_output=True, text=True)
        disk = json.loads(kept.stdout)["now"]["disk"]
        runs, loops = [], [raw(work, disk, state)]
        for _ in range(RUNS):
            runs.append(train(path, log))
            loops.append(raw(work, disk, state))
            print(f"{runs[-1][0]:.2f} s a step; the loop beside it {', '.join(f'{r:.2f}' for r in loops[-1])} GB/s", flush=True)
        best = max(range(4), key=lambda i: statistics.median(loop[i] for loop in loops))
        rows = []
        for (seconds, moved, idle, waited, words), before, after in zip(runs, loops, loops[1:]):
            rate, beside = moved / seconds / 1e9, (before[best] + after[best]) / 2
            rows.append((rate / beside, rate, beside, seconds, idle, waited))
            print(f"{seconds:.2f} s a step, {rate:.2f} GB/s of {beside:.2f}: {rate / beside:.2f}; disk idle {idle:.0%}, step waited {waited:.0%}", flush=True)
        share, rate, beside, seconds, idle, waited = (statistics.median(row[i] for row in rows) for i in range(6))
        print(words)
        print(json.dumps({"state_bytes": state, "memory_bytes": held["peak_bytes"]["total"] if "total" in held["peak_bytes"] else held["total_bytes"],
                          "moved_bytes": moved, "seconds": round(seconds, 3), "rate": round(rate, 3), "disk": round(beside, 3), "share": round(share, 3),
                          "idle": round(idle, 3), "waited": round(waited, 3)}))


main()
