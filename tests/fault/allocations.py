#!/usr/bin/env python3
# run-tests: not=tsan
"""The program that counts its allocations by call site (PLIMSOLL_ALLOCATIONS): a leak that a test provokes is told with the
place that lost the memory, a snapshot lists such places, and the run is otherwise the ordinary one's.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

COUNTING = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "allocations", "plimsoll")
if not os.path.exists(COUNTING):
    print("the build has no such program")
    sys.exit(77)


def line_of(place):
    """The file that a place of the program is in, where addr2line is."""
    if not shutil.which("addr2line"): return None
    told = subprocess.run(["addr2line", "-fe", COUNTING, place.partition("+")[2]], capture_output=True, text=True)
    return told.stdout.strip().replace("\n", " ")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=60, training__batch_size=1, training__gradient_accumulation_steps=1, data__max_length=16, model__num_layers=1)
    args = ("train", path, "-q", "--json", "--no-checkpoint", "--set", "monitoring.interval=0.01")
    calm = plim.run(*args)

    def counted(*more, **env):
        return subprocess.run([COUNTING, *args, *more], capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **env})

    same = counted()
    plim.ok(same.returncode == 0 and plim.losses(same.stdout) == plim.losses(calm.stdout), f"the same losses: {same.stderr.strip()[:200]}")
    leak = counted("--steps", "2000", PLIMSOLL_FAULT="leak:3") if not plim.SANITIZED else counted("--steps", "400", PLIMSOLL_FAULT="leak:3")
    notes = [e["text"] for e in plim.events(leak.stdout) if e["event"] == "note" and "has grown" in e["text"]]
    plim.ok(len(notes) == 1 and "grown since the run began: " in notes[0], f"a leak is told with its places: {notes}")
    first = re.search(r"began: ([\d.]+ \w+) in (\d+) blocks at (\S+?)(,|$)", notes[0] if notes else "")
    where = line_of(first.group(3)) if first else ""
    plim.ok(first and (where is None or "trainer.c" in where), f"the first is the one that loses: {first and first.groups()} {where}")
    plain = plim.run(*args, "--steps", "2000", env={"PLIMSOLL_FAULT": "leak:3"})
    told = [e["text"] for e in plim.events(plain.stdout) if e["event"] == "note" and "has grown" in e["text"]]
    plim.ok(told and "began" not in told[0], "the ordinary program counts nothing")
plim.done()
