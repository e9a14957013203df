#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""An epoch is as long for several ranks as for one with the same effective batch, and plan --ranks says the same as train does."""
import json
import os
import re
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks

ranks.need_mpi()
ROWS = 32  # of a step, on all ranks
COUNTS = (1, 2, 4)


def batch(count, **more):
    keys = {"training.batch_size": ROWS // count // 2, "training.gradient_accumulation_steps": 2, **more}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def train(count, path, *args):
    words = ("train", path, "-q", "--json", *args)
    return ranks.run(count, *words) if count > 1 else plim.run(*words)


def steps(result):
    return len(plim.losses(result.stdout or ""))


def happened(result, event):
    return [e["step"] for e in plim.events(result.stdout or "") if e["event"] == event]


def job(folder, **changes):
    return plim.job(folder, **{"training__steps": -1, "training__epochs": 1, "training__threads": 1, **changes})


def lengths(folder):
    """Steps of one epoch, those of a plan among them, and what happens once in it."""
    path = job(folder, training__epochs=2, data__validation=f"[{folder}/corpus.txt]", training__eval_rows=4)
    often = {"training.eval_strategy": "epoch", "training.save_strategy": "epoch"}
    done, planned, evals, saves = [], [], [], []
    for count in COUNTS:
        shutil.rmtree(f"{folder}/run", ignore_errors=True)
        result = train(count, path, *batch(count, **often))
        done.append(steps(result)), evals.append(happened(result, "eval")), saves.append(happened(result, "checkpoint"))
        plan, told = plim.plan(path, "--ranks", count, *batch(count))
        planned.append(plan["predicted"]["steps"] if plan else told.stderr)
    plim.ok(done[0] > 4 and done == [done[0]] * 3, f"two epochs are as many steps for {COUNTS} ranks: {done}")
    plim.ok(planned == done, f"and a plan for them says so: {planned}")
    plim.ok(len(evals[0]) >= 2 and evals == [evals[0]] * 3, f"evaluated at the same steps: {evals}")
    plim.ok(len(saves[0]) >= 2 and saves == [saves[0]] * 3, f"saved at the same steps: {saves}")


def seconds(folder):
    """Of an epoch and of a run of one epoch: all ranks' rows go by at once."""
    path = job(folder)
    for count in COUNTS:
        plan, told = plim.plan(path, "--ranks", count, *batch(count))
        epoch, run = plan["epoch"]["predicted_s"], plan["predicted"]["run_s"]
        plim.ok(epoch <= run < 1.2 * epoch, f"{count} ranks: a run of one epoch takes {run:.3f} s, an epoch {epoch:.3f} s")
        text = plim.run("plan", path, "-q", "--ranks", count, *batch(count)).stdout
        plim.ok(f"{plan['predicted']['steps']} steps, " in text, f"{count} ranks: the text has as many steps to an epoch as the run has")


def counted(folder):
    """Rows, positions and padding in the events are those of all ranks, as tokens are."""
    with open(f"{folder}/lines.jsonl", "w") as f:
        for i in range(100): f.write(json.dumps({"text": plim.CORPUS[i:i + 20 + 7 * i % 40]}) + "\n")
    path = job(folder, data__train=f"[{folder}/lines.jsonl]", training__epochs=0, training__steps=3)
    told = []
    for count in COUNTS:
        result = train(count, path, "--no-checkpoint", *batch(count))
        told.append([[e[k] for k in ("rows", "positions", "padding")] for e in plim.events(result.stdout or "") if e["event"] in ("step", "end")])
    plim.ok(len(told[0]) == 4 and told[0][0][:2] == [ROWS, 64 * ROWS] and 0 < told[0][0][2] < 1, f"one rank: {told[0]}")
    plim.ok(told == [told[0]] * 3, f"several have the same: {told[1:]}")
    result = train(2, path, "--no-checkpoint", *batch(2), "--set", "monitoring.log_every=2")
    memory = [e for e in plim.events(result.stdout or "") if e["event"] == "memory" and e["step"] == 2]
    plim.ok(memory and len(memory[0]["ranks"]) == 2 and min(memory[0]["ranks"]) > 1 << 20 and re.search(r"used: rank 0 .*, rank 1 ", memory[0]["text"]), f"each rank's memory: {memory} {result.stderr.strip()[:200]}")


def left_over(folder):
    """The last step of an epoch has the rows that are left: some ranks have fewer of them, or none."""
    with open(f"{folder}/ten.jsonl", "w") as f:
        for i in range(10): f.write(json.dumps({"text": plim.CORPUS[31 * i:31 * i + 20 + 7 * i % 40]}) + "\n")
    for more in ({}, dict(data__padding="longest"), {**plim.EXPERTS, "training__micro_batch_size": 1}):
        path = job(folder, data__train=f"[{folder}/ten.jsonl]", training__epochs=2, **more)
        runs = [train(count, path, "--no-checkpoint", *batch(count, **{"training.batch_size": 8 // count, "training.gradient_accumulation_steps": 1})) for count in COUNTS]
        sizes = [[e["rows"] for e in plim.events(r.stdout or "") if e["event"] == "step"] for r in runs]
        plim.ok(sizes == [[8, 2, 8, 2]] * 3, f"ten rows in steps of eight {more}: {sizes} {runs[-1].stderr.strip()[:200]}")
        losses = [list(plim.losses(r.stdout or "").values()) for r in runs]
        plim.ok(all(len(l) == 4 and max(abs(a - b) for a, b in zip(l, losses[0])) < 1e-6 for l in losses), f"with the losses of one rank {more}: {losses}")


def resumed(folder):
    """The schedule ends with the run: with another number of ranks, too, that is the same step."""
    path = job(folder, training__lr_scheduler="linear")
    first = train(4, path, *batch(4, **{"training.save_every": 4}))
    shutil.rmtree(f"{folder}/run/checkpoint-{steps(first):08d}", ignore_errors=True)
    again = train(2, path, *batch(2, **{"training.save_every": 4}), "--resume")
    plim.ok(first.returncode == 0 and again.returncode == 0 and steps(again) > 0, f"two ranks go on where four were: {again.stderr.strip()[:200]}")


def lines(folder):
    """What a plan for ranks says fits is what ranks train in: MPI is a part of each. What does not fit names the plan to ask."""
    path = job(folder)
    rows = ("--set", "training.batch_size=4")
    for count in (2, 4):
        plan, told = plim.plan(path, "--ranks", count, "--budget", "8GiB", *rows)
        run = train(count, path, "--no-checkpoint", "--steps", 1, *rows)
        events = [e for e in plim.events(run.stdout or "") if e["event"] == "plan"]
        planned, measured = plan["by_class"]["overhead"], events[0]["by_class"]["overhead"] if events else 0
        plim.ok(abs(planned - measured) < 4 << 20, f"{count} ranks: a plan counts {planned / 2**20:.1f} MiB beside the arena, a rank {measured / 2**20:.1f}")
    for budget in (16, 24, 40):
        fits = plim.run("plan", path, "-q", "--ranks", 2, "--budget", f"{budget}MiB", *rows).returncode
        runs = train(2, path, "--no-checkpoint", "--steps", 1, "--budget", f"{budget}MiB", *rows)
        plim.ok(fits in (0, 3) and (fits or runs.returncode == 0), f"{budget} MiB: the plan ends with {fits}, the run with {runs.returncode}")
        if runs.returncode == 3: plim.ok(f"plimsoll plan {path} --ranks 2 lists" in runs.stderr, f"{budget} MiB: {runs.stderr.strip()[:200]}")


with tempfile.TemporaryDirectory() as folder:
    lines(folder)
with tempfile.TemporaryDirectory() as folder:
    lengths(folder)
with tempfile.TemporaryDirectory() as folder:
    seconds(folder)
with tempfile.TemporaryDirectory() as folder:
    counted(folder)
with tempfile.TemporaryDirectory() as folder:
    left_over(folder)
with tempfile.TemporaryDirectory() as folder:
    resumed(folder)
plim.done()
