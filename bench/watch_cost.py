#!/usr/bin/env python3
"""What watching a run costs, against a step of the demo on the CPU.

    bench/watch_cost.py [--repeat 3] [--steps 20] [--build build/release]
    bench/watch_cost.py --clock JOB [--repeat 5] [--steps 100]    # by the clock: for a card, or a machine with nothing else to do

Runs demo/small.yaml by turns with everything off and with everything on: log.jsonl, the monitor, TensorBoard's files, and plimsoll watch --web
whose /metrics somebody reads every second. Medians of three numbers:

    threads    CPU time of the threads that watch (plim-monitor, plim-control) in a second, as the system counts it: they work by the clock
    trainer    CPU time that the training thread takes in a step to look, to obey and to tell (train --profile), as a share of the step's
               CPU time on each core, which is how long it takes on a quiet machine
    both runs  CPU time of all of the process for so many more steps, with and without

The first two are counted and mean about the same on a busy machine, where caches are cold more often; the third is a difference of two large numbers
and only shows that nothing was forgotten. The goal is 0.2 % of a step.

--clock compares the steps' own times instead: medians of each run, runs off and on by turns, and how much two runs of the same kind differ.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time
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
    """One run to its end; .wall and .cpu are its seconds, .threads those of its watchers, .trainer what its training thread took to watch."""

    def __init__(self, program, folder, steps, on):
        self.log = f"{folder}/run/log.jsonl"
        args = [program, "train", "demo/small.yaml", "-q", "--overwrite", "--profile", "--steps", str(steps), "--set", f"output.dir={folder}/run"]
        args += ["--set", "training.report_to=tensorboard"] if on else OFF
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
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
        after, self.wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if page:
            stop.set()
            reader.join()
            page.terminate()
            page.wait()
        told = self.process.stderr.read()
        if self.process.returncode: raise SystemExit(f"{' '.join(args)}: exit {self.process.returncode}\n{told}")
        self.trainer = float(next(line for line in told.splitlines() if line.startswith("watching")).split()[1])


def measure(program, steps):
    """(CPU seconds of the watching threads in a second, of the trainer in a step, of a step off and on), of one turn. What starting and ending
    take is taken off."""
    cpu = {}
    with tempfile.TemporaryDirectory() as folder:
        for on in (False, True):
            short, long = Run(program, folder, 2, on), Run(program, folder, 2 + steps, on)
            cpu[on] = (long.cpu - short.cpu) / steps
            threads = {name: (long.threads.get(name, 0) - short.threads.get(name, 0)) / (long.wall - short.wall) for name in WATCHERS}
        return threads, (long.trainer - short.trainer) / steps, cpu


def step_ms(program, job, steps, on):
    """The median step of one run."""
    with tempfile.TemporaryDirectory() as folder:
        args = [program, "train", job, "-q", "--no-checkpoint", "--steps", str(steps), "--set", f"output.dir={folder}/run"]
        args += ["--set", "training.report_to=tensorboard", "--log", f"{folder}/log.jsonl"] if on else [*OFF, "--json"]
        done = subprocess.run(args, capture_output=True, text=True)
        if done.returncode: raise SystemExit(f"{' '.join(args)}: exit {done.returncode}\n{done.stderr}")
        told = open(f"{folder}/log.jsonl").read() if on else done.stdout
        events = [json.loads(line) for line in told.splitlines()]
        return statistics.median(e["step_ms"] for e in events if e["event"] == "step" and e["step"] > 2)


def by_clock(program, job, steps, repeat):
    times = {False: [], True: []}
    for turn in range(repeat):
        for on in (False, True) if turn % 2 else (True, False): times[on].append(step_ms(program, job, steps, on))
    for on, name in ((False, "off"), (True, "on")):
        print(f"{name:4} {statistics.median(times[on]):.4f} ms a step; of runs: {', '.join(f'{t:.4f}' for t in times[on])}")
    off = statistics.median(times[False])
    print(f"on against off {100 * (statistics.median(times[True]) / off - 1):+.3f} %; runs without watching differ by {100 * (max(times[False]) - min(times[False])) / off:.3f} %")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--build", default="build/release")
    p.add_argument("--clock", metavar="JOB", help="compare step times of this job, watched and not")
    a = p.parse_args()
    if a.clock: return by_clock(os.path.join(a.build, "plimsoll"), a.clock, a.steps, a.repeat)
    turns = [measure(os.path.join(a.build, "plimsoll"), a.steps) for _ in range(a.repeat)]
    off, on = (statistics.median(t[2][k] for t in turns) for k in (False, True))
    step, share = off / os.cpu_count(), 0
    print(f"a step of the demo        {1e3 * off:10.1f} ms of CPU time, {1e3 * step:.1f} ms on each core")
    for name in WATCHERS:
        each = statistics.median(t[0][name] for t in turns)
        share += each
        print(f"{name:25} {1e6 * each:10.1f} us a second, {100 * each:.4f} %")
    trainer = statistics.median(t[1] for t in turns)
    share += trainer / step
    print(f"{'training thread':25} {1e6 * trainer:10.1f} us a step, {100 * trainer / step:.4f} %")
    print(f"{'watching in all':25} {100 * share:10.4f} % of a step")
    print(f"{'CPU time, on against off':25} {100 * (on / off - 1):+10.2f} %, medians of {a.repeat} turns; of turns: {', '.join(f'{100 * (t[2][True] / t[2][False] - 1):+.2f}' for t in turns)}")


main()
