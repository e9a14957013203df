#!/usr/bin/env python3
# run-tests: not=tsan
"""Truth, stated minimum, budget stair and kill test for one model of each family beside the decoder: encoders (labels of words, pairs of
sentences, both with an evaluation), an encoder-decoder, and experts. Sanitizers, whose resident memory means nothing, see the stair alone."""
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
STEPS, KILLS, STAIR = 6, 6, 4 if plim.SANITIZED else 12
rng = random.Random(4)


def encoder(objective):
    return lambda folder, **changes: encoder_jobs.job(folder, objective, **changes)


def seq2seq(folder, **changes):
    os.makedirs(folder, exist_ok=True)
    return plim.job(folder, **{**plim.T5, "data__train": f"[{plim.pairs(folder)}]", **changes})


def experts(folder, **changes):
    """The micro-batch is pinned: the balance of a load is a micro-batch's own, so that another one has other losses."""
    os.makedirs(folder, exist_ok=True)
    return plim.job(folder, **{**plim.EXPERTS, "training__micro_batch_size": 2, **changes})


WIDE_ENCODER = dict(model__hidden_size=256, model__intermediate_size=1024, model__num_layers=4, model__num_attention_heads=8)
# A job of each family, its changes for a stair, and those that make a plan of which 1 % is more than what processes differ by.
FAMILIES = {
    "labels": (encoder("token_labels"), WIDE_ENCODER,
               dict(model__hidden_size=768, model__intermediate_size=3072, model__num_layers=10, model__num_attention_heads=12, data__max_line_bytes="4KiB", data__shuffle_bytes="64KiB", data__workers=0)),
    "pairs": (encoder("sentence_pairs"), WIDE_ENCODER, None),
    "masked": (encoder("masked_tokens"), WIDE_ENCODER, None),
    "t5": (seq2seq, {}, dict(model__vocab_size=65536, model__hidden_size=320, training__batch_size=2)),
    "experts": (experts, {}, dict(model__hidden_size=256, model__intermediate_size=512, model__num_experts=32)),
}


def truth(root, name, budget, changes):
    """The plan's bytes, the ledger's and the system's are the same."""
    path = FAMILIES[name][0](f"{root}/truth", **{"training__steps": 1, **changes})
    planned, result = plim.plan(path, "--budget", budget)
    if not plim.ok(planned and planned["fits"], f"{name}: planned {result.stderr.strip()}"): return
    total = planned["peak_bytes"]["total"]
    events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", budget, "--no-checkpoint")
    end = events[-1] if events else {}
    if not plim.ok(code == 0 and end.get("event") == "end", f"{name}: trained {stderr.strip()}"): return
    plim.ok(end["ledger_peak"] == end["planned_peak"], f"{name}: ledger {end['ledger_peak']} = planned {end['planned_peak']}")
    near = max(0.01 * total, 6 * MIB)
    spare = planned["by_class"]["io"] if total < 600 * MIB else 0  # the loader has memory for longer lines than these
    plim.ok(total - near - spare <= peak <= total + near,
            f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB ({100 * (peak / total - 1):+.2f} %), {spare / MIB:.2f} MiB of them may be for longer lines")
    evaluates = FAMILIES[name][0] not in (seq2seq, experts)
    plim.ok([e["event"] for e in events].count("eval") == evaluates, f"{name}: evaluated {evaluates}")


def minimum(root, name):
    """A stated minimum is enough, and the plan it is of is tight."""
    path = FAMILIES[name][0](f"{root}/minimum", training__steps=1)
    plan, result = plim.plan(path, "--budget", "1MiB")
    if not plim.ok(plan and result.returncode == 3, f"{name}: the minimum is stated {result.stderr.strip()}"): return
    least, bound = plan["peak_bytes"]["total"], plan["lower_bound_bytes"]
    plim.ok(bound <= plan["arena_bytes"] <= 1.02 * bound, f"{name}: arena {plan['arena_bytes']}, lower bound {bound}")
    refused = []
    for more in (0, 0, 4096, 61 * 4096):
        done = plim.run("train", path, "--budget", least + more, "--no-checkpoint", "-q")
        if done.returncode: refused.append((more, done.stderr.strip()))
    plim.ok(not refused, f"{name}: {least} bytes are enough, and so is more {refused[:2]}")


def stair(root, name):
    """From too little to plenty: the same losses, or one line."""
    make, wide, _ = FAMILIES[name]
    path = make(f"{root}/stair", training__steps=2, **wide)
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
    plim.ok(not bad and fitted and refused, f"{name}: {STAIR} budgets from {low} to {top}: {fitted} completed, {refused} refused {bad[:2]}")


def kills(root, name):
    """kill -9 at random moments; what is resumed has the bits of a run that was left alone."""
    folder, make = f"{root}/kills", FAMILIES[name][0]
    evaluates = {} if make in (seq2seq, experts) else dict(training__eval_every=2)
    path = make(folder, training__steps=STEPS, training__save_every=1, **evaluates)
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
            got = plim.losses(open(log).read() if os.path.exists(log) else "")  # none where it was killed before the first line
            wrong += [(s, loss, reference[s]) for s, loss in got.items() if loss != reference[s]]
            if process.returncode not in (0, -9): wrong.append((process.returncode, error))
            done = process.returncode == 0
    plim.ok(len(reference) == STEPS and not wrong, f"{name}: {killed} kills, every loss is that of the run left alone {wrong[:2]}")


with tempfile.TemporaryDirectory() as root_:
    for name_, (_, wide_, huge) in FAMILIES.items():
        at, more = f"{root_}/{name_}", dict(pairs=dict(data__padding="longest"), masked=dict(training__mixed_precision="bf16")).get(name_, {})
        if name_ != "masked": stair(at, name_)
        if plim.SANITIZED: continue
        truth(at, name_, "160MiB", dict(wide_, training__steps=2, **more))
        if huge: truth(at, name_, "4GiB", huge)
        if huge: minimum(at, name_)
        if name_ not in ("masked", "labels"): kills(at, name_)
plim.done()
