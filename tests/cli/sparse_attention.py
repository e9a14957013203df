#!/usr/bin/env python3
"""Attention over blocks from a job: with blocks for everything it is dense attention, the checkpoint keeps it, budgets and passes change nothing, and
what cannot be done with it is one line."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

SPARSE = dict(model__attention_type="sparse", model__sparse_block_size=16, model__num_local_blocks=2, model__num_global_blocks=1)


def train(path, *more):
    told = plim.run("train", path, "-q", *[str(x) for x in more])
    return list(plim.losses(told.stdout).values()), told.stderr.strip()


def near(a, b): return len(a) == len(b) > 0 and all(abs(x - y) < 2e-6 * x for x, y in zip(a, b))


def sets(*keys): return [x for key in keys for x in ("--set", key)]


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, **SPARSE)
    own, why = train(path)
    plim.ok(len(own) == 4, f"trains {why}")
    dense, _ = train(path, "--no-checkpoint", *sets("model.attention_type=flash", f"output.dir={folder}/dense"))
    whole, _ = train(path, "--no-checkpoint", *sets("model.num_local_blocks=4", f"output.dir={folder}/whole"))
    plim.ok(near(dense, whole) and not near(dense, own), f"with blocks for everything it is dense attention: {dense[-1:]} {whole[-1:]} {own[-1:]}")
    for pins in ("model.use_flash_attention=false", "training.recompute=full", "training.micro_batch_size=1"):
        other, why = train(path, "--no-checkpoint", *sets(pins, f"output.dir={folder}/pins"))
        plim.ok(near(own, other), f"{pins}: the same losses {why}")

    saved = f"{folder}/run/checkpoint-00000004"
    with open(f"{saved}/config.json") as f: config = json.load(f)
    plim.ok([config.get(k) for k in ("attention_type", "sparse_block_size", "num_local_blocks", "num_global_blocks")] == ["sparse", 16, 2, 1], "config.json has it")
    train(path, "--overwrite", "--steps", 2)
    rest, why = train(path, "--resume", "--change", "training.steps")
    plim.ok(rest == own[2:], f"goes on {rest} {why}")
    told = plim.run("train", path, "-q", "--resume", *sets("model.num_local_blocks=1", "training.steps=5"))
    plim.ok(told.returncode == 2 and "num_local_blocks" in told.stderr and told.stderr.count("\n") == 1, f"with other blocks it does not: {told.stderr.strip()}")
    plain = plim.job(folder, output__dir=f"{folder}/plain")
    made = plim.run("generate", saved, "-p", "The ", "-n", 4, "-q", "--device", "cpu")
    plim.ok(made.returncode and made.stderr.count("\n") == 1 and "sparse" in made.stderr, f"text: {made.stderr.strip()}")
    out = plim.run("export", saved, "-o", f"{folder}/hf")
    plim.ok(out.returncode == 0 and "transformers" in out.stderr, f"export tells who does not read it: {out.stderr.strip()[-160:]}")
    shutil.copytree(f"{folder}/hf", f"{folder}/dense-hf")
    with open(f"{folder}/dense-hf/config.json", "w") as f: json.dump({k: v for k, v in config.items() if k != "attention_type"}, f)
    loss = lambda model: json.loads(plim.run("eval", plain, "--json", "-q", "--rows", 4, "--model", f"{folder}/{model}").stdout)["loss"]
    plim.ok(loss("hf") != loss("dense-hf"), "eval has it of config.json")
    told = plim.run("plan", plain, *sets("model.architecture=", f"model.path={folder}/hf", "model.attention_type=flash"))
    plim.ok(told.returncode == 2 and "sparse" in told.stderr, f"a folder's own blocks stay: {told.stderr.strip()}")
plim.done()
