#!/usr/bin/env python3
# run-tests: not=asan, not=tsan, timeout=7200
"""Any number of ranks at any stage of ZeRO computes what one rank does, for every family of models: losses within 1e-6 in fp32, with
accumulation and clipping, and stages among themselves bit for bit. PLIMSOLL_LONG_TESTS=1: all of it, 20 steps; otherwise a sample.
"""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import encoder_jobs
import plim
import ranks

ranks.need_mpi()
STEPS = 20 if plim.LONG else 4
ROWS = 12  # of a step's half, for 1, 2, 3 and 4 ranks
TOLERANCE = 1e-6

# One step in two passes of every rank, with gradients clipped; a rate at which rounding does not grow.
BASE = dict(training__gradient_accumulation_steps=2, training__max_grad_norm=0.5, training__threads=1, training__learning_rate=2e-4,
            training__device="cpu", training__mixed_precision="fp32", model__num_layers=2)
EXPERTS = dict(model__num_experts=4, model__num_experts_per_tok=2, model__router_aux_loss_coef=0, model__intermediate_size=96)


def decoders():
    plain = dict(model__tie_word_embeddings="false")
    for arch in ("llama", "gpt2", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "smollm3"):
        heads = dict(model__num_key_value_heads=4) if arch == "gpt2" else {}
        yield arch, lambda folder, arch=arch, heads=heads: plim.job(folder, **BASE, **heads, model__architecture=arch)
    for arch in ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe"):
        yield arch, lambda folder, arch=arch: plim.job(folder, **BASE, **EXPERTS, **plain, model__architecture=arch)


def others():
    yield "t5", lambda folder: plim.job(folder, **{**BASE, **plim.T5}, data__train=f"[{plim.pairs(folder)}]")
    for arch in ("bert", "roberta", "distilbert"):
        for objective in ("masked_tokens", "token_labels"):
            yield f"{arch} {objective}", lambda folder, arch=arch, objective=objective: encoder_jobs.job(folder, objective, arch, **BASE)


def losses(result):
    return list(plim.losses(result.stdout or "").values())


def matrix(name, path, counts, stages, spread):
    base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", STEPS]
    batch = lambda n: ["--set", f"training.batch_size={ROWS // n}", "--set", f"training.micro_batch_size={ROWS // n}"]
    result = plim.run(*base, *batch(1))
    one = losses(result)
    if not plim.ok(len(one) == STEPS, f"{name}: one rank {result.stderr.strip()[:300]}"): return
    for count in counts:
        got = {}
        for stage in stages:
            result = ranks.run(count, *base, *batch(count), "--set", f"training.zero_stage={stage}")
            got[stage] = losses(result)
            far = max((abs(a - b) / abs(a) for a, b in zip(one, got[stage])), default=9)
            spread.append(far)
            plim.ok(len(got[stage]) == STEPS and far <= TOLERANCE, f"{name}: {count} ranks, stage {stage}: {far:.1e} of one rank's {result.stderr.strip()[:200]}")
        plim.ok(all(g == got[stages[0]] for g in got.values()), f"{name}: {count} ranks: stages {list(stages)} have the same bits")


def lengths(folder):
    """Rows of several lengths: ranks make equally many passes, whatever rows they have; dropout's bits are one rank's."""
    once, twice = dict(training__gradient_accumulation_steps=1), dict(training__gradient_accumulation_steps=2, training__micro_batch_size=2)
    cases = [("padding: longest", dict(data__padding="longest", **once)), ("dropout", dict(model__dropout=0.2, **once)), ("dropout in several passes", dict(model__dropout=0.2, **twice))]
    for name, changes in cases:
        path = encoder_jobs.job(folder, "masked_tokens", **{**BASE, **changes})
        base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", STEPS]
        one = losses(plim.run(*base, "--set", f"training.batch_size={ROWS}"))
        for count, stage in ((3, 3), (2, 0), (2, 2)) if plim.LONG else ((3, 3),):
            result = ranks.run(count, *base, "--set", f"training.batch_size={ROWS // count}", "--set", f"training.zero_stage={stage}")
            far = max((abs(a - b) / abs(a) for a, b in zip(one, losses(result))), default=9)
            plim.ok(len(losses(result)) == len(one) == STEPS and far <= TOLERANCE, f"{name}: {count} ranks, stage {stage}: {far:.1e} {result.stderr.strip()[:200]}")


def evals(text):
    return [{k: v for k, v in e.items() if k not in ("event",)} for e in plim.events(text or "") if e["event"] == "eval"]


def evaluation(folder):
    """Ranks share an evaluation's rows: as many tokens, the same loss and scores."""
    cases = [("loss", lambda f: plim.job(f, **BASE, data__validation=f"[{f}/corpus.txt]"), 7), ("entities", lambda f: encoder_jobs.job(f, "token_labels", **BASE), 17),
             ("hidden tokens, longest", lambda f: encoder_jobs.job(f, "masked_tokens", **{**BASE, "data__padding": "longest"}), 10)]
    if plim.LONG: cases.append(("pairs", lambda f: encoder_jobs.job(f, "sentence_pairs", **{**BASE, "training__gradient_accumulation_steps": 1}), 16))
    for name, make, rows in cases:
        path = make(folder)
        base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", 1, "--set", f"training.eval_rows={rows}", "--set", "training.learning_rate=0"]
        one = evals(plim.run(*base, "--set", f"training.batch_size={ROWS}").stdout)
        for count, stage in ((3, 3), (2, 0)):
            if name == "pairs": batch = ROWS  # what a pair is told from
            else: batch = ROWS // count
            result = ranks.run(count, *base, "--set", f"training.batch_size={batch}", "--set", f"training.zero_stage={stage}")
            many = evals(result.stdout)
            same = len(one) == len(many) == 1 and all(a == b or abs(a - b) <= 1e-6 * abs(a) for a, b in ((one[0][k], many[0].get(k, 9e9)) for k in one[0] if isinstance(one[0][k], (int, float))))
            plim.ok(same, f"evaluation of {rows} rows, {name}: {count} ranks at stage {stage} {json.dumps(one)[:150]} {json.dumps(many)[:150]} {result.stderr.strip()[:200]}")


spread = []
with tempfile.TemporaryDirectory() as folder:
    for name, make in [*decoders(), *others()]:
        sample = {"gpt2": ((3,), (0, 1, 2, 3)), "t5": ((2,), (1, 3)), "bert masked_tokens": ((2,), (2,)), "mixtral": ((2,), (3,))}
        counts, stages = ((2, 3, 4), (0, 1, 2, 3)) if plim.LONG else sample.get(name, ((), ()))
        if counts: matrix(name, make(folder), counts, stages, spread)
    lengths(folder)
    evaluation(folder)
plim.ok(spread and max(spread) <= TOLERANCE, f"largest difference {max(spread, default=9):.1e} over {len(spread)} runs")
plim.done()
