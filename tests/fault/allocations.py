#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""The program that counts its allocations by call site (PLIMSOLL_ALLOCATIONS): a leak that a test provokes is told with the
place that lost the memory, and the run is otherwise the ordinary one's.
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
    same = subprocess.run([COUNTING, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    plim.ok(same.returncode == 0 and plim.losses(same.stdout) == plim.losses(calm.stdout), f"the same losses: {same.stderr.strip()[:200]}")

    def leak(program):
        """What is told of a leak, a MiB a step; the run is not waited for."""
        run = subprocess.Popen([program, *args, "--steps", "4000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, env={**os.environ, "PLIMSOLL_FAULT": "leak:3"})
        note = next((e["text"] for e in map(json.loads, run.stdout) if e["event"] == "note" and "has grown" in e["text"]), "")
        run.terminate()
        run.stdout.close()
        run.wait()
        return note

    note = leak(COUNTING)
    plim.ok("grown since the run began: " in note, f"a leak is told with its places: {note}")
    first = re.search(r"began: ([\d.]+ \w+) in (\d+) blocks at (\S+?)(,|$)", note)
    where = line_of(first.group(3)) if first else ""
    plim.ok(first and (where is None or "fault.c" in where), f"the first is the one that loses: {first and first.groups()} {where}")
    told = leak(plim.PLIMSOLL)
    plim.ok(told and "began" not in told, "the ordinary program counts nothing")
plim.done()
