#!/usr/bin/env python3
"""Options do what their help says, and messages mean what they say."""
import json
import os
import re
import resource
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20

with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=2)
    for steps in (0, -3):
        none = plim.run("train", path, "--steps", steps)
        plim.ok(none.returncode == 2 and "--steps" in none.stderr and not none.stdout and not os.path.exists(f"{folder}/run"),
                f"--steps {steps} is refused: {none.stderr.strip()}")

    quiet = plim.run("train", path, "--quiet")
    plim.ok(quiet.returncode == 0 and not quiet.stdout and not quiet.stderr, f"-q says nothing, piped or not {quiet.stdout[:80]}{quiet.stderr}")
    plim.ok(plim.losses(plim.run("train", path, "-q", "--json", "--resume", "--steps", 3).stdout), "unless JSON is asked for")
    plim.ok(plim.losses(plim.run("train", path, "--resume", "--steps", 4).stdout), "without -q a pipe gets it")

    ask = lambda *more: json.loads(plim.run("generate", path, "-p", "The ship", "-n", 12, "-q", "--json", "--seed", 5, *more).stdout)["tokens"]
    plim.ok(ask("--top-p", 0, "-t", 5) == ask("-t", 0), "--top-p 0 keeps the likeliest alone")

    text = plim.run("plan", path, "-q", "--set", "model.hidden_size=8", "--set", "model.intermediate_size=16", "--set", "model.num_layers=1").stdout
    plim.ok(re.search(r"\b\d+\.\d K parameters", text), f"small models have parameters: {text.splitlines()[0]}")

    # Few addresses: enough for the budget is enough, and too few are told as what they are.
    def limited(mib, *args):
        return subprocess.run([plim.PLIMSOLL, *map(str, args)], capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB)))
    if plim.SANITIZED:
        plim.skip("a sanitizer needs all addresses")
    else:
        few = limited(16, "plan", path, "-q", "--budget", "40MiB", "--set", "training.threads=1")
        plim.ok(few.returncode in (4, 127) and "arena of" not in few.stderr, f"too few addresses: {few.returncode} {few.stderr.strip()[:200]}")
        lean = ("--set", "training.threads=1", "--set", "data.workers=0")
        few = limited(64, "train", path, "-q", "--no-checkpoint", "--steps", 1, "--budget", plim.smallest(path, *lean) + MIB, *lean)
        plim.ok(few.returncode == 0, f"few addresses will do: {few.stderr.strip()[:200]}")

    # A CPU's remedies end where the machine does.
    root = f"{folder}/machine"
    os.makedirs(f"{root}/proc/self")
    open(f"{root}/proc/meminfo", "w").write("MemTotal: 16384 kB\nMemAvailable: 16384 kB\n")
    open(f"{root}/proc/self/cgroup", "w").write("")
    big = plim.run("plan", path, "-q", "--json", "--budget", "8MiB", "--set", "model.vocab_size=65536", env={"PLIMSOLL_MACHINE": root})
    raised = [r["set"]["budget"] for r in json.loads(big.stdout)["remedies"] if "budget" in r["set"]]
    plim.ok(big.returncode == 3 and not raised, f"no remedy asks for more than the machine has {raised}")

with tempfile.TemporaryDirectory() as folder:
    # The loader of a run is the one its lowest line leaves room for; eval makes its own smaller, too.
    path = plim.job(folder, training__steps=3)
    with open(f"{folder}/a.jsonl", "w") as f:
        for i in range(3000): f.write(json.dumps({"text": plim.CORPUS[i % 900:i % 900 + 300]}) + "\n")
    data = ["--set", f"data.train={folder}/a.jsonl"]
    wide, _ = plim.plan(path, "--budget", "400MiB", *data)
    least, _ = plim.plan(path, "--budget", "1MiB", *data)
    low = least["peak_bytes"]["total"]
    plim.ok(least["loader"]["shrunk"] and least["loader"]["bytes"] + MIB < wide["loader"]["bytes"], f"the loader shrinks from {wide['loader']['bytes']} to {least['loader']['bytes']}")
    moved = plim.run("train", path, "-q", "--json", "--budget", "400MiB", "--budget-at", f"2={low}", *data)
    plain = plim.run("train", path, "-q", "--json", "--no-checkpoint", "--budget", "400MiB", "--set", f"output.dir={folder}/other", *data)
    same = [abs(a - b) < 1e-5 for a, b in zip(plim.losses(moved.stdout).values(), plim.losses(plain.stdout).values())]
    plim.ok(moved.returncode == 0 and same == [True] * 3, f"--budget-at has room for it {moved.stderr.strip()[:200]} {same}")
    told = plim.run("eval", path, "--rows", 2, "--json", "--budget", "1MiB", *data)
    missing = int(re.search(r"\((\d+) bytes\)", told.stderr).group(1))
    plim.ok(missing + MIB < low + least["loader"]["bytes"] + MIB and plim.run("eval", path, "--rows", 2, "--budget", MIB + missing, *data).returncode == 0,
            f"eval, too: {told.stderr.strip()[:200]}")
plim.done()
