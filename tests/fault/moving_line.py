#!/usr/bin/env python3
# run-tests: not=tsan
"""Moving line: the budget goes 100 -> 50 -> 30 -> 100 % during a run.

The losses are the undisturbed run's within rounding, resident memory read from outside falls and rises with the
line.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20

# The line moves before these steps, and so many steps are made: each level lasts long enough to be seen from outside on a busy machine.
MOVES, STEPS = ((4, 7, 10), 12) if plim.SANITIZED else ((4, 8, 14), 19)

with tempfile.TemporaryDirectory() as folder:
    # The orders alone move the line here: what else fills the machine (test_adapt) does not.
    path = plim.job(folder, training__dynamic_batching={"enabled": False}, training__steps=STEPS, training__batch_size=16, training__gradient_accumulation_steps=1,
                    data__max_length=48 if plim.SANITIZED else 128, model__hidden_size=128,
                    model__intermediate_size=384, model__num_layers=4)
    roomy, _ = plim.plan(path, "--budget", "8GiB")
    full = roomy["naive_bytes"] + 2 * MIB
    # A sanitizer's own memory is part of every plan, and most of this one's.
    base = roomy["by_class"]["overhead"] if plim.SANITIZED else 0
    lines = list(zip(MOVES, (base + (full - base) // 2, base + (full - base) * (4 if base else 3) // 10, full)))
    changes = [x for step, bytes_ in lines for x in ("--budget-at", f"{step}={bytes_}")]
    calm, _, _, code, stderr = plim.run_watched("train", path, "--budget", full, "--no-checkpoint")
    plim.ok(code == 0, f"the undisturbed run completes {stderr.strip()}")
    moved, _, samples, code, stderr = plim.run_watched("train", path, "--budget", full, "--no-checkpoint", *changes, every=0.002)
    if plim.ok(code == 0, f"100 -> 50 -> 30 -> 100 % of {full / MIB:.0f} MiB completes {stderr.strip()}"):
        a = {e["step"]: e["loss"] for e in calm if e["event"] == "step"}
        b = {e["step"]: e["loss"] for e in moved if e["event"] == "step"}
        worst = max(abs(a[s] - b[s]) / abs(a[s]) for s in a) if a.keys() == b.keys() else 1
        plim.ok(worst <= 1e-5, f"losses agree within rounding (worst {worst:.1e})")
        replans = [e for e in moved if e["event"] == "replan"]
        plim.ok([e["step"] + 1 for e in replans] == [step for step, _ in lines],
                f"a re-plan before each of these steps alone: {[e['step'] + 1 for e in replans]}")
        if not plim.SANITIZED:
            print(f"# re-plans take {[round(e['plan_ms'], 1) for e in replans]} ms, moves {[round(e['move_ms'], 1) for e in replans]} ms")
            used = {e["step"]: e["memory"]["used"] for e in moved if e["event"] == "step"}
            levels = [max(used[s] for s in range(lo, hi)) for lo, hi in zip((1, *MOVES), (*MOVES, STEPS + 1))]
            budgets = [full, full // 2, full * 3 // 10, full]
            plim.ok(levels[1] < levels[0] and levels[2] < levels[1] and levels[3] > levels[2],
                    f"resident {[round(x / MIB) for x in levels]} MiB under lines of {[round(x / MIB) for x in budgets]} MiB")
            # From outside: between the first and the last time near the top, memory really went below the low line.
            rss = [r for _, r in samples]
            high = [i for i, r in enumerate(rss) if r > 0.9 * max(rss)]
            low = min(rss[high[0]:high[-1]])
            plim.ok(low <= budgets[2] + 6 * MIB and low > budgets[2] // 2,
                    f"from outside, RSS goes {max(rss) / MIB:.0f} -> {low / MIB:.0f} -> {rss[high[-1]] / MIB:.0f} MiB")
plim.done()
