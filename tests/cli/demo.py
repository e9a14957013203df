#!/usr/bin/env python3
"""What `make demo` runs, with fewer steps: every command of demo/run.sh works, and what it says of the run is there.

The demo's folder is copied, so that a run of one's own in runs/demo stays. The second half breaks one command after the other
in the copy: a demo that goes on after a failure would be a demo of nothing.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Not from this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import plim

PROGRAM = os.path.abspath(plim.PLIMSOLL)


def demo(folder, program=PROGRAM):
    return subprocess.run([f"{folder}/demo/run.sh"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**os.environ, "PLIMSOLL": program, "DEMO_SECONDS": "0", "DEMO_STEPS": "3"})


def broken(folder, when):
    """A program that fails when its command line has the word, and else is the real one."""
    path = f"{folder}/plimsoll-without-{when.strip('-')}"
    with open(path, "w") as f:
        f.write(f'#!/bin/sh\nfor word; do [ "$word" != "{when}" ] || exit 2; done\nexec "{PROGRAM}" "$@"\n')
    os.chmod(path, 0o755)
    return path


with tempfile.TemporaryDirectory() as folder:
    shutil.copytree(os.path.join(plim.SRC_DIR, "demo"), f"{folder}/demo")
    result = demo(folder)
    out = result.stdout
    plim.ok(result.returncode == 0 and "plimsoll:" not in result.stderr, f"the demo ends with {result.returncode}" + result.returncode * f": {result.stderr.strip()[-300:]}")
    plim.ok(all(f"== {n}. " in out for n in (1, 2, 3, 4)), "it has four parts")
    plim.ok(os.path.getsize(f"{folder}/runs/demo/plan.html") > 10000, "the page is made")
    plim.ok("so 3 of them are trained" in out and re.search(r"loss \d\.\d\d  \S+  \d\.\d\d", out), "it trains, and draws the curve")
    plim.ok("planned = ledger" in out, "planned and booked bytes agree")
    plim.ok(all(p in out for p in ("A load line ", "The master of the ", "To the owner's clerk of the ")), "it is asked for text three times")
    for word in ("--html", "--json", "train", "generate"):
        result = demo(folder, broken(folder, word))
        plim.ok(result.returncode != 0, f"a failing command ends it: {word}")
plim.done()
