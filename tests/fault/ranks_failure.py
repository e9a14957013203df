#!/usr/bin/env python3
# run-tests: not=asan, not=tsan, timeout=7200
"""Ranks that die, hang, are stopped or are told something: the job ends for all with one explanation, or all do it; nothing is
lost. PLIMSOLL_LONG_TESTS=1 kills at 40 points instead of a few.
"""
import glob
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import machine
import plim
import ranks

ranks.need_mpi()
COUNT, STEPS = 3, 5


def job(folder, **changes):
    keys = dict(training__gradient_accumulation_steps=1, training__threads=1, training__batch_size=4, model__num_layers=2, training__zero_stage=3)
    return plim.job(folder, **{**keys, **changes})


def whole(out):
    """The newest checkpoint is, or there is none yet."""
    if not glob.glob(f"{out}/checkpoint-*"): return True
    return "is whole" in plim.run("doctor", out).stdout


def points(rng, kills):
    """Which rank dies before which of its writes, syncs, names and steps: each phase of a save, and any."""
    for i in range(10 * kills): yield i % COUNT, rng.randrange(1, (40, 150)[i % 2] if i % COUNT == 0 else (20, 60)[i % 2])


def kill(folder):
    path, rng, kills = job(folder, training__save_every=1), random.Random(5), 40 if plim.LONG else 4
    args = ["train", path, "-q", "--json", "--steps", STEPS]
    forms = [["--set", f"output.gather_weights={g}"] for g in ("false", "true")]
    reference = plim.losses(ranks.run(COUNT, *args, "--set", f"output.dir={folder}/whole").stdout)
    plim.ok(len(reference) == STEPS, "the undisturbed run")
    died, wrong, at, out = [], [], set(), f"{folder}/killed"
    for rank, nth in points(rng, kills):
        if len(died) == kills: break
        process = ranks.one_apart(COUNT, rank, {"PLIMSOLL_FAULT": f"die:{nth}"}, *args, *forms[len(died) % 2], "--resume", "--set", f"output.dir={out}")
        text, told = process.communicate(timeout=120)
        got = plim.losses(text)
        wrong += [(step, loss, reference[step]) for step, loss in got.items() if loss != reference[step]]
        if process.returncode: died.append((rank, nth)), at.add(max(got, default=0))
        if process.returncode and "signal 9" not in told: wrong.append(("not killed", rank, nth, told[:300]))
        if not whole(out): wrong.append(("damaged", rank, nth))
        if not process.returncode: shutil.rmtree(out)
        if wrong: break
    plim.ok(not wrong and len(died) >= kills, f"{len(died)} kills (ranks {sorted({d[0] for d in died})}, after steps {sorted(at)}): checkpoints whole, losses of the undisturbed run {wrong[:2]}")
    result = ranks.run(COUNT, *args, "--resume", "--set", f"output.dir={out}")
    got = plim.losses(result.stdout)
    plim.ok(result.returncode == 0 and all(reference[s] == l for s, l in got.items()) and max(got, default=STEPS) == STEPS, f"and gone on to the end {result.stderr.strip()[:200]}")


def hang(folder):
    """A rank that stops answering, whichever it is."""
    path = job(folder, training__steps=100000)
    for victim in (1, 0) if not plim.LONG else (0, 1, 2):
        # A quarter of it is for the others to say that they are there.
        process = ranks.start(COUNT, "train", path, "-q", "--json", "--no-checkpoint", env={"PLIMSOLL_PATIENCE": "8"}, stdout=-1, stderr=-1)
        process.stdout.readline(), process.stdout.readline()
        pids = {ranks.rank_of(pid): pid for pid in ranks.children(process.pid)}
        os.kill(pids[victim], signal.SIGSTOP)
        started = time.monotonic()
        try:
            _, text = process.communicate(timeout=60)
        finally:
            took = time.monotonic() - started
            try: os.kill(pids[victim], signal.SIGKILL)
            except OSError: pass
        lines = [l for l in text.splitlines() if l.startswith("plimsoll:")]
        good = len(lines) == 1 and f"rank {victim} did not answer within 8 s" in lines[0] and "in step" in lines[0]
        plim.ok(good and process.returncode not in (0, None), f"rank {victim} hangs: all end after {took:.1f} s, told once: {lines}")
        plim.ok(not any(os.path.exists(f"/proc/{pid}/exe") for r, pid in pids.items() if r != victim), "no rank is left")


def stop(folder):
    """A signal to any rank is every rank's."""
    path, out = job(folder, training__steps=100000), f"{folder}/run"
    process = ranks.start(COUNT, "train", path, "-q", "--json", stdout=-1, stderr=-1)
    for _ in range(3): process.stdout.readline()
    pids = {ranks.rank_of(pid): pid for pid in ranks.children(process.pid)}
    os.kill(pids[1], signal.SIGUSR1)
    seen = []
    while not seen or seen[-1]["event"] != "checkpoint": seen.append(json.loads(process.stdout.readline()))
    plim.ok(whole(out), "SIGUSR1 to rank 1: a checkpoint of all, and the run goes on")
    process.stdout.readline()
    os.kill(pids[2], signal.SIGTERM)
    text, told = process.communicate(timeout=120)
    last = max(plim.losses(text), default=0)
    saved = [e for e in plim.events(text) if e["event"] == "checkpoint"]
    plim.ok(process.returncode == 130 and saved and saved[-1]["step"] >= last and told.count("plimsoll:") == 1 and "a signal to another rank" in told, f"SIGTERM to rank 2: exit {process.returncode}, {told.strip()[:160]}")
    result = ranks.run(2, "train", path, "-q", "--json", "--resume", "--steps", saved[-1]["step"] + 1, "--set", "training.batch_size=6")
    plim.ok(result.returncode == 0 and len(plim.losses(result.stdout)) == 1, f"2 ranks go on from there {result.stderr.strip()[:200]}")


