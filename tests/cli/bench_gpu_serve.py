#!/usr/bin/env python3
"""bench/gpu/serve.py without a GPU: cases, results that survive failures, shares of other cases; bench_serve's JSON is read by it."""
import json
import os
import subprocess
import sys
import tempfile

# In the place of this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import plim

GPU = os.path.join(plim.SRC_DIR, "bench", "gpu")

# Stands for bench_serve: every line has 1,000 tok/s times its streams, one fails; adapters cost a tenth.
STAND_IN = """#!/usr/bin/env python3
import json, os, sys
if sys.argv[1] == "version": sys.exit(2)
kind, streams, prompt, tokens = sys.argv[-1].split(":")
if streams == "32": sys.exit("out of memory: 3 bytes missing")
named = dict(word.split("=") for word in sys.argv[3:-1])
speed = 1000 * int(streams) * (0.9 if "adapters" in named else 1)
assert "adapters" not in named or len(os.listdir(named["adapters"])) == 64
with open(named["json"], "a") as f:
    f.write(json.dumps(dict(kind=kind, streams=int(streams), tokens_per_s=speed, planned_bytes=3 << 30, driver_bytes=2 << 30)) + "\\n")
"""


def serve(*args):
    return subprocess.run([sys.executable, "-B", f"{GPU}/serve.py", *map(str, args)], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def check_list():
    listed = serve("--list")
    plim.ok(listed.returncode == 0 and "1b-64-adapters" in listed.stdout and not listed.stderr, f"--list {listed.stderr.strip()}")
    plim.ok("8b-fp8-128-128 8b-fp8-http-128-128" in " ".join(w for w in serve("--list", "--cases", "8b-fp8-http-128-128").stdout.split() if w[-1] != ":"),
            "a share brings the case it is a share of")
    plim.ok("8b-fp8-steady-5000-500" in listed.stdout, "full load in steady state")
    wrong = serve("--list", "--cases", "2b")
    plim.ok(wrong.returncode == 1 and "'2b'" in wrong.stderr and wrong.stderr.count("\n") == 1, "an unknown case is named")


def check_results(folder):
    fake, out, models = f"{folder}/fake", f"{folder}/out.json", f"{folder}/models"
    with open(fake, "w") as f: f.write(STAND_IN)
    os.chmod(fake, 0o755)
    for name in ("1b", "1b-q4.gguf", "adapters-64"): os.makedirs(f"{models}/{name}")
    for i in range(64): os.mkdir(f"{models}/adapters-64/a{i}")
    common = ["--program", fake, "--folder", models, "--out", out, "--commit", "abc"]
    first = serve(*common, "--cases", "1b-q4-1,1b-q4-32,1b-64-adapters", "--rounds", 2)
    with open(out) as f: held = json.load(f)
    plim.ok(first.returncode == 1 and "3 bytes missing" in held["cases"]["1b-q4-32"]["error"], f"a line that fails is recorded, the others run {first.stderr.strip()[-300:]}")
    plim.ok(held["cases"]["1b-q4-1"]["ours"]["rounds"] == [1000, 1000] and "goal 1,900: missed" in first.stdout, "rounds, and the goal")
    plim.ok("0.90 of 1b-256 (goal 0.85)" in first.stdout and "3.00, 2.00 GiB" in first.stdout, "a share of another case; memory planned and measured")
    serve(*common, "--cases", "1b-q4-1,1b-q4-8", "--append", "--missing", "--rounds", 1)
    with open(out) as f: held = json.load(f)
    plim.ok(held["cases"]["1b-q4-1"]["run"] == 0 and held["cases"]["1b-q4-8"]["run"] == 1, "--append --missing: what is there stays")
    late = serve(*common, "--cases", "1b-q4-8", "--append", "--minutes", 0.1)
    plim.ok(late.returncode == 1 and "no time was left for: 1b-q4-8" in late.stdout, "--minutes: nothing is begun too late")
    merged = serve("--merge", out)
    plim.ok("| 1b-q4-8 | decode:8:8:256 | 8,000 |" in merged.stdout, "--merge prints the table")


with tempfile.TemporaryDirectory() as folder_:
    check_list()
    check_results(folder_)
plim.done()
