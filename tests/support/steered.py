"""A run that gives way and takes back: it is talked to, and what its log says of it is checked."""
import os
import subprocess
import time

import plim


class Run:
    """A training run that is talked to."""

    def __init__(self, folder, path, *args, env=None, before=None):
        self.log, self.folder = os.path.join(folder, "log.jsonl"), os.path.join(folder, "run")
        if os.path.exists(self.log): os.remove(self.log)
        self.process = subprocess.Popen([plim.PLIMSOLL, "train", path, "--log", self.log, "-q", "--overwrite", "--set", "monitoring.log_every=0", *map(str, args)],
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})}, preexec_fn=before)

    def events(self):
        return plim.events(open(self.log).read()) if os.path.exists(self.log) else []

    def wait(self, what, found):
        """Until found(events) is true; the events, or None when the run has ended without."""
        while True:
            ended = self.process.poll() is not None
            events = self.events()
            if found(events): return events
            if ended: return plim.ok(False, f"{what}: the run ended before: {self.process.stderr.read().strip()}") and None
            time.sleep(0.02)

    def steps(self, more):
        """Until so many more steps are done."""
        begin = len([e for e in self.events() if e["event"] == "step"])
        return self.wait(f"{more} steps", lambda es: len([e for e in es if e["event"] == "step"]) >= begin + more)

    def ctl(self, *args):
        return plim.run("ctl", self.folder, *args)

    def end(self):
        self.ctl("stop")
        self.process.wait()
        return self.events(), self.process.stderr.read()


def lines(events):
    return [e for e in events if e["event"] == "memory"]


def replans(events):
    return [e for e in events if e["event"] == "replan"]


def losses(events):
    return {e["step"]: e["loss"] for e in events if e["event"] == "step"}


def same_losses(calm, events, what, limit=1e-5):
    mine = losses(events)
    worst = max(abs(calm[s] - mine[s]) / abs(calm[s]) for s in mine if s in calm)
    missing = [s for s in range(1, max(mine) + 1) if s not in mine]
    plim.ok(worst <= limit and not missing, f"{what}: no step lost, losses agree within rounding (worst {worst:.1e} of {len(mine)})")


def effective(events):
    return {e["knobs"]["micro_batch"] * e["knobs"]["accumulation"] for e in events if e["event"] in ("plan", "replan")}


def one_way(events, what):
    """Micro-batches only shrink and then only grow, with at most two changes each; the effective batch stays."""
    micros = [e["knobs"]["micro_batch"] for e in events if e["event"] in ("plan", "replan")]
    low = micros.index(min(micros))
    plim.ok(micros[0] == micros[-1] and micros == sorted(micros[:low], reverse=True) + sorted(micros[low:]),
            f"{what}: one way down, one way up: micro-batches {micros}")
    plim.ok(len(effective(events)) == 1 and min(micros) < micros[0], f"{what}: the effective batch stays, the micro-batch does not")
    return low, len(micros) - 1 - low
