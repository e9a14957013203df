#!/usr/bin/env python3
"""What a run says of itself: to people as lines, to programs as JSON."""
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def lines(path, *args):
    """Lines for people, as a pipe gets them, and the events."""
    log = os.path.join(os.path.dirname(path), "lines.jsonl")
    result = plim.run("train", path, "--log", log, "--overwrite", *args)
    with open(log) as f: return result.stderr.splitlines() + result.stdout.splitlines(), plim.events(f.read())


def has(told, pattern, name):
    plim.ok(any(re.search(pattern, line) for line in told), f"{name}: {pattern}" + ("" if any(re.search(pattern, l) for l in told) else f" in {told[:12]}"))


def rates(folder):
    rows = f"{folder}/rows.jsonl"
    with open(rows, "w") as f:
        for i in range(10): f.write(json.dumps({"text": plim.CORPUS[20 * i:20 * i + 30]}) + "\n")
    path = plim.job(folder, data__train=f"[{rows}]", training__batch_size=4, training__gradient_accumulation_steps=2, training__micro_batch_size=2, training__steps=-1,
                    training__epochs=2, monitoring__log_every=2)
    told, events = lines(path)
    has(told, r"^effective batch 8 rows \(micro-batch 2 x accumulation 4\); predicted: an epoch is 10 rows, 2 steps, .*; the run's 4 steps take ", "before it starts")
    for number in (1, 2): has(told, rf"^starting epoch {number}/2$", "epochs")
    has(told, r"^step 1/4 .* samples/s  .* batches/s ", "each step")
    has(told, r"^20 rows trained, 2\.00 epochs so far: .* samples/s, .* batches/s$", "at the end")
    for number in (1, 2, 4): has(told, rf"^\[Step {number}\] Memory: ", "every second step")
    plim.ok(not any("[Step 3] Memory" in line for line in told), "and no other")
    steps = [e for e in events if e["event"] == "step"]
    near = lambda a, b: abs(a - b) <= 1e-6 * b
    plim.ok([e["rows"] for e in steps] == [8, 2, 8, 2] and all(near(e["samples_per_s"], 1e3 * e["rows"] / e["step_ms"]) for e in steps), "samples_per_s are rows of the step's time")
    plim.ok(all(near(e["batches_per_s"], 1e3 * n / e["step_ms"]) for e, n in zip(steps, (4, 1, 4, 1))), "batches_per_s are its micro-batches")
    plan, end = events[0], events[-1]
    plim.ok([plan[k] for k in ("effective_batch", "epochs", "epoch_rows", "epoch_steps")] == [8, 2, 10, 2] and plan["run_s"] >= plan["epoch_s"] > 0, "the plan's event has them too")
    plim.ok(end["epoch"] == 2 and end["samples_per_s"] > 0 and [e["epoch"] for e in steps] == [0.8, 1, 1.8, 2], "epochs in events")


def weights(folder):
    """Types of weights that are read, and that are not what the job computes in."""
    plim.run("train", plim.job(folder, training__steps=1), "-q", "--overwrite")
    shutil.copytree(f"{folder}/run/checkpoint-00000001", f"{folder}/model")
    for kind, pattern in (("bf16", r"converted (\d+) of \1 tensors from f32 to bf16"), ("fp32", "conversion skipped: already f32")):
        told, _ = lines(plim.job(folder, model__=f"{{path: {folder}/model}}", training__mixed_precision=kind, training__steps=1))
        has(told, pattern, kind)


def moves(folder):
    path = plim.job(folder, training__steps=4, training__batch_size=8, model__hidden_size=128)
    less = lines(path, "--budget", "1GiB", "--steps", 1)[1][0]["planned_total"] - (3 << 19)
    told, events = lines(path, "--budget", "1GiB", "--budget-at", f"2={less}", "--budget-at", "3=1GiB")
    plim.ok(len([e for e in events if e["event"] == "replan"]) == 2, "two re-plans")
    has(told, r"^  (moved .* in .* ms|weights and state already in place), freed \S+ \S+$", "a smaller plan")


def left(text):
    """(step, seconds) of the bar's "step 205/1000 ... 1:23 left"."""
    return [(int(step), 60 * int(m) + int(s)) for step, m, s in re.findall(r"step (\d+)/\d+ [^\r]* (\d+):(\d\d) left", text)]


def time_left(folder):
    """What is left of a resumed run is judged by its own steps."""
    path = plim.job(folder, training__steps=200, model__num_layers=1)
    first = [e for e in plim.events(plim.run("train", path, "-q", "--overwrite").stdout) if e["event"] == "step"]
    more = min(20000, max(20, int(4000 / (sum(e["step_ms"] for e in first) / len(first)))))  # about four seconds
    master, slave = pty.openpty()
    process = subprocess.Popen([plim.PLIMSOLL, "train", path, "--resume", "--steps", str(200 + more), "--no-checkpoint", "--log", f"{folder}/bar.jsonl"], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    text = b""
    while True:
        try: piece = os.read(master, 65536)
        except OSError: break
        if not piece: break
        text += piece
    process.wait()
    told = left(text.decode(errors="replace"))
    at, early = told[max(1, len(told) // 20)] if len(told) > 1 else (201, -1)
    # Steps so far, not how long the run took then: a busy machine may be faster or slower later.
    with open(f"{folder}/bar.jsonl") as f: own = [e["step_ms"] / 1e3 for e in plim.events(f.read()) if e["event"] == "step" and e["step"] <= at]
    seconds = sum(own) / max(1, len(own)) * (200 + more - at)
    plim.ok(own and 0.3 * seconds - 1 <= early <= 10 * seconds + 5 and (seconds < 2 or early >= 1), f"after --resume: at step {at} {early} s are left, by its own steps {seconds:.1f} s")


def half_line(folder):
    """A run that is killed in the middle of a line goes on with a line of its own."""
    path, log = plim.job(folder, training__steps=1), f"{folder}/run/log.jsonl"
    plim.run("train", path, "-q", "--overwrite")
    os.truncate(log, os.path.getsize(log) - 5)
    with open(log) as f: half = f.read().splitlines()[-1]
    plim.run("train", path, "-q", "--resume", "--steps", 2)
    with open(log) as f: told = f.read().splitlines()
    plim.ok(told.count(half) == 1 and all(line == half or line.startswith("{") and line.endswith("}") for line in told), f"half a line stays alone: {half}")
    plim.ok(json.loads(told[-1])["event"] == "end", "the log goes on to the end")


for test in (rates, weights, moves, half_line, time_left):
    with tempfile.TemporaryDirectory() as folder: test(folder)
plim.done()
