#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""train --trace with several ranks: each writes the step that it has measured to a file of its own, and losses are those of a run without."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks
from snapshots import MEASURED, load
import trace_event

ranks.need_mpi()


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = plim.job(folder, training__gradient_accumulation_steps=1, training__batch_size=6, training__threads=1)
        base = ["train", path, "-q", "--json", "--no-checkpoint", "--overwrite", "--set", "training.zero_stage=2"]
        calm = plim.losses(ranks.run(3, *base).stdout)
        told = ranks.run(3, *base, "--trace", f"{folder}/step.trace.json", "--trace-step", 3)
        plim.ok(told.returncode == 0 and plim.losses(told.stdout) == calm and len(calm) == 4, f"three ranks, losses as without {told.stderr.strip()[:300]}")
        names = sorted(n for n in os.listdir(folder) if n.startswith("step"))
        plim.ok(names == ["step.rank-1.trace.json", "step.rank-2.trace.json", "step.trace.json"], f"a file of each rank: {names}")
        traces = [load(f"{folder}/{n}") for n in names]
        for name, trace in zip(names, traces):
            measured = [e for e in trace["traceEvents"] if e["pid"] == MEASURED and "planned_us" in e.get("args", {})]
            plim.ok(not trace_event.check(trace) and trace["otherData"]["step"] == 3 and len(measured) > 50, f"{name}: step 3, {len(measured)} measured ops")
        times = [json.dumps([e.get("dur") for e in t["traceEvents"] if e["pid"] == MEASURED]) for t in traces]
        plim.ok(len(set(times)) == 3, "each with times of its own")
    plim.done()


main()
