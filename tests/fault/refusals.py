#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Refused memory is explained: each of the five causes is provoked on purpose and named rightly, in its stage, with the
tensor and who holds what; remedies are really plans, and the one line on stderr stays one line.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import machine
import plim

MIB = 1 << 20


def job(**changes):
    return plim.job(folder, **{"training__steps": 60, "training__gradient_accumulation_steps": 1, **changes})


def refused(what, cause, stage, code, path, *args, env=None):
    """The explanation of a run that must be refused."""
    result = plim.run("train", path, "--no-checkpoint", "--json", *args, env=env)
    told = [e for e in plim.events(result.stdout) if e["event"] == "refused"]
    plim.ok(result.returncode == code and result.stderr.count("\n") == 1 and len(told) == 1,
            f"{what}: exit {result.returncode}, one line, one report: {result.stderr.strip()}")
    if not told: return None
    plim.ok(told[0]["cause"] == cause and told[0]["stage"] == stage, f"{what}: named as {told[0]['cause']} in {told[0]['stage']}")
    plim.ok(told[0]["tensor"] and told[0]["class"] and told[0]["tensor_bytes"] > 0 and told[0]["op"],
            f"{what}: {told[0]['tensor']} ({told[0]['class']}) at {told[0]['op']}")
    return told[0]


def helps(what, path, told, *args):
    """Each remedy that is one key is tried: the plan fits."""
    tried = 0
    for remedy in told["remedies"]:
        change = remedy["change"]
        if "," in change or change.startswith("unpin"): continue
        key, _, value = change.partition(": ")
        made, _ = plim.plan(path, *(("--budget", value) if key == "budget" else (*args, "--set", f"{key}={value}")))
        tried += bool(made and made["fits"])
        if not made or not made["fits"]: return plim.ok(False, f"{what}: {change} does not help")
    plim.ok(tried > 0 and all(r["bytes"] > 0 and r["step_seconds"] > 0 for r in told["remedies"]), f"{what}: {tried} remedies hold")


with tempfile.TemporaryDirectory() as folder:
    overhead = plim.plan(job(), "--budget", "8GiB")[0]["by_class"]["overhead"]
    tight = overhead + 2 * MIB

    path = job(model__hidden_size=512, model__intermediate_size=1024)
    told = refused("a large model", "model too large", "planning", 3, path, "--budget", tight)
    if told: helps("a large model", path, told, "--budget", tight)

    path = job(data__max_length=1024, model__use_flash_attention="false", training__batch_size=1)
    told = refused("long rows", "attention", "planning", 3, path, "--budget", overhead + 12 * MIB)
    if told: helps("long rows", path, told, "--budget", overhead + 12 * MIB)

    path = job(training__batch_size=4)
    told = refused("a line that falls", "model too large", "re-planning", 3, path, "--budget", overhead + 12 * MIB, "--budget-at", f"3={overhead}")
    plim.ok(told and told["step"] == 2, "a line that falls: after step 2")

    if not plim.SANITIZED:
        held = ("--set", "training.recompute=none", "--set", "training.micro_batch_size=4")
        path = job(data__max_length=512, training__batch_size=4)
        box = machine.Machine(1 << 30, others=(1 << 30) - 20 * MIB)
        told = refused("a neighbour", "other process", "committing", 4, path, "--budget", "200MiB", *held, env={"PLIMSOLL_MACHINE": box.root})
        plim.ok(told and told["remedies"] and all("budget" not in r["change"] for r in told["remedies"]),
                "a neighbour: no remedy asks for more than there is")
        box.close()

        # Long enough for the monitor to see it grow however short a step is: 20 samples are 0.2 s.
        told = refused("a leak", "leak or fragmentation", "re-planning", 3, job(training__batch_size=4, training__steps=400), "--budget", "1GiB",
                       "--set", "monitoring.interval=0.01", "--budget-at", f"399={overhead}", env={"PLIMSOLL_FAULT": "leak:3"})
        plim.ok(told and told["leak"] == "unknown" and any(h["ours"] for h in told["holders"]), "a leak: whose, and this process is among the holders")

    path = job(training__batch_size=4, training__eval_every=2, data__validation=f"[{folder}/corpus.txt]")
    told = refused("an evaluation", "evaluation batch", "evaluation", 3, path, "--budget", "1GiB", env={"PLIMSOLL_FAULT": "eval:1"})
    plim.ok(told and told["step"] == 2, "an evaluation: after step 2")
plim.done()