def orders(folder):
    """A new budget while ranks run: all of them re-plan before the same step, and compute what they would have."""
    path, out = job(folder, training__steps=100000, training__zero_stage=1, training__micro_batch_size=1, budget__="64MiB"), f"{folder}/run"
    process = ranks.start(2, "train", path, "-q", "--json", stdout=-1, stderr=-1)
    seen, wanted, sent = [], ["budget", "30MiB"], False
    while len(seen) < 4000:
        line = process.stdout.readline()
        if not line: break
        seen.append(json.loads(line))
        kinds = [e["event"] for e in seen]
        if kinds.count("step") == 3 and not sent:
            sent = plim.run("ctl", out, *wanted)
        if "replan" in kinds and kinds[kinds.index("replan"):].count("step") == 3: break
    plim.run("ctl", out, "stop")
    text, told = process.communicate(timeout=120)
    replans = [e for e in seen if e["event"] == "replan"]
    plim.ok(len(replans) == 1 and replans[0]["planned_total"] <= 30 << 20, f"ctl budget: {replans and replans[0]['planned_total']} {sent and sent.stderr.strip()} {told.strip()[:200]}")
    steps = plim.losses("\n".join(map(json.dumps, seen)) + "\n" + text)
    undisturbed = plim.losses(ranks.run(2, "train", path, "-q", "--json", "--no-checkpoint", "--steps", max(steps)).stdout)
    plim.ok(steps and all(undisturbed[s] == l for s, l in steps.items()), f"losses of the undisturbed run over {len(steps)} steps")
    plim.ok(process.returncode == 130, f"ctl stop ends all ranks: exit {process.returncode}")


def squeeze(folder):
    """Memory gets short on one rank's machine: both make smaller micro-batches before the same step, and take them back."""
    path = job(folder, training__steps=100000, training__zero_stage=1, training__batch_size=8)
    planned, _ = plim.plan(path, "--ranks", 2, "--budget", "8GiB")
    full = planned["naive_bytes"] + (24 << 20)  # a process with MPI in it is larger
    box, calm = machine.Machine(4 * full, others=full), machine.Machine(4 * full, others=full)
    args = ["train", path, "-q", "--json", "--budget", full, "--set", "monitoring.interval=0.02"]
    process = ranks.apart([(1, {"PLIMSOLL_MACHINE": calm.root}, args, None), (1, {"PLIMSOLL_MACHINE": box.root}, args, None)])
    seen = []

    def until(found):
        while not found():
            line = process.stdout.readline()
            if not line: return False
            seen.append(json.loads(line))
        return True

    count = lambda kind: sum(e["event"] == kind for e in seen)
    until(lambda: count("step") == 2)
    box.follow({ranks.rank_of(pid): pid for pid in ranks.children(process.pid)}[1])
    box.others = int(box.total * 0.955) - box.ours()
    gave = until(lambda: count("replan") > 0) and until(lambda: seen[-1]["event"] == "step" and seen[-1]["memory"]["level"] != "full")
    box.others = full
    back = gave and until(lambda: seen[-1]["event"] == "step" and seen[-1]["memory"]["level"] == "full")
    plim.run("ctl", f"{folder}/run", "stop")
    _, told = process.communicate(timeout=120)
    box.close(), calm.close()
    micros = [e["knobs"]["micro_batch"] for e in seen if e["event"] in ("plan", "replan")]
    plim.ok(gave and back and min(micros) < micros[0] == micros[-1], f"one rank's machine is short of memory, both give way: micro-batches {micros} {told.strip()[:200]}")
    steps = plim.losses("\n".join(map(json.dumps, seen)))
    same = plim.losses(ranks.run(2, *args[:6], "--no-checkpoint", "--steps", max(steps)).stdout)
    plim.ok(steps and all(abs(same[s] - l) <= 1e-5 * l for s, l in steps.items()), f"losses of the undisturbed run over {len(steps)} steps")


def diverge(folder):
    """A loss that is not finite on all ranks: their weights stay those of the last good step, or the run says that they are gone."""
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1, training__steps=30, training__learning_rate=1000, training__optimizer="sgd",
                    model__architecture="gpt2", model__num_key_value_heads=4, training__max_skipped_steps=2)
    for inside, words in (("false", ["2 steps in a row", "learning_rate"]), ("true", ["the weights are lost", "optimizer_in_backward: false"])):
        result = ranks.run(2, "train", path, "-q", "--json", "--set", f"training.optimizer_in_backward={inside}", "--set", f"output.dir={folder}/{inside}")
        lines = [l for l in result.stderr.splitlines() if l.startswith("plimsoll:")]
        plim.ok(result.returncode == 2 and len(lines) == 1 and all(w in lines[0] for w in words), f"updated inside backward {inside}: {lines}")
        kept = glob.glob(f"{folder}/{inside}/checkpoint-*")
        plim.ok(len(kept) == (inside == "false") and all("is whole" in plim.run("doctor", f"{folder}/{inside}").stdout for _ in kept), f"and what is kept is good: {kept}")


for part in (kill, hang, stop, orders, squeeze, diverge):
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/calm")
        part(folder)
plim.done()
