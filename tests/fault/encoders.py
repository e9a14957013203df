#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Truth, budget stair and kill test for jobs of encoders: labels of words and pairs of sentences, both with an evaluation."""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import encoder_jobs
import plim

MIB = 1 << 20
WIDE = dict(model__hidden_size=256, model__intermediate_size=1024, model__num_layers=4, model__num_attention_heads=8)
STEPS, KILLS, STAIR = 6, 6, 14
rng = random.Random(4)


def truth(folder, objective, **changes):
    """The plan's bytes, the ledger's and the system's are the same."""
    path = encoder_jobs.job(folder, objective, training__steps=2, **{**WIDE, **changes})
    name = f"{objective} {changes}"
    planned, result = plim.plan(path, "--budget", "160MiB")
    if not plim.ok(planned and planned["fits"], f"{name}: planned {result.stderr.strip()}"): return
    total = planned["peak_bytes"]["total"]
    events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", "160MiB", "--no-checkpoint")
    end = events[-1] if events else {}
    if not plim.ok(code == 0 and end.get("event") == "end", f"{name}: trained {stderr.strip()}"): return
    plim.ok(end["ledger_peak"] == end["planned_peak"], f"{name}: ledger {end['ledger_peak']} = planned {end['planned_peak']}")
    spare = planned["by_class"]["io"]  # the loader has memory for longer lines than these
    plim.ok(total - max(0.01 * total, 6 * MIB) - spare <= peak <= total + max(0.01 * total, 6 * MIB),
            f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB")
    plim.ok([e["event"] for e in events].count("eval") == 1, f"{name}: evaluated")


def stair(folder, objective):
    path = encoder_jobs.job(folder, objective, training__steps=2, **WIDE)
    roomy, _ = plim.plan(path, "--budget", "4GiB")
    train = lambda budget: plim.run("train", path, "--budget", budget, "--json", "--no-checkpoint", "-q")
    reference = plim.losses(train("4GiB").stdout)
    low, top, fitted, refused, bad = roomy["by_class"]["overhead"], roomy["naive_bytes"], 0, 0, []
    for i in range(STAIR):
        budget = low + (top - low) * i // (STAIR - 1)
        result = train(budget)
        got = plim.losses(result.stdout)
        if result.returncode == 0:
            fitted += 1
            if len(got) != 2 or any(abs(got[s] - reference[s]) > 2e-6 * abs(reference[s]) for s in reference): bad.append((budget, got))
        elif result.returncode in (2, 3) and result.stderr.count("\n") == 1: refused += 1
        else: bad.append((budget, result.returncode, result.stderr))
    plim.ok(not bad and fitted and refused, f"{objective}: {STAIR} budgets from {low} to {top}: {fitted} completed, {refused} refused {bad[:2]}")


def kills(folder, objective):
    """kill -9 at random moments; what is resumed has the bits of a run that was left alone."""
    path = encoder_jobs.job(folder, objective, training__steps=STEPS, training__save_every=1, training__eval_every=2)
    started = time.monotonic()
    reference = plim.losses(plim.run("train", path, "-q", "--set", f"output.dir={folder}/whole").stdout)
    length, wrong, killed, log = time.monotonic() - started, [], 0, f"{folder}/killed.jsonl"
    while killed < KILLS and not wrong:
        shutil.rmtree(f"{folder}/killed", ignore_errors=True)
        done = False
        while not done and not wrong:
            args = [plim.PLIMSOLL, "train", path, "-q", "--resume", "--log", log, "--set", f"output.dir={folder}/killed"]
            process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                process.wait(timeout=rng.uniform(0.02, max(0.1, length)) if killed < KILLS else None)
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
            error = process.communicate()[1]
            with open(log) as f: got = plim.losses(f.read())
            wrong += [(s, loss, reference[s]) for s, loss in got.items() if loss != reference[s]]
            if process.returncode not in (0, -9): wrong.append((process.returncode, error))
            done = process.returncode == 0
    plim.ok(len(reference) == STEPS and not wrong, f"{objective}: {killed} kills, every loss is that of the run left alone {wrong[:2]}")


with tempfile.TemporaryDirectory() as root_:
    truth(f"{root_}/a", "token_labels")
    truth(f"{root_}/b", "sentence_pairs", data__padding="longest")
    truth(f"{root_}/c", "masked_tokens", training__mixed_precision="bf16")
    stair(f"{root_}/d", "token_labels")
    stair(f"{root_}/e", "sentence_pairs")
    kills(f"{root_}/f", "sentence_pairs")
plim.done()
