#!/usr/bin/env python3
"""SIGHUP, a pipe that is closed, and a limit on file sizes lose no work."""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def hangup_tests(folder, path):
    for ignored in (False, True):
        run, log = f"{folder}/hup{ignored}", f"{folder}/hup{ignored}.jsonl"
        steps = "300" if ignored else "1000000"
        process = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", "--steps", steps, "--log", log, "--set", f"output.dir={run}"], stdin=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL))
        while process.poll() is None and (not os.path.exists(log) or '"step":5,' not in open(log).read()): time.sleep(0.002)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate()
        done = len(plim.losses(open(log).read()))
        saved = os.path.exists(f"{run}/checkpoint-{done:08d}/manifest.json")
        if ignored:
            plim.ok(process.returncode == 0 and saved and done == 300, f"under nohup SIGHUP changes nothing {process.returncode} {err.strip()}")
        else:
            plim.ok(process.returncode == 130 and saved and err.count("\n") == 1, f"SIGHUP saves and ends: {err.strip()}")


def pipe_tests(folder, path):
    whole = plim.losses(plim.run("train", path, "-q", "--steps", 40, "--no-checkpoint").stdout)
    for name, more in (("JSON lines", []), ("a line for people", ["--log", f"{folder}/pipe.jsonl"])):
        run = f"{folder}/pipe{len(more)}"
        process = subprocess.Popen([plim.PLIMSOLL, "train", path, "--steps", "40", "--set", f"output.dir={run}", *more], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait()
        saved = os.path.exists(f"{run}/checkpoint-00000040/manifest.json")
        plim.ok(process.returncode == 0 and saved and err.count("\n") == 1 and "continues" in err, f"train | head, {name}: the run goes on to its end: {process.returncode} {err.strip()}")
        if more: plim.ok(plim.losses(open(more[1]).read()) == whole, "and its log is whole")


def limit_tests(folder, path):
    run, log = f"{folder}/limit", f"{folder}/limit.jsonl"
    size = max(os.path.getsize(f"{folder}/pipe0/checkpoint-00000040/{f}") for f in ("model.safetensors", "state/model.safetensors"))

    def small():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    with open(log, "w") as f: f.write("x" * (size - 1000) + "\n")
    ended = subprocess.run([plim.PLIMSOLL, "train", path, "-q", "--steps", "40", "--resume", "--log", log, "--set", f"output.dir={run}"],
                           capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=small)
    plim.ok(ended.returncode == 2 and "log" in ended.stderr and ended.stderr.count("\n") == 1 and os.path.exists(f"{run}/checkpoint-00000040/manifest.json"),
            f"a log that may not grow: the run goes on, saves and says so: {ended.returncode} {ended.stderr.strip()}")

    with open(f"{run}/log.jsonl", "w") as f: f.write("x" * (size - 1000) + "\n")
    ended = subprocess.run([plim.PLIMSOLL, "train", path, "--json", "--steps", "60", "--resume", "--set", f"output.dir={run}"], capture_output=True, text=True,
                           stdin=subprocess.DEVNULL, preexec_fn=small)
    plim.ok(ended.returncode == 0 and ended.stderr.count("log.jsonl cannot be written") == 1 and len(plim.losses(ended.stdout)) == 20 and
            os.path.exists(f"{run}/checkpoint-00000060/manifest.json"), f"the run's own log may not grow: it is told once, and all steps are made: {ended.returncode} {ended.stderr.strip()}")

    def smaller():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    ended = subprocess.run([plim.PLIMSOLL, "train", path, "-q", "--steps", "62", "--resume", "--set", f"output.dir={run}"],
                           capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=smaller)
    plim.ok(ended.returncode == 2 and ended.stderr.count("\n") == 1 and "checkpoint of step 62 not saved" in ended.stderr and plim.left(run) == ["checkpoint-00000040", "checkpoint-00000060"],
            f"a checkpoint that may not grow: one line, the earlier one is whole: {ended.returncode} {ended.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_)
    hangup_tests(folder_, path_)
    pipe_tests(folder_, path_)
    limit_tests(folder_, path_)
plim.done()
