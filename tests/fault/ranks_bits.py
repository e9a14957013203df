#!/usr/bin/env python3
# run-tests: not=asan, not=tsan, timeout=7200
"""At a given number of ranks every stage of ZeRO gives the same bits: losses and weights, with and without accumulation, with
clipping, summed in every micro-batch or once a step. PLIMSOLL_LONG_TESTS=1: all of it; otherwise a sample.
"""
import glob
import hashlib
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks

ranks.need_mpi()
STEPS = 3
STAGES = (0, 1, 2, 3)


def weights(folder):
    found = glob.glob(f"{folder}/checkpoint-*/model.safetensors")
    if len(found) != 1: return None
    with open(found[0], "rb") as f: return hashlib.sha256(f.read()).hexdigest()[:16]


def outcome(path, folder, count, *settings):
    """Losses, as they were written, and a hash of the weights."""
    out = f"{folder}/out"
    shutil.rmtree(out, ignore_errors=True)
    result = ranks.run(count, "train", path, "-q", "--json", "--steps", STEPS, *(x for s in (*settings, f"output.dir={out}") for x in ("--set", s)))
    told = tuple(plim.losses(result.stdout or "").values())
    return (told, weights(out)) if len(told) == STEPS and result.returncode == 0 else (result.stderr.strip()[:200], None)


def same(name, path, folder, count, stages, *settings):
    got = {z: outcome(path, folder, count, f"training.zero_stage={z}", *settings) for z in stages}
    first = got[stages[0]]
    apart = [z for z in stages if got[z] != first]
    plim.ok(first[1] and not apart, f"{name}: {count} ranks, stages {list(stages)}: the same losses and weights {[got[z] for z in apart][:1] or first[0][-1:]}")
    return first


with tempfile.TemporaryDirectory() as folder:
    base = dict(training__threads=1, training__max_grad_norm=0.5, training__batch_size=1, training__micro_batch_size=1, model__num_layers=2)
    path = plim.job(folder, **base)
    passes = lambda n: f"training.gradient_accumulation_steps={n}"
    for count in (2, 3, 4):
        each = same("4 passes a step", path, folder, count, STAGES, passes(4))
        if count == 3 or plim.LONG:
            once = same("4 passes, summed once a step", path, folder, count, (0, 1, 2, 3) if plim.LONG else (0, 1, 3), passes(4), "training.zero.sum_gradients=step")
            plim.ok(once[1] != each[1] and len(once[0]) == STEPS and all(abs(a - b) <= 1e-6 * a for a, b in zip(once[0], each[0])), "the two orders differ in the last digits and no more")
            same("1 pass a step", path, folder, count, STAGES, passes(1))
    if plim.LONG:
        same("bf16, 8-bit state", path, folder, 3, STAGES, passes(4), "training.mixed_precision=bf16", "training.optimizer=adamw8bit")
        same("no clipping", path, folder, 3, STAGES, passes(4), "training.max_grad_norm=0")
plim.done()
