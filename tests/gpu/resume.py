#!/usr/bin/env python3
# run-tests: serial, not=asan, not=tsan
"""Stopping and going on, on the GPU and from one device to the other.

On the GPU six steps, a checkpoint and six more give the losses of twelve in one go, to the bit. A checkpoint made on one
device goes on on the other within 1e-3 (fp32: 1e-4; without masters: 2e-3).
"""
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim

HALF, ALL = 6, 12
KINDS = {  # keys, and how near one device's losses are to the other's
    "fp32": ("mixed_precision=fp32", 1e-4),
    "bf16": ("mixed_precision=bf16", 1e-3),
    "bf16, 8-bit moments": ("mixed_precision=bf16 optimizer=adamw_8bit", 1e-3),
    "bf16, no master": ("mixed_precision=bf16 master_weights=none state_dtype=bf16 grad_dtype=bf16", 2e-3),
}


def run(path, folder, name, device, steps, words, *more):
    result = plim.run("train", path, "--json", "-q", "--steps", steps, "--set", f"output.dir={folder}/{name}",
                      *gpu.sets(f"device={device} {words}"), *more)
    if result.returncode: plim.ok(False, f"{name}: {result.stderr.strip()}")
    return plim.losses(result.stdout)


def later(losses):
    return {s: l for s, l in losses.items() if s > HALF}


plim.need_gpu()
with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_, model__hidden_size=256, model__intermediate_size=768, data__max_length=128,
                     training__batch_size=8, training__micro_batch_size=8, training__deterministic="true")
    for number, (kind, (words_, close)) in enumerate(KINDS.items()):
        whole = run(path_, folder_, f"whole{number}", "cuda", ALL, words_)
        plim.ok(len(whole) == ALL and whole[ALL] < whole[1], f"{kind}: {ALL} steps on the GPU, loss {whole.get(1, 0):.4f} -> {whole.get(ALL, 0):.4f}")
        run(path_, folder_, f"gpu{number}", "cuda", HALF, words_)
        for target, limit in (("cpu", close), ("cuda", 0.0)):
            shutil.rmtree(f"{folder_}/copy", ignore_errors=True)
            shutil.copytree(f"{folder_}/gpu{number}", f"{folder_}/copy")
            after = run(path_, folder_, "copy", target, ALL, words_, "--resume", "--change", "training.device")
            gpu.same(later(whole), after, f"{kind}: from the GPU to {target}", limit)
        run(path_, folder_, f"cpu{number}", "cpu", HALF, words_)
        straight = run(path_, folder_, f"straight{number}", "cpu", ALL, words_)
        after = run(path_, folder_, f"cpu{number}", "cuda", ALL, words_, "--resume", "--change", "training.device")
        gpu.same(later(straight), after, f"{kind}: from the CPU to the GPU", close)
plim.done()
