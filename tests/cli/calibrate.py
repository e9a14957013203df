#!/usr/bin/env python3
"""C15: plimsoll calibrate measures anew, shows and keeps; plans made afterwards use what was kept. How fast the machine is,
and whether it is idle, decides nothing here."""
import glob
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder)
    env = {"XDG_CACHE_HOME": f"{folder}/cache", "PLIMSOLL_CALIBRATE": ""}
    made = plim.run("calibrate", "--device", "cpu", "--force", "--json", env=env)
    shown = json.loads(made.stdout) if made.returncode == 0 else {}
    rates = ("flops_f32", "flops_bf16", "attn_flops_f32", "bandwidth", "op_seconds")
    plim.ok(shown and all(shown[w][r] > 0 for w in ("before", "now") for r in rates), f"rates before and now {made.stderr.strip()}")
    files = glob.glob(f"{folder}/cache/plimsoll/cpu-*.json")
    kept = open(files[0]).read() if len(files) == 1 else "{}"
    plim.ok(all(json.loads(kept).get(r) == shown["now"][r] for r in rates), f"what is shown is kept {files}")
    plim.run("plan", path, "--json", "-q", env=env)
    plim.ok(open(files[0]).read() == kept, "a plan takes it as it is")
    fixed = plim.run("plan", path, "--json", "-q", env={**env, "PLIMSOLL_CALIBRATE": "0"})
    plim.ok(fixed.returncode == 0 and open(files[0]).read() == kept, "fixed rates leave it alone")
    people = plim.run("calibrate", "--device", "cpu", "--force", env=env)
    plim.ok(people.returncode == 0 and "matmul, fp32" in people.stdout and "so far" in people.stdout, "a table for people")
    usual = plim.run("calibrate", "--device", "cpu", env=env)
    idle = usual.returncode == 0 or (usual.returncode == 2 and usual.stderr.count("\n") == 1 and "--force" in usual.stderr)
    plim.ok(idle, f"on a busy machine it says so instead of measuring: {usual.stderr.strip()}")
    for args, word in ((["--device", "tpu"], "tpu"), (["now"], "no arguments"), (["--threads", "-3"], "--threads")):
        result = plim.run("calibrate", *args, env=env)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and word in result.stderr, f"{' '.join(args)}: {result.stderr.strip()}")
plim.done()
