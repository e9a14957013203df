#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Several ranks are one run: losses of one rank within rounding, stages of ZeRO among themselves bit for bit, memory as planned,
checkpoints for every number of ranks, and an end for all when one of them has one.
"""
import json
import os
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import encoder_jobs
import plim
import ranks

ranks.need_mpi()
STEPS = 5
ROWS = 12  # of a step, for 1, 2, 3 and 4 ranks


def losses(result):
    return list(plim.losses(result.stdout or "").values())


def near(a, b, least=1e-6):
    return len(a) == len(b) > 0 and all(abs(x - y) <= least * abs(x) for x, y in zip(a, b))


def family(name, path, stages=(0, 1, 2, 3), counts=(2,), least=1e-6, rows=ROWS, args=()):
    """One rank against several, at every stage."""
    base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", STEPS, *args]
    whole = plim.run(*base, "--set", f"training.batch_size={rows}")
    one = losses(whole)
    if not plim.ok(len(one) == STEPS, f"{name}: one rank {whole.stderr.strip()}"): return
    for count in counts:
        runs = [ranks.run(count, *base, "--set", f"training.batch_size={rows // count}", "--set", f"training.zero_stage={z}") for z in stages]
        many = [losses(r) for r in runs]
        far = [z for z, m in zip(stages, many) if not near(one, m, least)]
        plim.ok(not far, f"{name}: {count} ranks have one's losses; not at stages {far} {runs[-1].stderr.strip()[:200]}")
        if len(stages) > 1: plim.ok(all(m == many[0] for m in many), f"{name}: {count} ranks have the same bits at stages {list(stages)}")


def preferences(folder, **keys):
    """dpo: one's losses; the reference that ranks compute together is the one that a rank computes alone."""
    pairs = os.path.join(folder, "preferences.jsonl")
    with open(pairs, "w") as f:
        for i in range(60): f.write(json.dumps({"prompt": f"q{i} ", "chosen": "yes" * (1 + i % 5), "rejected": "no" * (1 + i % 7)}) + "\n")
    path = plim.job(folder, **keys, data__train=f"[{pairs}]", training__objective="dpo")
    family("dpo", path, stages=(0, 3), least=1e-5)
    base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", STEPS, "--set", f"training.batch_size={ROWS // 3}"]
    before = losses(ranks.run(3, *base))
    with open(f"{folder}/run/reference.logps", "rb") as f: alone = sorted(f.read()[48:48 + 60 * 24][i:i + 24] for i in range(0, 60 * 24, 24))
    os.remove(f"{folder}/run/reference.logps")
    after = ranks.run(3, *base)
    with open(f"{folder}/run/reference.logps", "rb") as f: shared = sorted(f.read()[48:48 + 60 * 24][i:i + 24] for i in range(0, 60 * 24, 24))
    plim.ok(losses(after) == before and alone == shared, f"dpo: three ranks compute the reference of one {after.stderr.strip()[:200]}")


def families(folder):
    one_pass = dict(training__gradient_accumulation_steps=1, training__max_grad_norm=1.0, training__threads=1)
    family("llama, tied", plim.job(folder, **one_pass), counts=(2, 3, 4))
    family("llama, bf16 and 8-bit state", plim.job(folder, **{**one_pass, "training__mixed_precision": "bf16", "training__optimizer": "adamw8bit"}), counts=(3,), least=2e-3)
    family("adafactor", plim.job(folder, **one_pass, training__optimizer="adafactor"), stages=(0,))
    several = dict(one_pass, training__gradient_accumulation_steps=2, training__micro_batch_size=2)
    family("accumulation", plim.job(folder, **several))
    experts = dict(model__architecture="mixtral", model__num_experts=4, model__num_experts_per_tok=2, model__router_aux_loss_coef=0)
    family("experts", plim.job(folder, **one_pass, **experts), stages=(0, 3), least=1e-5)
    preferences(folder, **one_pass)
    t5 = plim.job(folder, **one_pass, **plim.T5, data__train=f"[{plim.pairs(folder)}]")
    family("t5", t5, stages=(0, 3))
    with tempfile.TemporaryDirectory() as other:
        family("bert, labels", encoder_jobs.job(other, "token_labels", **{**one_pass, "training__device": "cpu"}), stages=(0, 3))


def beside(folder):
    """The bits do not know whether exchanges run beside computing, nor how early; nodes of two have the whole model each."""
    path = plim.job(folder, training__gradient_accumulation_steps=2, training__micro_batch_size=2, training__max_grad_norm=1.0, training__threads=1)
    base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", STEPS, "--set"]
    for stage in (1, 3):
        lanes = [losses(ranks.run(3, *base, f"training.zero_stage={stage}", env={"PLIMSOLL_LANE": lane})) for lane in "10"]
        plim.ok(len(lanes[0]) == STEPS and lanes[0] == lanes[1], f"stage {stage}: the same bits beside computing and one after the other {lanes}")
    nodes = {"PLIMSOLL_RANKS_PER_NODE": "2"}
    runs = [ranks.run(4, *base, f"training.zero_stage={stage}", "--set", "training.batch_size=2", env=nodes) for stage in (3, 4, 4)]
    all_, node, again = map(losses, runs)
    plim.ok(near(all_, node, 1e-6) and node == again, f"two nodes of two: losses of four in pieces, and they repeat {runs[1].stderr.strip()[:200]}")
    one = ranks.run(2, *base, "training.zero_stage=4")
    plim.ok(one.returncode == 2 and "training.zero_stage" in one.stderr, f"one node has no nodes to sum: {one.stderr.strip()[:200]}")


def memory(folder):
    """State shrinks with the number of ranks; what one rank cannot hold, four can."""
    path = plim.job(folder, model__hidden_size=512, model__intermediate_size=1408, model__num_layers=4, training__gradient_accumulation_steps=1, training__threads=1)
    kept = {}
    for count in (1, 2, 4):
        base = ["--set", f"training.batch_size={4 // count}", *(["--set", "training.zero_stage=3"] if count > 1 else [])]
        planned, _ = plim.plan(path, "--no-checkpoint", "--ranks", count, *base)
        kept[count] = planned and planned["by_class"]
    if not plim.ok(all(kept.values()), "plans of 1, 2 and 4 ranks are told"): return
    for count in (2, 4):
        for cls in ("param", "state"):
            share = kept[count][cls] / kept[1][cls] * count
            plim.ok(0.98 < share < 1.02, f"{cls} of {count} ranks: {share:.3f} of its share")


def resume(folder):
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1, training__mixed_precision="bf16", training__optimizer="adamw8bit")
    whole = plim.run("train", path, "-q", "--json", "--steps", 9, "--set", "training.batch_size=12", "--set", f"output.dir={folder}/whole")
    got = []
    for count, stage, until in ((4, 3, 3), (2, 2, 5), (3, 1, 7), (1, 0, 9)):
        result = ranks.run(count, "train", path, "-q", "--json", "--resume", "--steps", until, "--set", f"training.batch_size={12 // count}",
                           "--set", f"training.zero_stage={stage}")
        plim.ok(result.returncode == 0, f"{count} ranks go on to step {until} {result.stderr.strip()[:200]}")
        got += losses(result)
    plim.ok(near(losses(whole), got, 2e-3), f"4, 2, 3 and 1 ranks have one run's losses: {got} {losses(whole)}")


