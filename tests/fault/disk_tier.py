#!/usr/bin/env python3
# run-tests: not=tsan
"""The disk tier under a run: state and parameters there give the losses of a run without; pieces that come short are carried to
their end; an error of the disk or a full one ends the run with one line, before anything is saved of it; a killed run leaves
no file of its tier, and its checkpoint."""
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

TIERS = ("--set", "training.state_tier=disk", "--set", "training.param_tier=disk")


def train(path, *more, **env):
    return plim.run("train", path, "-q", *more, env=env)


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, model__hidden_size=256, model__num_layers=2, training__steps=4, training__save_every=2)
    plain = train(path, "--overwrite")
    want = plim.losses(plain.stdout)
    plim.ok(plain.returncode == 0 and len(want) == 4, f"a run in memory {plain.stderr.strip()}")
    there = train(path, "--overwrite", *TIERS)
    plim.ok(plim.losses(there.stdout) == want and "disk tier" in there.stdout, f"state and parameters on disk: the same losses {there.stderr.strip()}")
    short = train(path, "--overwrite", *TIERS, PLIMSOLL_FAULT="short:3")
    plim.ok(plim.losses(short.stdout) == want, f"a piece of which half is carried {short.stderr.strip()}")
    for fault, words in (("io:2", "Input/output error"), ("io:40", "Input/output error"), ("write:3", "No space left")):
        bad = train(path, "--overwrite", *TIERS, "--no-checkpoint", PLIMSOLL_FAULT=fault)
        plim.ok(bad.returncode not in (0, -6, -11) and words in bad.stderr and ".disk-" in bad.stderr, f"{fault}: {bad.returncode} {bad.stderr.strip()[:200]}")
    full = train(path, "--overwrite", *TIERS, PLIMSOLL_FAULT="disk:1")
    plim.ok(full.returncode == 3 and "output.dir" in full.stderr, f"no room is found before the first step: {full.stderr.strip()[:200]}")
    more = ("--set", f"training.steps={30 if plim.SANITIZED else 100}", "--set", "training.save_every=5")
    want = plim.losses(train(path, "--overwrite", *more).stdout)
    more += ("--set", f"output.dir={folder}/killed")
    run = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", *TIERS, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(6000):
        if os.path.isdir(f"{folder}/killed") and any(name.startswith("checkpoint") for name in os.listdir(f"{folder}/killed")): break
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    left = [name for name in os.listdir(f"{folder}/killed") if name.startswith(".disk")]
    plim.ok(not left, f"a killed run leaves no file of its tier {left}")
    again = train(path, "--resume", *TIERS, *more)
    rest = plim.losses(again.stdout)
    plim.ok(again.returncode == 0 and rest and all(want[step] == loss for step, loss in rest.items()), f"and goes on with the same losses, {len(rest)} steps {again.stderr.strip()[:200]}")
plim.done()
