#!/usr/bin/env python3
"""plimsoll calibrate measures anew, shows and keeps; plans made afterwards use what was kept. How fast the machine is,
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
    busy = {**json.loads(kept), "others": 0.9, "tries": 0}
    with open(files[0], "w") as f: json.dump(busy, f)
    plim.run("plan", path, "--json", "-q", env=env)
    plim.ok(json.load(open(files[0])) == busy, "what is kept stays, though it was measured beside others")
    people = plim.run("calibrate", "--device", "cpu", "--force", env=env)
    plim.ok(people.returncode == 0 and "matmul, fp32" in people.stdout and "so far" in people.stdout, "a table for people")
    usual = plim.run("calibrate", "--device", "cpu", env=env)
    idle = usual.returncode == 0 or (usual.returncode == 2 and usual.stderr.count("\n") == 1 and "--force" in usual.stderr)
    plim.ok(idle, f"on a busy machine it says so instead of measuring: {usual.stderr.strip()}")
    for args, word in ((["--device", "xpu"], "xpu"), (["now"], "no arguments"), (["--threads", "-3"], "--threads")):
        result = plim.run("calibrate", *args, env=env)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and word in result.stderr, f"{' '.join(args)}: {result.stderr.strip()}")

# On a machine that nobody has measured, and on one that cannot remember: plan, plan and train count the same bytes and
# measure no disk.
with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, model__hidden_size=128, training__steps=1)
    open(f"{folder}/file", "w").close()
    budget = plim.smallest(path) + (1 << 20)
    for name, cache in (("a fresh machine", f"{folder}/cache"), ("a cache that cannot be written", f"{folder}/file")):
        env = {"XDG_CACHE_HOME": cache, "PLIMSOLL_CALIBRATE": "1"}
        plans = [json.loads(plim.run("plan", path, "-b", budget, "--json", "-q", env=env).stdout) for _ in range(2)]
        done = plim.run("train", path, "-b", budget, "--no-checkpoint", "-q", env=env)
        run = json.loads(done.stdout.splitlines()[0]) if done.returncode == 0 else {}
        plim.ok(run and plans[0]["peak_bytes"]["disk"] > 0 and {p["peak_bytes"]["total"] for p in plans} == {run["planned_total"]} and
                {p["predicted"]["step_ms"] for p in plans} == {run["predicted_ms"]} and not glob.glob(f"{cache}/plimsoll/disk-*.json"),
                f"{name}: {[p['peak_bytes'] for p in plans]} {run.get('planned_total')} {done.stderr.strip()}")
        plim.ok("assumed" in done.stdout, f"{name}: the run says that its disk was not measured")
plim.done()
