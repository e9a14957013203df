#!/usr/bin/env python3
"""a checkpoint keeps the knobs it was made with, and --resume keeps those that decide bits, whatever the budget, the
calibration and free memory say today, while they fit; when they do not, it says so."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def knobs(result):
    return [e["knobs"] for e in plim.events(result.stdout) if e["event"] == "plan"][0]


def notes(result):
    return [e["text"] for e in plim.events(result.stdout) if e["event"] == "note"]


def train(path, out, *more):
    return plim.run("train", path, "--json", "-q", "--set", f"output.dir={out}", *more)


def follow(folder, path, name, tight, wide, key):
    """Begin under one line, go on under another: the same losses as under the first alone."""
    whole = train(path, f"{folder}/{name}-whole", "--steps", 6, "--budget", tight)
    run = f"{folder}/{name}"
    first = train(path, run, "--steps", 3, "--budget", tight)
    shutil.copytree(run, run + "-free")
    kept = json.load(open(f"{run}/checkpoint-00000003/manifest.json"))["knobs"]
    planned = {k: v for k, v in knobs(first).items() if k in kept}
    if kept["recompute"] == "full": planned["recompute_layers"] = kept["recompute_layers"]  # a report names all of them
    plim.ok(kept == planned, f"{name}: the manifest has the plan's knobs {sorted(kept.items() ^ planned.items())}")
    fresh = train(path, f"{folder}/{name}-fresh", "--steps", 1, "--budget", wide)
    more = train(path, run, "--steps", 6, "--budget", wide, "--resume")
    differs = knobs(fresh)[key] != knobs(first)[key]
    plim.ok(differs and knobs(more)[key] == knobs(first)[key], f"{name}: {key} {knobs(first)[key]} is kept where a new run would take {knobs(fresh)[key]} {more.stderr.strip()}")
    expected = {s: x for s, x in plim.losses(whole.stdout).items() if s > 3}
    plim.ok(plim.losses(more.stdout) == expected and len(expected) == 3 and not notes(more), f"{name}: every loss is the whole run's, bit for bit")
    config = {"micro_batch": "training.micro_batch_size", "loss_chunks": "training.loss_chunks"}[key]
    free = train(path, run + "-free", "--steps", 6, "--budget", wide, "--resume", "--change", config)
    plim.ok(knobs(free)[key] == knobs(fresh)[key], f"{name}: --change {config} lets the plan choose anew {free.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder_:
    shape = dict(model__hidden_size=128, model__intermediate_size=512, data__max_length=128, training__batch_size=8, training__gradient_accumulation_steps=2,
                 training__mixed_precision="bf16")
    path_ = plim.job(folder_, **shape)
    follow(folder_, path_, "micro-batch", 20 << 20, 1 << 30, "micro_batch")

    run_ = f"{folder_}/large"
    large = train(path_, run_, "--steps", 3, "--budget", 1 << 30)
    least = lambda *more: plim.plan(path_, "--budget", "8MiB", *more)[0]["peak_bytes"]["total"]  # of the smallest plan
    line = (least() + least("--set", f"training.micro_batch_size={knobs(large)['micro_batch']}")) // 2
    small = train(path_, run_, "--steps", 6, "--budget", line, "--resume")
    told = [n for n in notes(small) if "does not fit" in n and str(knobs(large)["micro_batch"]) in n]
    plim.ok(small.returncode == 0 and len(plim.losses(small.stdout)) == 3 and told and knobs(small)["micro_batch"] < knobs(large)["micro_batch"],
            f"a budget that no longer holds the micro-batch: told, and planned anew: {notes(small)} {small.stderr.strip()}")

    pinned = train(path_, run_, "--steps", 7, "--resume", "--set", "training.micro_batch_size=2")
    plim.ok(pinned.returncode == 2 and pinned.stderr.count("\n") == 1 and "training.micro_batch_size was" in pinned.stderr, f"another pin is refused: {pinned.stderr.strip()}")
    pinned = train(path_, run_, "--steps", 7, "--resume", "--set", "training.micro_batch_size=2", "--change", "training.micro_batch_size")
    plim.ok(pinned.returncode == 0 and knobs(pinned)["micro_batch"] == 2, f"or accepted by name {pinned.stderr.strip()}")

    moved = train(path_, f"{folder_}/moved", "--steps", 3, "--budget", 1 << 30)
    moved = train(path_, f"{folder_}/moved", "--steps", 6, "--budget", 1 << 30, "--resume", "--budget-at", f"5={20 << 20}")
    plim.ok(moved.returncode == 0 and len(plim.losses(moved.stdout)) == 3, f"a line that moves after a resume may still cut the work anew {moved.stderr.strip()}")

    wide = plim.job(folder_, **{**shape, "training__grad_dtype": "bf16", "training__micro_batch_size": 8, "model__vocab_size": 4096})
    follow(folder_, wide, "loss-slices", 34 << 20, 1 << 30, "loss_chunks")
plim.done()
