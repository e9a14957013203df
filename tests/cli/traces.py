#!/usr/bin/env python3
# run-tests: not=tsan
"""Snapshots of a plan and of a running job (H5): as JSON, as a trace in the documented Trace Event Format, and as the pickle
of PyTorch's memory_viz; their bytes are the plan's. Measuring a step changes no loss."""
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time

# Not from this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import plim
from snapshots import MEASURED, check_json, check_pickle, check_trace, load

CASES = {  # options of plan
    "cpu": [],
    "cpu with a disk": ["--set", "training.deepspeed.nvme_offload=true"],
    "gpu with its host": ["--device", "a10g", "--set", "training.deepspeed.cpu_offload=true"],
}


def plans(folder):
    path = plim.job(folder)
    for name, args in CASES.items():
        files = {kind: os.path.join(folder, f"plan.{kind}") for kind in ("snapshot", "trace", "memory-viz")}
        plan, result = plim.plan(path, *args, *[word for kind, file in files.items() for word in (f"--{kind}", file)])
        if not plim.ok(plan and result.returncode == 0, f"{name}: planned {result.stderr.strip()}"): continue
        check_json(name, load(files["snapshot"]), plan)
        check_trace(name, load(files["trace"]), plan)
        viz = check_pickle(name, files["memory-viz"], plan)
        host, disk = plan["by_host"]["tier"], plan["peak_bytes"]["disk"]
        lower = {s["device"]: s["total_size"] for s in viz["segments"] if s["device"] > 0}
        plim.ok(lower == {d: n for d, n in ((1, host), (2, disk)) if n}, f"{name}: lower tiers {lower}")
        plim.ok(bool(lower) == ("with" in name), f"{name}: and they are as asked")


