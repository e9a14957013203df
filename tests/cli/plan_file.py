#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""plan -o FILE keeps a plan and train --plan FILE runs exactly that one: the same knobs and bytes, whatever the search would find
today. What has changed since (a key, the budget, threads, the file itself) is refused by name, in one line."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

TOKENIZER = os.path.abspath(os.path.join(plim.SRC_DIR, "tests/golden/tokenizer/gpt2.json"))
JOBS = {  # budget, None for a MiB above the smallest; changes
    "in memory": ("24MiB", {}),
    "on disk": (None, dict(model__hidden_size=96, model__num_layers=4)),
    "rows of several lengths": ("16MiB", dict(data__padding="longest", data__packing="false", data__format="lines")),
    "a tokenizer": ("40MiB", dict(data__tokenizer=TOKENIZER, model__vocab_size=4096)),
}


def events(done, kind):
    return [e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == kind]


def kept(folder, name, budget, changes):
    path, file = plim.job(folder, training__threads=2, training__steps=2, **changes), f"{folder}/job.plan"
    budget = budget or plim.smallest(path) + (1 << 20)
    made, result = plim.plan(path, "-b", budget, "-o", file)
    if not plim.ok(made and made["fits"] and os.path.exists(file), f"{name}: the plan is kept {result.stderr.strip()}"): return
    done = plim.run("train", path, "--plan", file, "--no-checkpoint", "-q")
    told = events(done, "plan")
    plim.ok(done.returncode == 0 and told and told[0]["planned_total"] == made["peak_bytes"]["total"] and told[0]["budget_bytes"] == made["budget_bytes"],
            f"{name}: and run, to the byte {done.stderr.strip()}")
    free = events(plim.run("train", path, "-b", budget, "--no-checkpoint", "-q"), "plan")
    plim.ok(told and free and told[0]["knobs"] == free[0]["knobs"], f"{name}: with the knobs of a run that searches")


with tempfile.TemporaryDirectory() as folder:
    for name, (budget, changes) in JOBS.items(): kept(folder, name, budget, changes)

    # Another choice than the search would make stands: here by pins that the job of the run has not got, but for their keys.
    path, file = plim.job(folder, training__threads=2, training__steps=2), f"{folder}/job.plan"
    plim.plan(path, "-b", "16MiB", "-o", file)
    small = plim.run("train", path, "--plan", file, "--no-checkpoint", "-q")
    roomy = events(plim.run("train", path, "-b", "64MiB", "--no-checkpoint", "-q"), "plan")
    plim.ok(small.returncode == 0 and events(small, "plan")[0]["knobs"] != roomy[0]["knobs"], "a job without a budget has the plan's")
    moved = plim.run("train", path, "--plan", file, "--budget-at", "2=64MiB", "--no-checkpoint", "-q")
    plim.ok(moved.returncode == 0 and events(moved, "replan"), f"a line that moves is planned for as ever {moved.stderr.strip()}")

    def refused(what, args, *words):
        bad = plim.run("train", path, *args, "--no-checkpoint", "-q")
        line = bad.stderr.strip()
        plim.ok(bad.returncode == 2 and line.count("\n") == 0 and all(w in line for w in words), f"{what}: {bad.returncode} {line}")

    refused("another key", ["--plan", file, "--set", "training.batch_size=2"], "training.batch_size", "plan -o")
    refused("another model", ["--plan", file, "--set", "model.num_layers=2"], "model.num_layers")
    refused("another budget", ["--plan", file, "-b", "17MiB"], "budget", "17.0 MiB", "16.0 MiB")
    refused("more threads", ["--plan", file, "--set", "training.threads=3"], "threads")
    refused("no such file", ["--plan", f"{folder}/none"], "none")
    text = open(file).read()
    for what, other, word in (("a changed digit", text.replace('"total":', '"total":1', 1), "damaged"), ("cut off", text[: len(text) // 2], "damaged"),
                              ("something else", "model: {}\n", "not a plan file"), ("nothing", "", "not a plan file")):
        open(file, "w").write(other)
        refused(what, ["--plan", file], word)
    open(file, "w").write(text)
    both = plim.run("plan", path, "--device", "cpu-4gb", "-o", file)
    plim.ok(both.returncode == 2 and "--device" in both.stderr, f"a plan for another machine is not kept: {both.stderr.strip()}")
    os.unlink(file)
    none = plim.run("plan", path, "-b", "1MiB", "-o", file)
    plim.ok(none.returncode == 3 and not os.path.exists(file), "nor one that does not fit")
    open(file, "w").write(text)
    with open(f"{folder}/corpus.txt", "w") as f: f.write("")
    refused("data that are gone", ["--plan", file], "corpus.txt")
plim.done()
