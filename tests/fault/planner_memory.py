#!/usr/bin/env python3
# run-tests: long, not=asan, not=tsan
"""the planner's own memory is inside the line, read from outside.

Models of 200 and 600 layers at the smallest budget that `plimsoll plan` names, where the tapes of the search are most of
what the process has, and at one above it; a line that moves under a full arena, where a search runs beside what is kept;
and budgets that are refused, which are not exceeded while that is found out. PLIMSOLL_LONG_TESTS=1: three times as many budgets.
"""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20
NARROW = dict(model__hidden_size=16, model__intermediate_size=32, model__num_attention_heads=2, data__max_length=16,
              training__batch_size=1, training__gradient_accumulation_steps=1, training__steps=1)


VARIES = MIB // 2  # by which the size of the process differs from start to start
READING = 5 * MIB // 2  # resident before anything is planned, besides the program: stacks, the team, what reads the job


def program_bytes():
    """As a refusal states them; they differ by machine and kernel."""
    with tempfile.TemporaryDirectory() as folder:
        _, refused = plim.plan(plim.job(folder), "--budget", "1MiB")
        return float(re.search(r"the program itself takes ([\d.]+) MiB", refused.stderr).group(1)) * MIB


PROGRAM = program_bytes()


def train(path, budget, name, *args, refused=False):
    """`refused`: None where the size of the process decides, which differs from start to start."""
    events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", budget, "--no-checkpoint", *args,
                                                    every=0.002 if refused is False else 0.0002)
    plim.ok(code in {False: (0,), True: (3,), None: (0, 3)}[refused] and peak <= max(budget, PROGRAM + READING if code == 3 else 0),
            f"{name}: RSS {peak / MIB:.2f} MiB under a line of {budget / MIB:.2f} MiB {stderr.strip()}")
    return events


for layers in (200, 600):
    with tempfile.TemporaryDirectory() as folder:
        path = plim.job(folder, model__num_layers=layers, **NARROW)
        smallest, _ = plim.plan(path, "--budget", "8MiB")
        if not plim.ok(smallest and not smallest["fits"], f"{layers} layers do not fit 8 MiB"):
            continue
        least = smallest["peak_bytes"]["total"] + VARIES
        train(path, least, f"{layers} layers, the smallest budget")
        for line in range(least * 3 // 4, least, least // (16 if plim.LONG else 6)):
            fits = {plim.plan(path, "--budget", near)[0]["fits"] for near in (line - VARIES, line + VARIES)}
            word = {(True,): "grants", (False,): "refuses"}.get(tuple(fits), "may grant")
            train(path, line, f"{layers} layers, {line / MIB:.1f} MiB, which plan {word}",
                  refused=None if len(fits) == 2 else False in fits)
        train(path, least * 5 // 4, f"{layers} layers, a quarter more")
        train(path, least * 5 // 4, f"{layers} layers, a line that moves", "--steps", 4, "--budget-at", f"2={least}",
              "--budget-at", f"3={least * 5 // 4}", "--budget-at", f"4={least}")

with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, model__num_layers=48, training__batch_size=4, training__gradient_accumulation_steps=1,
                    training__steps=8)
    full, low = 31 * MIB, 24 * MIB
    moves = [x for step, line in ((2, low), (4, full), (6, low), (8, full)) for x in ("--budget-at", f"{step}={line}")]
    events = train(path, full, "48 layers, a line that moves", *moves)
    used = {e["step"]: e["memory"]["used"] for e in events if e["event"] == "step"}
    above = {s: u for s, u in used.items() if u > (low if s in (2, 3, 6, 7) else full)}
    plim.ok(len(used) == 8 and not above, f"after each move it is below its line: {[round(u / MIB, 1) for u in used.values()]} MiB")

for architecture, layers, lines in (("llama", 200, (2, 8, 10, 11)), ("llama", 600, (2, 8, 12, 16, 20, 24, 26, 27, 28)),
                                    ("gpt2", 600, (22, 26, 28))):
    with tempfile.TemporaryDirectory() as folder:
        path = plim.job(folder, **dict(NARROW, model__architecture=architecture, model__num_layers=layers,
                                       model__num_key_value_heads=2))
        for line in lines if plim.LONG else lines[::3]:
            train(path, line * MIB, f"{architecture} of {layers} layers, {line} MiB are refused", refused=True)
plim.done()
