"""A run that goes on until it is stopped, and plimsoll watch --web beside it."""
import os
import subprocess
import time

import plim
import server


class Run:
    """with Run(folder) as r: a training run with its folder in r.folder; r.events() are those of its log."""

    def __init__(self, folder, *args, **changes):
        self.folder, self.log = os.path.join(folder, "run"), os.path.join(folder, "run", "log.jsonl")
        path = plim.job(folder, **{"training__steps": 1000000, **changes})
        self.process = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", *map(str, args)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        ready = wait_for(lambda: self.steps() >= 2 or self.process.poll() is not None)
        if not ready or self.process.poll() is not None: raise RuntimeError(f"the run does not begin: {self.process.stderr.read() if ready else ''}")
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()

    def events(self):
        return plim.events(open(self.log).read()) if os.path.exists(self.log) else []

    def steps(self):
        return sum(e["event"] == "step" for e in self.events())

    def ctl(self, *args):
        return plim.run("ctl", self.folder, *args)

    def stop(self):
        self.ctl("stop")
        return self.process.wait(60)


class Page(server.Server):
    """with Page(run) as p: p.get("/metrics"); as server.Server, of plimsoll watch --web."""

    def __init__(self, run, *flags):
        self.process = subprocess.Popen([plim.PLIMSOLL, "watch", run, "--web", *map(str, flags)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url.startswith("http://127.0.0.1:") else 0

    def __enter__(self):
        return self

    def log(self):
        return self.process.stderr.read() if self.process.poll() is not None and not self.process.stderr.closed else ""


def wait_for(condition, seconds=60):
    until = time.time() + seconds
    while time.time() < until:
        if condition(): return True
        time.sleep(0.02)
    return False