def kill(folder):
    """A rank that dies ends all; the checkpoint before is whole."""
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1, training__save_every=1)
    base = ["train", path, "-q", "--json", "--resume", "--steps", 6, "--set", "training.batch_size=4", "--set", "training.zero_stage=3"]
    reference = losses(ranks.run(3, *base, "--set", f"output.dir={folder}/whole"))
    rng, seen, wrong = random.Random(3), {}, []
    for attempt in range(12):
        process = ranks.start(3, *base, stdout=-1, stderr=-1)
        if attempt < 6:
            time.sleep(rng.uniform(0.3, 1.5))
            try:
                victims = ranks.children(process.pid)
                if victims: os.kill(rng.choice(victims), signal.SIGKILL)
            except OSError:
                pass
        text, _ = process.communicate(timeout=120)
        for step, loss in plim.losses(text).items():
            if loss != reference[step - 1]: wrong.append((step, loss))
            seen[step] = loss
        if process.returncode == 0: break
    plim.ok(len(reference) == 6 and not wrong and process.returncode == 0, f"killed and gone on, {attempt + 1} attempts: losses of the undisturbed run {wrong}")


def hang(folder):
    """A rank that stops answering ends all within the time that was stated."""
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1, training__steps=100000)
    process = ranks.start(2, "train", path, "-q", "--json", "--no-checkpoint", "--set", "training.batch_size=4", env={"PLIMSOLL_PATIENCE": "6"}, stdout=-1, stderr=-1)
    process.stdout.readline(), process.stdout.readline()
    victim = ranks.children(process.pid)[-1]
    os.kill(victim, signal.SIGSTOP)
    started = time.monotonic()
    try:
        _, text = process.communicate(timeout=60)
    finally:
        try: os.kill(victim, signal.SIGKILL)
        except OSError: pass
    plim.ok("did not answer within 6 s" in text and process.returncode not in (0, None),
            f"a rank that hangs: {time.monotonic() - started:.1f} s, exit {process.returncode}: {text.strip().splitlines()[:1]}")


def refusals(folder):
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1)
    bad = ranks.run(2, "train", path, "-q", "--set", "training.zero_stage=5")
    plim.ok(bad.returncode == 2 and bad.stderr.count("training.zero_stage") == 1, f"a stage that is none, told once: {bad.stderr.strip()[:200]}")
    small = ranks.run(2, "train", path, "-q", "--budget", "1MiB", "--no-checkpoint")
    plim.ok(small.returncode == 3 and small.stderr.count("plimsoll:") == 1, f"a budget too small, told once: {small.stderr.strip()[:200]}")
    other = plim.job(folder + "/other", training__gradient_accumulation_steps=1, training__threads=1, model__num_layers=2)
    result = ranks.ended(ranks.apart([(1, {}, ["train", job, "-q", "--no-checkpoint"], None) for job in (path, other)]))
    plim.ok(result.returncode not in (0, None) and "is not that of rank 0" in result.stderr, f"ranks of two jobs: {result.stderr.strip()[:200]}")


for part in (families, beside, memory, resume, kill, hang, refusals):
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/other")
        part(folder)
plim.done()
