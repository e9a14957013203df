#!/usr/bin/env python3
# run-tests: serial, not=asan, not=tsan
"""Moving line on the GPU: the budget falls during a run and rises again.

A neighbour has filled the rest of the card. The moment the re-plan is told, the run is held, the neighbour takes the
bytes that were given back, and lets go of them; then the run goes on. The losses are the undisturbed run's: to the bit
where micro-batch and loss slices are pinned, within 1e-3 where the planner may choose everything.
"""
import os
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim

MIB = gpu.MIB
DOWN, UP, STEPS = 5, 45, 55
SLACK = 32 * MIB  # recordings and libraries settle in
ALONE = ["--set", "training.dynamic_batching.enabled=false"]  # the card is full on purpose: giving way to that is tests/gpu/giving_way.py


class Borrower:
    """Takes what the first re-plan gives back."""

    def __init__(self, neighbour):
        self.neighbour, self.taken, self.error, self.seconds = neighbour, 0, "no re-plan was told", 0.0

    def __call__(self, run, event):
        if event["event"] != "replan" or self.taken: return
        start = time.monotonic()
        run.process.send_signal(signal.SIGSTOP)
        try:
            self.taken = run.of("plan")[0]["arena_bytes"] - event["arena_bytes"]
            self.error = self.neighbour.take(self.taken - SLACK).get("error")
            self.seconds = time.monotonic() - start
            self.neighbour.drop()
        finally:
            run.process.send_signal(signal.SIGCONT)


def check(path, name, limit):
    roomy, result = plim.plan(path)
    least = gpu.smallest(path)
    if not plim.ok(roomy and least, f"{name}: plans {result.stderr.strip()}"): return
    full = roomy["peak_bytes"]["total"] + 64 * MIB
    low = int(least + max(0.25 * (full - least), 64 * MIB))
    calm = gpu.train(path, "--budget", full, *ALONE)
    with gpu.Neighbour() as neighbour:
        if not plim.ok("free" in neighbour.ready, f"{name}: the neighbour is on the card {neighbour.ready}"): return
        neighbour.leave(full + 64 * MIB)
        borrower = Borrower(neighbour)
        moved = gpu.train(path, *ALONE, "--budget", full, "--budget-at", f"{DOWN}={low}", "--budget-at", f"{UP}={full}", on_event=borrower)
    replans = moved.of("replan")
    if not plim.ok(len(replans) == 2, f"{name}: {full / MIB:.0f} -> {low / MIB:.0f} -> {full / MIB:.0f} MiB in two re-plans"): return
    for e in replans:
        print(f"# {name}: {' '.join(f'{k}={v}' for k, v in e['knobs'].items())}, planned in {e['plan_ms']:.0f} ms, "
              f"{e['moved_bytes'] / MIB:.0f} MiB moved in {e['move_ms']:.0f} ms")
    plim.ok(borrower.taken > SLACK and not borrower.error,
            f"{name}: {borrower.taken / MIB:.0f} MiB came back, the neighbour had them after {borrower.seconds:.2f} s {borrower.error or ''}")
    used = {e["step"]: e["memory"]["used"] for e in moved.of("step")}
    levels = [max(used[s] for s in span if s in used) for span in (range(1, DOWN), range(DOWN, UP), range(UP, STEPS + 1))]
    plim.ok(levels[1] <= low + MIB and levels[1] < levels[0] and levels[2] > levels[1],
            f"{name}: the process takes {' -> '.join(f'{x / MIB:.0f}' for x in levels)} MiB")
    gpu.same(calm.losses(), moved.losses(), name, limit)


plim.need_gpu()
with tempfile.TemporaryDirectory() as folder:
    job = {**gpu.MIDDLE, "training__steps": STEPS, "training__deterministic": "true"}
    check(plim.job(folder, **{**job, **gpu.PINNED}), "pinned", 0.0)
    check(plim.job(folder, **job), "open", 1e-3)
plim.done()
