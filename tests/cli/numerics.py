#!/usr/bin/env python3
"""--check-numerics names the first tensor that overflows, and changes no loss."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=2)
    plain = plim.run("train", path, "--json", "-q", "--no-checkpoint")
    looked = plim.run("train", path, "--json", "-q", "--no-checkpoint", "--check-numerics")
    plim.ok(plim.losses(plain.stdout) == plim.losses(looked.stdout) and plim.losses(plain.stdout), "losses are the same")
    plim.ok("numerics:" not in looked.stdout, "a healthy fp32 run has nothing to tell")

    path = plim.job(folder, training__steps=2, training__mixed_precision="fp16", training__loss_scale=1e9)
    result = plim.run("train", path, "--json", "-q", "--no-checkpoint", "--check-numerics")
    notes = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note"]
    steps = [e for e in plim.events(result.stdout) if e["event"] == "step"]
    plim.ok(any("not finite" in n and "op " in n and "step 1" in n for n in notes), f"fp16 with a huge scale: {notes}")
    plim.ok(steps and steps[0].get("skipped") and steps[1]["loss_scale"] == 5e8, "the step is skipped and the scale halved")

    path = plim.job(folder, training__steps=1, training__mixed_precision="fp16", training__loss_scale=1)
    result = plim.run("train", path, "--json", "-q", "--no-checkpoint", "--check-numerics")
    notes = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note"]
    plim.ok(any("zero or subnormal" in n for n in notes), f"fp16 without scaling underflows: {notes}")
plim.done()
