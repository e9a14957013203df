#!/usr/bin/env python3
# run-tests: not=tsan
"""a signal is seen while the loader finds nothing to train on, with and without threads of its own, in training and in
evaluation: the run ends at once, and what was done is saved. What it finds nothing in is a line without an end: a file
with a hole of 256 GiB, which takes no room on the disk."""
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def stop(name, path, data, *args, until):
    """SIGINT once `until` is in the log and the loader is in the hole."""
    log = f"{data}.log"
    if os.path.exists(log): os.remove(log)
    process = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", "--log", log, "--set", "data.skip_bad=true", *args],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (os.path.exists(log) and until in open(log).read()): time.sleep(0.005)
    time.sleep(0.3)
    alive = process.poll() is None
    process.send_signal(signal.SIGINT)
    try:
        stderr = process.communicate(timeout=60)[1].strip()
    except subprocess.TimeoutExpired:
        process.kill()
        stderr = "KILLED after 60 s: " + process.communicate()[1]
    plim.ok(alive and process.returncode == 130 and "--resume" in stderr, f"{name}: {'' if alive else 'ENDED BEFORE '}exit code {process.returncode}: {stderr}")
    return plim.events(open(log).read())


with tempfile.TemporaryDirectory() as folder:
    good = "".join(f'{{"text":"ship {i} took {i} barrels past the bar before the tide turned"}}\n' for i in range(64))
    path = plim.job(folder, training__steps=20, data__shuffle_buffer=8)
    data = f"{folder}/hole.jsonl"
    with open(data, "w") as f:
        f.write(good)
        f.truncate(1 << 38)
    for workers in (0, 2):
        sets = ["--set", f"data.train={data}", "--set", f"data.workers={workers}", "--set", f"output.dir={folder}/run{workers}"]
        events = stop(f"{workers} workers", path, data, *sets, until='"step":4,')
        saved = [e for e in events if e["event"] == "checkpoint"]
        plim.ok(saved and saved[-1]["step"] >= 4, f"{workers} workers: what was done is saved: {events[-2:]}")
    sets = ["--set", f"data.validation={folder}/hole.jsonl", "--set", "training.eval_every=2", "--set", f"output.dir={folder}/eval"]
    stop("in an evaluation", path, f"{folder}/e", *sets, until='"step":2,')
plim.done()
