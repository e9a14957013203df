#!/usr/bin/env python3
# run-tests: timeout=300, not=tsan
"""plimsoll watch: lines of a finished run and of one that is under way, a screen in a terminal, the newest run found, and bad input as one line. What a run
leaves in its folder for it: log.jsonl and plan.json."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import plim
from plim import ok
import watching


def finished(folder):
    """A run of four steps; its folder."""
    ended = plim.run("train", plim.job(folder, output__dir=f"{folder}/runs/a"), "-q", "--log", f"{folder}/other.jsonl")
    ok(ended.returncode == 0, f"trained {ended.stderr.strip()}")
    own, asked = (open(p).read() for p in (f"{folder}/runs/a/log.jsonl", f"{folder}/other.jsonl"))
    ok(own == asked and [e["event"] for e in plim.events(own)] == ["plan"] + 4 * ["step"] + ["checkpoint", "end"] or "memory" in own, "a run keeps its events in its folder, as --log has them")
    plan = plim.events(own)[0]
    ok(plan["steps"] == 4 and plan["pid"] > 1 and sum(plan["by_class"].values()) <= plan["planned_total"] and list(plan["lines"]) == ["target", "warning", "critical", "emergency"]
       and plan["budget_bytes"] <= plan["lines"]["target"] < plan["lines"]["emergency"] and abs(plan["time"] - time.time()) < 600, "the plan's event has what a watcher needs")
    snapshot = json.load(open(f"{folder}/runs/a/plan.json"))
    ok(snapshot["format"] == "plimsoll-snapshot" and snapshot["total"] == plan["planned_total"] and len(snapshot["tensors"]) > 50, "and plan.json is the plan's snapshot")
    return f"{folder}/runs/a"


def lines(folder, run):
    seen = plim.run("watch", run)
    text = seen.stdout.splitlines()
    ok(seen.returncode == 0 and not seen.stderr and text[0].startswith("planned ") and text[-1].startswith("ended after step 4") and "\033" not in seen.stdout, f"a finished run as lines: {text[-1]}")
    ok(sum(re.match(r"step \d/4  loss \d+\.\d{4}  lr \S+  \d+ tok/s  .* of ", t) is not None for t in text) == 4, f"a line a step: {text[1]}")
    ok(plim.run("watch", run + "/log.jsonl").stdout == seen.stdout, "the log itself will do")
    newest = subprocess.run([os.path.abspath(plim.PLIMSOLL), "watch"], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    ok(newest.returncode == 0 and newest.stdout == seen.stdout, "without a name, the newest run below the folder")
    reader = subprocess.run(f"{plim.PLIMSOLL} watch {run} | head -n 1", shell=True, capture_output=True, text=True)
    ok(reader.returncode == 0 and not reader.stderr, "a reader may leave")


def bad(folder):
    empty = tempfile.mkdtemp(dir=folder)
    with open(f"{folder}/text.txt", "w") as f: f.write("no log\n")
    os.mkfifo(f"{folder}/pipe")
    for args, word in ((["/no/such/run"], "no run"), ([empty], "log.jsonl"), ([f"{folder}/text.txt"], "JSON"), ([f"{folder}/pipe"], "pipe"), ([empty, empty], "one run"), (["--port", "80", empty], "--web"),
                       (["--web", "--port", "70000", empty], "65535"), (["--web", "--port", "x", empty], "--port"), (["--web", empty], "log.jsonl"), (["--wbe"], "web")):
        seen = plim.run("watch", *args)
        ok(seen.returncode == 2 and seen.stderr.count("\n") == 1 and word in seen.stderr and not seen.stdout, f"watch {' '.join(args)[:40]}: {seen.stderr.strip()}")
    alone = subprocess.run([os.path.abspath(plim.PLIMSOLL), "watch"], cwd=empty, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    ok(alone.returncode == 2 and alone.stderr.count("\n") == 1 and "no run found" in alone.stderr, f"no run anywhere: {alone.stderr.strip()}")


def screen(run, until, send=None):
    """What watch draws in a terminal of 90 x 30 until `until` is in it; then the signal, and its exit code."""
    pid, fd = pty.fork()
    if pid == 0: os.execve(plim.PLIMSOLL, [plim.PLIMSOLL, "watch", run], {**os.environ, "TERM": "xterm"})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    got, end = b"", time.time() + 60
    try:
        while time.time() < end:
            if not select.select([fd], [], [], 0.2)[0]: continue
            got += os.read(fd, 65536)
            if send and until(got.decode(errors="replace")): os.kill(pid, send); send = None
    except OSError:
        pass
    os.close(fd)
    return got.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def live(folder):
    with watching.Run(folder, "--budget", "40MiB") as run:
        follow = subprocess.Popen([plim.PLIMSOLL, "watch", run.folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        text, code = screen(run.folder, lambda t: t.count(" live") >= 2, signal.SIGINT)
        ok(code == 0 and "\033[" in text and "tokens/s" in text and "budget" in text and "┃" in text, f"in a terminal a screen is drawn again; ctrl-C ends it ({code}) {text[-2000:] if 'budget' not in text else ''}")
        frames = re.findall(r"step (\d+) of 1000000", text)
        ok(len(frames) >= 2 and int(frames[-1]) > int(frames[0]), f"and it moves: {frames[:3]}")
        ok(run.ctl("budget", "30MiB").returncode == 0, "the line is moved")
        again = json.load(open(f"{run.folder}/plan.json"))
        ok(again["budget"] == 30 << 20 and again["total"] <= 30 << 20, "plan.json is the plan that holds after a re-plan")
        run.stop()
        out, err = follow.communicate(timeout=60)
        told = out.splitlines()
        ok(follow.returncode == 0 and told[-1].startswith("ended after step") and any("re-planned" in t and "of 30.0 MiB" in t for t in told) and not err, f"a run is followed to its end: {told[-1]}")
    shutil.rmtree(f"{folder}/run")


def killed(folder):
    with watching.Run(folder) as run:
        follow = subprocess.Popen([plim.PLIMSOLL, "watch", run.folder], stdout=subprocess.PIPE, text=True)
        run.ctl("checkpoint")
        run.process.kill()
        run.process.wait()
        out = follow.communicate(timeout=60)[0]
        ok(follow.returncode == 0 and "without a last line" in out.splitlines()[-1], f"a run that was killed: {out.splitlines()[-1]}")
        with open(run.log, "a") as f: f.write('{"event":"step","st')  # what a kill may leave
        before = run.steps()
        last = max(int(n.split("-")[1]) for n in os.listdir(run.folder) if n.startswith("checkpoint-"))
        ended = plim.run("train", f"{folder}/job.yaml", "--resume", "-q", "--steps", last + 2, "--change", "training.steps")
        events = run.events()
        ok(ended.returncode == 0 and events[-1]["event"] == "end" and sum(e["event"] == "plan" for e in events) == 2 and run.steps() == before + 2, f"--resume goes on in the log, after a line that was cut off {ended.stderr.strip()}")
    shutil.rmtree(f"{folder}/run")


def odd(folder):
    """What stands in the way of the log does not stand in the way of the run."""
    path = plim.job(folder, output__dir=f"{folder}/odd")
    os.makedirs(f"{folder}/odd/log.jsonl")
    ended = plim.run("train", path, "--json")
    ok(ended.returncode == 0 and ended.stderr.count("\n") == 1 and "continues without" in ended.stderr, f"no log can be written: {ended.stderr.strip()}")
    path = plim.job(folder, output__dir=f"{folder}/same")
    os.makedirs(f"{folder}/same")
    ended = plim.run("train", path, "-q", "--log", f"{folder}/same/log.jsonl")
    ok(ended.returncode == 0 and sum(e["event"] == "step" for e in plim.events(open(f"{folder}/same/log.jsonl").read())) == 4, "--log of the run's own log writes it once")
    ended = plim.run("train", path, "-q", "--no-checkpoint", "--set", f"output.dir={folder}/none")
    ok(ended.returncode == 0 and not os.path.exists(f"{folder}/none"), "a run that saves nothing leaves no folder")


def main():
    with tempfile.TemporaryDirectory() as folder:
        run = finished(folder)
        lines(folder, run)
        text, code = screen(run, lambda t: False)
        ok(code == 0 and "ended" in text and "step 4 of 4" in text, "a finished run is drawn once")
        bad(folder)
        odd(folder)
        live(folder)
        killed(folder)
    plim.done()


main()
