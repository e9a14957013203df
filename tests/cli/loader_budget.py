#!/usr/bin/env python3
"""A budget that the data loader stands in the way of: the loader is made smaller first, the rows stay the same, and where
that is not enough its keys are among the remedies."""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20


def write_lines(path, size):
    random.seed(3)
    words, done = plim.CORPUS.split(), 0
    with open(path, "w") as f:
        while done < size:
            text = json.dumps({"text": " ".join(random.choices(words, k=random.randint(4, 60)))}) + "\n"
            f.write(text)
            done += len(text)


def sets(*keys): return [x for key in keys for x in ("--set", key)]


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=3)
    write_lines(f"{folder}/a.jsonl", 4 * MIB)
    data = sets(f"data.train={folder}/a.jsonl", "data.max_line_bytes=64KiB", "data.shuffle_bytes=256KiB")
    wide = plim.plan(path, "--budget", "400MiB", *data)[0]
    least = plim.plan(path, "--budget", "400MiB", *data, *sets("data.workers=0", "data.prefetch_factor=1"))[0]
    plim.ok(wide["loader"]["workers"] == 2 and wide["loader"]["pieces"] == 4 and not wide["loader"]["shrunk"] and
            wide["loader"]["bytes"] > least["loader"]["bytes"] + MIB, f"there is something to give up: {wide['loader']}")

    # The smallest job there is with the whole loader, then less and less.
    tight = plim.plan(path, "--budget", MIB + wide["by_host"]["program"], *data)[0]
    floor = tight["peak_bytes"]["total"]
    plim.ok(not tight["fits"] and tight["loader"]["shrunk"] and tight["loader"]["workers"] == 0 and tight["loader"]["bytes"] == least["loader"]["bytes"],
            f"the least that is told has the smallest loader: {floor / MIB:.2f} MiB")
    losses, seen = None, []
    budgets = [floor + wide["loader"]["bytes"] - least["loader"]["bytes"] + 2 * MIB, floor + (wide["loader"]["bytes"] - least["loader"]["bytes"]) // 2 + MIB // 2, floor + MIB // 2]
    for budget in budgets:
        plan, result = plim.plan(path, "--budget", budget, *data)
        run = plim.run("train", path, "-q", "--json", "--no-checkpoint", "--budget", budget, *data)
        if not plim.ok(result.returncode == 0 and run.returncode == 0, f"{budget / MIB:.2f} MiB plans and trains: {plan and plan['loader']} {run.stderr.strip()}"): continue
        now = plim.losses(run.stdout)
        plim.ok(losses is None or all(abs(now[s] - losses[s]) < 1e-4 for s in losses), "with the same rows")
        losses = losses or now
        seen.append(plan["loader"])
    plim.ok(len(seen) == 3 and not seen[0]["shrunk"] and seen[1]["shrunk"] and seen[2]["shrunk"] and seen[0]["bytes"] > seen[1]["bytes"] >= seen[2]["bytes"],
            f"as small as is needed: {[s['bytes'] >> 10 for s in seen]} KiB")
    text = plim.run("plan", path, "-q", "--budget", floor + MIB // 2, *data).stdout
    plim.ok("a smaller data loader leaves room: 0 workers, 1 pieces" in text or "a smaller data loader leaves room: 1 workers" in text, "the report says so")

    # Keys that were given stay, and are remedies.
    kept, result = plim.plan(path, "--budget", floor + MIB // 2, *data, *sets("data.workers=2", "data.prefetch_factor=512"))
    changes = [r["change"] for r in kept["remedies"]]
    plim.ok(result.returncode == 3 and kept["loader"]["workers"] == 2 and not kept["loader"]["shrunk"] and changes[0].startswith("data."),
            f"a loader that was asked for stays: {changes}")
    plim.ok("data loader takes" in result.stderr, f"its part is told: {result.stderr.strip()}")
    remedy = next(r for r in kept["remedies"] if "data.workers" in r["set"])
    again, result = plim.plan(path, "--budget", floor + MIB // 2, *data, *sets("data.workers=2", "data.prefetch_factor=512"), *sets(*[f"{k}={v}" for k, v in remedy["set"].items()]))
    plim.ok(result.returncode == 0 and again["fits"], "the remedy is true")

    # A budget that program and loader together pass is planned, one below the program is not.
    big = sets(f"data.train={folder}/a.jsonl", "data.shuffle_bytes=64MiB", "data.shuffle_buffer=1000000")
    plan, result = plim.plan(path, "--budget", wide["by_host"]["program"] + 3 * MIB, *big)
    plim.ok(result.returncode == 3 and any("data.shuffle_bytes" in r["set"] for r in plan["remedies"]) and "data loader takes" in result.stderr,
            f"below program and loader: {[r['change'] for r in plan['remedies']]} {result.stderr.strip()}")
    result = plim.run("plan", path, "-q", "--budget", "500KiB", *big)
    plim.ok(result.returncode == 3 and "program itself" in result.stderr and "the data loader" in result.stderr, f"below the program: {result.stderr.strip()}")
plim.done()
