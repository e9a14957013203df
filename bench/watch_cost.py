#!/usr/bin/env python3
"""What watching a run costs, against a step of the demo on the CPU.

    bench/watch_cost.py [--repeat 3] [--steps 20] [--build build/release]

Runs demo/small.yaml by turns with everything off and with everything on: log.jsonl, the monitor, TensorBoard's files, and plimsoll watch --web
whose /metrics somebody reads every second. Three numbers of each kind of run, medians of all:

    threads    CPU time of the threads that watch (plim-monitor, plim-control), as the system counts it
    trainer    CPU time that the training thread takes to look, to obey and to tell (train --profile)
    both runs  CPU time of all of the process for so many more steps, with and without

The first two are counted and mean the same on a busy machine; the third is a difference of two large numbers and only shows that nothing
was forgotten. The goal is 0.2 % of a step.
"""
import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time
import json
import urllib.request

OFF = ["--no-checkpoint", "--set", "monitoring.enabled=false"]
WATCHERS = ("plim-monitor", "plim-control")


def thread_times(pid):
    """CPU seconds of each thread that watches, by name."""
    out = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/comm") as f: name = f.read().strip()
            if name not in WATCHERS: continue
            with open(f"/proc/{pid}/task/{tid}/schedstat") as f: out[name] = int(f.read().split()[0]) * 1e-9
        except OSError: pass
    return out


def read_metrics(page, stop):
    """Asks for /metrics every second, as Prometheus would at its fastest."""
    url = page.stdout.readline().strip()
    while not stop.wait(1):
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as r: r.read()


class Run:
    """One run to its end; .cpu are its seconds, .threads those of its watchers, .events its log."""

    def __init__(self, program, folder, steps, on):
        self.log = f"{folder}/run/log.jsonl"
        args = [program, "train", "demo/small.yaml", "-q", "--overwrite", "--profile", "--steps", str(steps), "--set", f"output.dir={folder}/run"]
        args += ["--set", "training.report_to=tensorboard"] if on else OFF
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.threads = {}
        page, stop = None, threading.Event()
        while self.process.poll() is None:
            try: self.threads = thread_times(self.process.pid) or self.threads
            except OSError: break
            if on and not page and os.path.exists(self.log):
                page = subprocess.Popen([program, "watch", f"{folder}/run", "--web"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
                reader = threading.Thread(target=read_metrics, args=(page, stop))
                reader.start()
            time.sleep(0.05)
        self.process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if page:
            stop.set()
            reader.join()
            page.terminate()
            page.wait()
        told = self.process.stderr.read()
        if self.process.returncode: raise SystemExit(f"{' '.join(args)}: exit {self.process.returncode}\n{told}")
        self.trainer = float(next(line for line in told.splitlines() if line.startswith("watching")).split()[1])
        self.events = [json.loads(line) for line in open(self.log)] if on else []

    def step_seconds(self):
        return statistics.median(e["step_ms"] for e in self.events if e["event"] == "step") / 1e3


def measure(program, steps):
    """(seconds of a step, of it threads, trainer; CPU seconds of a step off, on), of one turn. What starting and ending take is taken off."""
    cpu = {}
    with tempfile.TemporaryDirectory() as folder:
        for on in (False, True):
            short, long = Run(program, folder, 2, on), Run(program, folder, 2 + steps, on)
            cpu[on] = (long.cpu - short.cpu) / steps
            threads = {name: (long.threads.get(name, 0) - short.threads.get(name, 0)) / steps for name in WATCHERS}
            trainer = (long.trainer - short.trainer) / steps
        return long.step_seconds(), threads, trainer, cpu


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--build", default="build/release")
    a = p.parse_args()
    turns = [measure(os.path.join(a.build, "plimsoll"), a.steps) for _ in range(a.repeat)]
    step = statistics.median(t[0] for t in turns)
    parts = {name: statistics.median(t[1][name] for t in turns) for name in WATCHERS}
    parts["trainer"] = statistics.median(t[2] for t in turns)
    off, on = (statistics.median(t[3][k] for t in turns) for k in (False, True))
    print(f"a step of the demo        {1e3 * step:10.1f} ms, {1e3 * off:.1f} ms of CPU time")
    for name, seconds in parts.items(): print(f"{name:25} {1e6 * seconds:10.1f} us a step, {100 * seconds / step:.4f} %")
    total = sum(parts.values())
    print(f"{'watching in all':25} {1e6 * total:10.1f} us a step, {100 * total / step:.4f} % of its time, {100 * total / off:.4f} % of its CPU time")
    print(f"{'CPU time, on against off':25} {100 * (on / off - 1):+10.2f} %, medians of {a.repeat} turns; of turns: {', '.join(f'{100 * (t[3][True] / t[3][False] - 1):+.2f}' for t in turns)}")


main()
