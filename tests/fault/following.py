#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""budget: auto, end to end. A neighbour takes memory until less than monitoring.reserve is free: the run's line is lowered, so
that the reserve is free again, and it stays free; when the neighbour leaves, the line is back where it was. Losses are the
undisturbed run's, and each cause changes the plan at most twice.
"""
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import machine
import plim

MIB = 1 << 20
INTERVAL = 0.2  # s between two samples: the machine's numbers are as late as a busy host makes their writer


class Run:
    """A run on a machine whose size and neighbours are the test's."""

    def __init__(self, folder, path, box, *args):
        self.log = os.path.join(folder, "log.jsonl")
        self.process = subprocess.Popen([plim.PLIMSOLL, "train", path, "--log", self.log, "-q", "--overwrite", *map(str, args)], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, "PLIMSOLL_MACHINE": box.root})
        box.follow(self.process.pid)

    def events(self, *kinds):
        found = plim.events(open(self.log).read()) if os.path.exists(self.log) else []
        return [e for e in found if not kinds or e["event"] in kinds]

    def wait(self, what, found):
        while True:
            ended = self.process.poll() is not None
            if found(): return True
            if ended: return plim.ok(False, f"{what}: the run ended before: {self.process.stderr.read().strip()}")
            time.sleep(0.02)

    def steps(self, more, samples=0):
        """So many steps more, and time for so many samples."""
        begin, clock = len(self.events("step")), time.monotonic()
        return self.wait(f"{more} steps", lambda: len(self.events("step")) >= begin + more and time.monotonic() - clock >= samples * INTERVAL)

    def end(self, folder):
        plim.run("ctl", f"{folder}/run", "stop")
        self.process.wait()


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=3000, training__batch_size=16, training__gradient_accumulation_steps=1, model__num_layers=3)
    roomy, _ = plim.plan(path, "--budget", "8GiB")
    full = roomy["naive_bytes"]
    calm = plim.losses(plim.run("train", path, "--budget", "8GiB", "--no-checkpoint", "-q", "--steps", 100).stdout)
    box = machine.Machine(4 * full, others=full)
    reserve = box.total // 6
    run = Run(folder, path, box, "--set", "budget=auto", "--set", f"monitoring.reserve={reserve}", "--set", f"monitoring.interval={INTERVAL}")
    if run.steps(3, samples=3):
        plan = run.events("plan")[0]
        plim.ok(not run.events("replan"), f"alone it keeps its plan of {plan['planned_total'] / MIB:.1f} MiB")
        # The neighbour leaves half of the reserve free: nothing is critical, but it is too near.
        box.others = box.total - box.ours() - reserve // 2
        run.wait("a lower line", lambda: run.events("replan"))
        run.steps(6, samples=6)
        free = box.total - box.others - box.ours()
        lowered = run.events("replan")
        plim.ok(lowered[-1]["planned_total"] < plan["planned_total"] and len(lowered) <= 2, f"a neighbour comes: {len(lowered)} changes, now {lowered[-1]['planned_total'] / MIB:.1f} MiB")
        plim.ok(free >= reserve - box.total // 64, f"and {free / MIB:.1f} MiB are free, of a reserve of {reserve / MIB:.0f} MiB")
        plim.ok(all(e["memory"]["status"] in ("normal", "warning") for e in run.events("memory")), "before anything was critical")
        box.others = full
        run.wait("the line back", lambda: run.events("replan")[-1]["planned_total"] == plan["planned_total"])
        run.steps(4, samples=6)
        raised = run.events("replan")[len(lowered):]
        plim.ok(len(raised) <= 3 and run.events("replan")[-1]["knobs"] == plan["knobs"], f"it leaves: {len(raised)} changes, and the first plan is back")
    run.end(folder)
    box.close()
    mine = {e["step"]: e["loss"] for e in run.events("step")}
    worst = max(abs(calm[s] - mine[s]) / abs(calm[s]) for s in mine if s in calm)
    plim.ok(worst <= 1e-5 and sorted(mine) == list(range(1, len(mine) + 1)), f"no step is lost, losses agree within rounding ({worst:.1e} of {len(mine)})")
    plim.ok({e["knobs"]["micro_batch"] * e["knobs"]["accumulation"] for e in run.events("plan", "replan")} == {16}, "the effective batch stays")
    for e in run.events("memory"): print("#", e["text"])
plim.done()
