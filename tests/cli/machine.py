#!/usr/bin/env python3
"""A CPU's memory as the system tells it: the budget nobody gave, a container's limit, and lines above what there is. The
machine is made of files (PLIMSOLL_MACHINE), so that the numbers are known."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder
import plim

MIB = 1 << 20


def put(root, path, text):
    os.makedirs(os.path.dirname(root + path), exist_ok=True)
    with open(root + path, "w") as f: f.write(text)


def machine(root, total, free, limit=None, used=0):
    """A machine of so many MiB, perhaps with a group that may have less."""
    put(root, "/proc/meminfo", f"MemTotal: {total * 1024} kB\nMemAvailable: {free * 1024} kB\n")
    put(root, "/proc/self/cgroup", "0::/job\n")
    put(root, "/sys/fs/cgroup/job/memory.max", f"{limit * MIB}\n" if limit else "max\n")
    put(root, "/sys/fs/cgroup/job/memory.current", f"{used * MIB}\n")
    return {"PLIMSOLL_MACHINE": root}


def plan(path, env, *args):
    result = plim.run("plan", path, "--json", "-q", *args, env=env)
    return json.loads(result.stdout) if result.stdout.startswith("{") else None, result


def near(bytes_, mib, slack=300 if plim.SANITIZED else 16):
    """What the process itself holds counts as free: some MiB, more under a sanitizer."""
    return mib * MIB - MIB <= bytes_ <= (mib + slack) * MIB


with tempfile.TemporaryDirectory() as folder:
    path, root = plim.job(folder), folder + "/machine"

    # The budget nobody gave.
    seen, _ = plan(path, machine(root, 2000, 1980))
    plim.ok(seen["budget_bytes"] == 1800 * MIB and not seen["memory"]["limited"], f"an idle machine: the profile's share, {seen['budget_bytes'] / MIB:.0f} MiB")
    seen, _ = plan(path, machine(root, 2000, 1000))
    plim.ok(near(seen["budget_bytes"], 950) and near(seen["memory"]["free_bytes"], 1000), f"a busy machine: what is free, {seen['budget_bytes'] / MIB:.0f} MiB")
    seen, _ = plan(path, machine(root, 2000, 1980, limit=500))
    plim.ok(seen["memory"]["bytes"] == 500 * MIB and seen["memory"]["limited"] and seen["budget_bytes"] == 450 * MIB,
            f"a container: its limit, {seen['budget_bytes'] / MIB:.0f} MiB")
    env = machine(root, 2000, 1980, limit=500, used=400)
    seen, _ = plan(path, env)
    plim.ok(near(seen["budget_bytes"], 95), f"a full container: what is left, {seen['budget_bytes'] / MIB:.0f} MiB")
    run = plim.run("train", path, "-q", "--json", "--no-checkpoint", "--steps", 1, env=env)
    told = [e for e in plim.events(run.stdout) if e["event"] == "plan"]
    plim.ok(run.returncode == 0 and near(told[0]["budget_bytes"], 95), "train has the same line")

    # Where a limit stands: version 1 or 2, the group itself or one around it; serving has the same.
    model = llama_folder.make(folder + "/llama")
    for place, files in (("version 2, max", {"job/memory.max": 500}), ("version 2, high", {"job/memory.max": 900, "job/memory.high": 500}),
                         ("version 2, around it", {"job/memory.max": 900, "memory.max": 500}), ("version 1", {"memory/job/memory.limit_in_bytes": 500}),
                         ("version 1, around it", {"memory/job/memory.limit_in_bytes": 900, "memory/memory.limit_in_bytes": 500})):
        box = f"{folder}/{place.replace(' ', '-')}"
        env = machine(box, 2000, 1980)
        if "1" in place: put(box, "/proc/self/cgroup", "4:memory:/job\n")
        for name, mib in files.items(): put(box, "/sys/fs/cgroup/" + name, f"{mib * MIB}\n")
        seen, _ = plan(path, env)
        served = json.loads(plim.run("serve", model, "--plan", "--json", "--device", "cpu", env=env).stdout)
        plim.ok(seen["budget_bytes"] == 450 * MIB and served["budget"] == 0 and served["limit"] == 450 * MIB, f"{place}: {seen['budget_bytes'] / MIB:.0f} MiB, serving {served['limit'] / MIB:.0f}")
    told = plim.run("serve", model, "--plan", "--device", "cpu", env=env).stdout
    plim.ok("no budget, limit 450 MiB" in told and "the container's limit holds it" in told, "serve says what holds it")

    # Lines above what there is.
    env = machine(root, 2000, 1980, limit=500)
    seen, result = plan(path, env, "--budget", "1GiB")
    plim.ok(result.returncode == 0 and seen["fits"] and seen["memory"]["holds_plan"] and not seen["memory"]["holds_budget"], "plan may be asked about more")
    text = plim.run("plan", path, "--budget", "1GiB", env=env).stdout
    plim.ok("the budget is more than this machine has (500 MiB, the container's limit)" in text, "and says so")
    words = ["'budget'", "1.00 GiB", "this machine", "500 MiB", "container"]
    for command in ("train", "eval"):
        if command == "eval": plim.run("train", path, "-q", "--steps", 1)
        result = plim.run(command, path, "-q", "--budget", "1GiB", env=env) if command == "train" else plim.run(command, path, "--set", "budget=1GiB", env=env)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words), f"{command} refuses it: {result.stderr.strip()}")
    result = plim.run("train", path, "-q", "--overwrite", "--budget-at", "2=1GiB", env=env)
    plim.ok(result.returncode == 2 and "--budget-at" in result.stderr and "500 MiB" in result.stderr, f"also later: {result.stderr.strip()}")

    # A plan above what there is.
    least = plim.plan(path, "--budget", "64MiB")[0]["peak_bytes"]["total"] // MIB
    small = machine(root, least // 2, least // 2)
    seen, result = plan(path, small, "--budget", "64MiB")
    plim.ok(result.returncode == 3 and not seen["fits"] and not seen["memory"]["holds_plan"] and "does not fit this machine" in result.stderr,
            f"a plan that holds its line and not this machine: {result.stderr.strip()}")
    plim.ok("does not fit this machine, which has" in plim.run("plan", path, "--budget", "64MiB", env=small).stdout, "the report says it too")
    seen, result = plan(path, small, "--device", "cpu-2gb", "--budget", "64MiB")
    plim.ok(result.returncode == 0 and seen["memory"]["bytes"] == 2048 * MIB and seen["memory"]["free_bytes"] is None, "another device is another matter")
plim.done()
