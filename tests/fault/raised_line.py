#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""A budget that rises while tensors are on disk: what the disk tier holds in memory goes before the arena grows, so the process
stays below the new line, whose bytes are read from outside. With buffers of 4 MiB, as fast disks have them; and a plan that
has no room for those takes small ones."""
import glob
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

with tempfile.TemporaryDirectory() as folder:
    os.environ.update({"XDG_CACHE_HOME": f"{folder}/cache", "PLIMSOLL_CALIBRATE": "1"})
    path = plim.job(folder, training__steps=6, model__hidden_size=128, model__intermediate_size=256, training__threads=2, training__batch_size=1,
                    training__gradient_accumulation_steps=1)
    plim.run("calibrate", "--device", "cpu", "--threads", 2, "--force", "--disk", folder)
    for file in glob.glob(f"{folder}/cache/plimsoll/disk-*.json"):
        with open(file) as f: disk = json.load(f)
        with open(file, "w") as f: json.dump({**disk, "depth": 4, "piece": 1 << 20, "bandwidth": 1e9}, f)
    least = plim.plan(path, "-b", "1")[0]["peak_bytes"]["total"]
    full = plim.plan(path, "-b", "400MiB")[0]["peak_bytes"]["total"]
    plim.ok(least < full, f"from {least} bytes, with state on disk, to {full} without")
    for part in (0.5, 0.8, 1):
        line = int(least + (full - least) * part) + 1
        events, peak, _, code, stderr = plim.run_watched("train", path, "-b", least + 4096, "--budget-at", f"3={line}", "--no-checkpoint")
        plans = [e["planned_total"] for e in events if e["event"] in ("plan", "replan")]
        plim.ok(code == 0 and len(plans) == 2 and peak <= line, f"raised to {line}: plans {plans}, peak {peak} {stderr.strip()}")
plim.done()