class Run:
    """A training run that is talked to."""

    def __init__(self, folder, path, *args):
        self.log, self.folder = os.path.join(folder, "log.jsonl"), os.path.join(folder, "run")
        self.process = subprocess.Popen([plim.PLIMSOLL, "train", path, "--log", self.log, "-q", "--overwrite", *args],
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while self.process.poll() is None and not os.path.exists(f"{self.folder}/control.sock"): time.sleep(0.02)

    def ctl(self, *args, cwd=None):
        return subprocess.run([os.path.abspath(plim.PLIMSOLL), "ctl", self.folder, *map(str, args)], capture_output=True, text=True, cwd=cwd)

    def end(self):
        self.ctl("stop")
        self.process.wait()
        return plim.events(open(self.log).read())


def check_run(snapshot, events, what):
    """Step, loss and measured times of a run's snapshot against its log."""
    run, ops = snapshot["run"], snapshot["ops"]
    step = next(e for e in events if e["event"] == "step" and e["step"] == run["step"])
    plim.ok(step["loss"] == run["loss"], f"{what}: the loss of step {run['step']} is the log's")
    measured = [o for o in ops if "measured_us" in o]
    plim.ok(len(measured) == len(ops), f"{what}: all {len(ops)} ops were measured")
    ends = [o["measured_start_us"] + o["measured_us"] for o in ops]
    plim.ok(all(o["measured_start_us"] >= e - 1e-6 * e for o, e in zip(ops[1:], ends)) and ends[-1] <= run["measured"]["step_us"],
            f"{what}: one after the other, within the step")
    passes = run["measured"]["passes"]
    plim.ok([p["what"] for p in passes] == ["micro-batch"] * snapshot["accumulation"] + ["update"] and all(p["used"] > 0 for p in passes),
            f"{what}: {len(passes)} passes, with bytes measured beside the plan's")
    plim.ok(snapshot["memory"]["reserved"] == snapshot["total"] and snapshot["environment"] and "monitor" in snapshot, f"{what}: memory, monitor, environment")


def as_run(path, events):
    """The plan that was run: another process may count a little more or less outside the arena."""
    plan, _ = plim.plan(path)
    ran = next(e for e in events if e["event"] == "plan")
    return {**plan, "peak_bytes": {**plan["peak_bytes"], "total": ran["planned_total"]}, "budget_bytes": ran["budget_bytes"],
            "arena_bytes": ran["arena_bytes"]}


def live(folder):
    """Three snapshots of one run; and it computes what a run without them does."""
    path = plim.job(folder, training__steps=100000, training__micro_batch_size=2)
    run = Run(folder, path)
    told = run.ctl("snapshot")
    first = told.stdout.strip()
    plim.ok(told.returncode == 0 and first.startswith(run.folder) and first.endswith(".json"), f"ctl snapshot: {first} {told.stderr}")
    trace = run.ctl("snapshot", "step.trace.json", cwd=folder)
    plim.ok(trace.returncode == 0 and os.path.exists(f"{folder}/step.trace.json"), f"a file's name is taken where ctl is called: {trace.stdout.strip()} {trace.stderr}")
    viz = run.ctl("snapshot", f"{folder}/step", "--format", "memory_viz")
    plim.ok(viz.returncode == 0, f"--format: {viz.stdout.strip()} {viz.stderr}")
    bad = run.ctl("snapshot", f"{folder}/nowhere/step.json")
    refused("a file that the run cannot write", bad, "nowhere")
    plim.ok(run.ctl("status").returncode == 0 and not os.path.exists(f"{folder}/nowhere"), "and the run goes on")
    events = run.end()
    plan = as_run(path, events)
    check_run(load(first), events, "JSON of a run")
    check_trace("trace of a run", load(f"{folder}/step.trace.json"), plan, run=True)
    check_pickle("memory_viz of a run", f"{folder}/step", plan)
    measured = [e for e in load(f"{folder}/step.trace.json")["traceEvents"] if e["pid"] == MEASURED and e["ph"] == "X" and "planned_us" in e.get("args", {})]
    plim.ok(len(measured) > 100, f"{len(measured)} measured ops with what was planned")
    with open(f"{folder}/step", "rb") as f: settings = pickle.load(f)["allocator_settings"]
    plim.ok(settings["step"] > 0 and settings["loss"] > 0, f"memory_viz's settings name the step {settings}")
    mine = plim.losses(open(run.log).read())
    calm = plim.losses(plim.run("train", path, "-q", "--overwrite", "--no-checkpoint", "--steps", 6).stdout)
    plim.ok(all(mine[s] == calm[s] for s in calm if s in mine) and len(calm) == 6, "no loss was changed by measuring")
    return run.folder


def of_train(folder):
    path, file = plim.job(folder), os.path.join(folder, "train.trace.json")
    for words, step in (([], 2), (["--trace-step", "3"], 3), (["--trace-step", "90"], 4)):
        if os.path.exists(file): os.remove(file)
        result = plim.run("train", path, "-q", "--overwrite", "--no-checkpoint", "--check-numerics", "--trace", file, *words)
        trace = load(file)
        plim.ok(result.returncode == 0 and trace["otherData"]["step"] == step, f"train --trace {' '.join(words)}: step {step} {result.stderr}")
        plim.ok(trace["otherData"]["loss"] == plim.losses(result.stdout)[step], "with its loss")
    check_trace("train --trace", load(file), as_run(path, plim.events(result.stdout)), run=True)


def beside(folder):
    """Measured beside predicted: sums of the trace's own events, the largest difference first."""
    file, run = os.path.join(folder, "train.trace.json"), lambda *a: plim.run("trace", *a)
    events = [e for e in load(file)["traceEvents"] if "planned_us" in e.get("args", {})]
    told = run(file, "--json")
    table = json.loads(told.stdout)
    sums = {}
    for e in events:
        s = sums.setdefault((e["cat"], e["args"]["lane"]), [0, 0, 0])
        s[0], s[1], s[2] = s[0] + 1, s[1] + e["args"]["planned_us"], s[2] + e["dur"]
    rows = {(r["kind"], r["lane"]): [r["ops"], r["predicted_us"], r["measured_us"]] for r in table["ops"]}
    near = all(sums[k][0] == rows[k][0] and all(abs(a - b) <= 1e-6 * (a + b) for a, b in zip(sums[k], rows[k])) for k in sums)
    plim.ok(rows.keys() == sums.keys() and near, f"trace --json: {len(rows)} kinds, as in the trace")
    gaps = [abs(r["predicted_us"] - r["measured_us"]) for r in table["ops"]]
    plim.ok(gaps == sorted(gaps, reverse=True) and len(gaps) > 10, "the largest difference first")
    lanes = {r["lane"]: r for r in table["lanes"]}
    plim.ok(set(lanes) == {"compute"} and lanes["compute"]["ops"] == len(events), f"and lanes {sorted(lanes)}")
    text, shapes = run(file).stdout, run(file, "--shapes").stdout
    plim.ok("predicted" in text and text.count("linear_dw") == 1 and shapes.count("linear_dw") > 1 and "f32[" in shapes, "as text, by kind and by shapes")
    facts = load(file)["otherData"]["facts"]
    plim.ok(facts["bandwidth"] > 0 and facts["flops_bf16"] > 0, "the trace has the facts that predictions were made from")
    snapshot = os.path.join(folder, "run", next(n for n in os.listdir(f"{folder}/run") if n.startswith("snapshot-"))) if os.path.isdir(f"{folder}/run") else None
    if snapshot: plim.ok(run(snapshot).returncode == 0, "a snapshot, too")
    path = plim.job(folder)
    plim.run("plan", path, "-q", "--trace", f"{folder}/plan.trace.json")
    refused("trace of a plan", run(f"{folder}/plan.trace.json"), "no measured ops")
    refused("trace of no file", run(f"{folder}/nowhere"), "nowhere")


def refused(what, result, words, code=2):
    lines = result.stderr.strip().splitlines()
    plim.ok(result.returncode == code and len(lines) == 1 and words in lines[0], f"{what}: exit {result.returncode}, {lines}")


def bad_input(folder, ended):
    path, nowhere = plim.job(folder), f"{folder}/nowhere/file"
    for kind in ("trace", "memory-viz", "snapshot"):
        refused(f"plan --{kind} into a folder that is not there", plim.run("plan", path, "-q", f"--{kind}", nowhere), nowhere)
    refused("plan --trace onto a folder", plim.run("plan", path, "-q", "--trace", folder), folder)
    refused("train --trace", plim.run("train", path, "-q", "--trace", nowhere), nowhere)
    refused("train --trace-step 0", plim.run("train", path, "-q", "--trace", f"{folder}/t", "--trace-step", "0"), "1 or more")
    plim.ok(not os.path.exists(f"{folder}/t") and not os.path.exists(f"{folder}/nowhere"), "nothing is left of them")
    refused("an unknown format", plim.run("ctl", ended, "snapshot", "--format", "jpeg"), "memory_viz")
    refused("a format of something else", plim.run("ctl", ended, "status", "--format", "json"), "snapshot")
    refused("two files", plim.run("ctl", ended, "snapshot", "a", "b"), "snapshot [FILE]")
    refused("a run that has ended", plim.run("ctl", ended, "snapshot"), "control.sock")


def main():
    with tempfile.TemporaryDirectory() as folder:
        plans(folder)
        ended = live(folder)
        of_train(folder)
        beside(folder)
        bad_input(folder, ended)
    plim.done()


main()
