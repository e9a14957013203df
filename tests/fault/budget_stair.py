#!/usr/bin/env python3
# run-tests: not=tsan
"""Budget stair: the same job with the budget raised step by step from nothing.

Every run either completes with the same losses (bit for bit where only recomputation, loss slices or placement
differ, within rounding where the micro-batch does) or says in one line why not, with exit code 2 or 3. Nothing
crashes, nothing is left behind. Then the same with the Nth allocation, reservation or write made to fail.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

STEPS, FAULTS = (9, 4) if plim.SANITIZED else (60, 20)
MIB = 1 << 20

with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=2)
    roomy, _ = plim.plan(path, "--budget", "4GiB")
    overhead, top = roomy["by_class"]["overhead"], roomy["naive_bytes"]
    reference = plim.losses(plim.run("train", path, "--budget", "4GiB", "--json", "--no-checkpoint", "-q").stdout)
    plim.ok(len(reference) == 2, "the job completes with plenty")

    fitted, refused, bad = [], 0, []
    low = max(overhead // 2, overhead - 2 * MIB)
    for i in range(STEPS):
        budget = low + (top - low) * i // (STEPS - 1)
        result = plim.run("train", path, "--budget", budget, "--json", "--no-checkpoint", "-q")
        if result.returncode == 0:
            got = plim.losses(result.stdout)
            same = len(got) == 2 and all(abs(got[s] - reference[s]) <= 2e-6 * abs(reference[s]) for s in reference)
            fitted.append(budget)
            if not same:
                bad.append((budget, got))
        elif result.returncode in (2, 3) and result.stderr.count("\n") == 1 and result.stderr.startswith("plimsoll: "):
            refused += 1
            if fitted and budget > fitted[0] + 2 * MIB:
                bad.append((budget, "refused above a budget that was enough: " + result.stderr))
        else:
            bad.append((budget, result.returncode, result.stderr))
    plim.ok(not bad, f"{STEPS} budgets from {low} to {top}: {len(fitted)} completed, {refused} refused {bad[:3]}")
    plim.ok(fitted and refused, "the stair has both refusals and completions")

    # Placement and recomputation change no bit, on a model whose parameters are moved in several slices; rows are short.
    wide = plim.job(folder, training__steps=2, data__max_length=16, model__hidden_size=256, model__intermediate_size=2816,
                    model__vocab_size=4096, training__mixed_precision="bf16", training__micro_batch_size=2)
    seen = {}
    for pins in ("state_tier=device grad_tier=device", "state_tier=disk grad_tier=device", "state_tier=disk grad_tier=disk",
                 "state_tier=device grad_tier=disk recompute=full", "state_tier=disk grad_tier=disk recompute=selective loss_chunks=2"):
        sets = [x for pin in pins.split() for x in ("--set", f"training.{pin}")]
        result = plim.run("train", wide, "--budget", "4GiB", "--json", "--no-checkpoint", "-q", *sets)
        seen[pins] = tuple(plim.losses(result.stdout).values()) or result.stderr
    plim.ok(len(set(seen.values())) == 1, f"bit-identical under {len(seen)} placements {set(seen.values())}")
    path = plim.job(folder, training__steps=2)

    bad, counts = [], {}
    for kind in ("alloc", "reserve", "write"):
        for n in range(1, FAULTS + 1):
            run_dir = os.path.join(folder, f"fault-{kind}-{n}")
            result = plim.run("train", path, "--budget", "4GiB", "--json", "-q", "--set", f"output.dir={run_dir}",
                              env={"PLIMSOLL_FAULT": f"{kind}:{n}"})
            counts[(kind, result.returncode)] = counts.get((kind, result.returncode), 0) + 1
            if result.returncode == 0:
                if plim.losses(result.stdout) != reference:
                    bad.append((kind, n, "other losses"))
            elif result.returncode not in (2, 3, 4) or result.stderr.count("\n") != 1:
                bad.append((kind, n, result.returncode, result.stderr[-300:]))
            if os.path.isdir(run_dir) and any(name.startswith(".") for name in os.listdir(run_dir)):
                bad.append((kind, n, "left behind", os.listdir(run_dir)))
    plim.ok(not bad, f"{3 * FAULTS} injected faults {counts} {bad[:3]}")
plim.done()
