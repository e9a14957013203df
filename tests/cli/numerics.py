#!/usr/bin/env python3
"""--check-numerics names the first tensor that overflows, and changes no loss. A step whose loss or gradient is not finite is not
taken: that is told at once, ends a run after training.max_skipped_steps in a row, and never spoils a checkpoint."""
import json
import os
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

GPT2 = dict(model__architecture="gpt2", model__num_key_value_heads=4, model__hidden_size=32, model__intermediate_size=64, model__num_layers=2)


def of(result, kind):
    return [e for e in plim.events(result.stdout) if e["event"] == kind]


def weights(folder, step):
    with open(f"{folder}/run/checkpoint-{step:08d}/model.safetensors", "rb") as f: return f.read()


def saved(folder):
    return [name for name in plim.left(f"{folder}/run") if name.startswith("checkpoint")] if os.path.isdir(f"{folder}/run") else []


def diverges(folder):
    """A rate that no model stands: weights stay those of the last step that was taken, wherever the optimizer runs."""
    cases = [("in backward", dict(training__gradient_accumulation_steps=1, training__optimizer_in_backward="true")), ("after it", {}),
             ("in bf16", dict(training__mixed_precision="bf16"))]
    for name, more in cases:
        path = plim.job(folder, **{**GPT2, "training__optimizer": "sgd", "training__steps": 30, "training__learning_rate": 1000, **more})
        result = plim.run("train", path, "-q", "--json", "--set", "training.max_skipped_steps=3", "--overwrite")
        steps = of(result, "step")
        first = next((e["step"] for e in steps if e.get("skipped")), 0)
        notes = [e["text"] for e in of(result, "note") if e["text"].startswith("step ")]
        plim.ok(len(notes) == 1 and f"step {first} is skipped" in notes[0] and "not finite" in notes[0], f"{name}: told at once: {notes}")
        plim.ok(result.returncode == 2 and len(steps) == first + 2 and result.stderr.count("\n") == 1 and "learning_rate" in result.stderr, f"{name}: stopped after three: {result.stderr.strip()}")
        kept = weights(folder, first + 2) if first > 1 else b""
        plim.run("train", path, "-q", "--steps", first - 1, "--overwrite")
        plim.ok(first > 1 and kept == weights(folder, first - 1), f"{name}: what is kept are the weights of step {first - 1}")
        often = plim.run("train", path, "-q", "--json", "--set", "training.max_skipped_steps=3", "--set", "training.save_every=1", "--set", "output.keep_checkpoints=1", "--overwrite")
        plim.ok(often.returncode == 2 and saved(folder) == [f"checkpoint-{first - 1:08d}"], f"{name}: a checkpoint that is there is not replaced: {saved(folder)}")


def bad_row(folder):
    """One row that no model stands is passed over, and the run goes on."""
    path = plim.job(folder, **GPT2, model__tie_word_embeddings="false", training__steps=1, training__learning_rate=0)
    plim.run("train", path, "-q", "--overwrite")
    model = f"{folder}/model"
    os.mkdir(model)
    for name in ("config.json", "model.safetensors"): shutil.copy(f"{folder}/run/checkpoint-00000001/{name}", model)
    with open(f"{model}/model.safetensors", "r+b") as f:  # the letter ~ has an embedding that overflows
        size = struct.unpack("<Q", f.read(8))[0]
        table = next(v for k, v in json.loads(f.read(size)).items() if k.endswith("wte.weight"))
        f.seek(8 + size + table["data_offsets"][0] + 4 * 32 * ord("~"))
        f.write(struct.pack("<f", 3e38) * 32)
    with open(f"{folder}/rows.jsonl", "w") as f:
        for i in range(12): f.write(json.dumps({"text": ("a ~ in it" if i == 5 else plim.CORPUS[9 * i:9 * i + 30])}) + "\n")
    for name, more in (("in backward", {}), ("after it", dict(training__optimizer_in_backward="false"))):
        path = plim.job(folder, model__=f"{{path: {model}}}", data__train=f"[{folder}/rows.jsonl]", training__batch_size=2, training__gradient_accumulation_steps=1,
                        training__steps=-1, training__epochs=1, **more)
        result = plim.run("train", path, "-q", "--json", "--overwrite")
        skipped = [e["step"] for e in of(result, "step") if e.get("skipped")]
        plim.ok(result.returncode == 0 and len(skipped) == 1 and of(result, "end")[0]["skipped_steps"] == 1, f"{name}: one step of six is skipped: {skipped} {result.stderr.strip()}")
        plim.ok(saved(folder) == ["checkpoint-00000006"], f"{name}: and what follows is saved")


def scales(folder):
    """fp16 that overflows in every step ends, with the advice that fits."""
    fp16 = dict(training__mixed_precision="fp16", training__loss_scale=1e9, training__steps=12)
    cases = [("a fixed scale", dict(training__loss_scale_window=0), ["fixed", "training.loss_scale"]),
             ("a least scale", dict(training__min_loss_scale=1e9), ["training.min_loss_scale"]),
             ("a fixed scale and few steps", dict(training__loss_scale_window=0, training__steps=4), ["none of the 4 steps", "training.loss_scale"])]
    for name, more, words in cases:
        shutil.rmtree(f"{folder}/run", ignore_errors=True)
        result = plim.run("train", plim.job(folder, **{**fp16, **more}), "-q", "--json")
        plim.ok(result.returncode == 2 and all(w in result.stderr for w in words) and result.stderr.count("\n") == 1, f"{name}: {result.stderr.strip()}")
        plim.ok(any("step 1 is skipped" in e["text"] for e in of(result, "note")), f"{name}: told in the first step")
        plim.ok(len(of(result, "step")) == more.get("training__steps", 10) and not saved(folder), f"{name}: stopped in time, nothing saved: {saved(folder)}")


def not_counted(folder):
    """Steps that are skipped move neither the optimizer's bias corrections nor the rate, as with PyTorch's GradScaler: on data of one
    row the steps behind them are, bit for bit, those of a run that began with the scale they ended with."""
    with open(f"{folder}/one.jsonl", "w") as f: f.write(json.dumps({"text": plim.CORPUS[:60]}) + "\n")
    one = dict(data__train=f"[{folder}/one.jsonl]", training__batch_size=1, training__gradient_accumulation_steps=1, training__mixed_precision="fp16", training__steps=24)
    greedy = dict(training__lr_scheduler="greedy", training__greedy__patience=1, training__greedy__factor=0.5, training__greedy__max_lr=0.01, training__greedy__smooth="true")
    for name, more in (("constant", {}), ("warm-up and cosine", dict(training__lr_scheduler="cosine", training__warmup_steps=8)), ("greedy", greedy)):
        more = {k.replace("greedy__", "greedy."): v for k, v in more.items()}
        late = of(plim.run("train", plim.job(folder, **one, training__loss_scale=1e9, **more), "-q", "--json", "--no-checkpoint"), "step")
        skipped = sum(bool(e.get("skipped")) for e in late)
        taken = [(e["loss"], e["lr"]) for e in late if not e.get("skipped")]
        scale = next((e["loss_scale"] for e in late if not e.get("skipped")), 1)
        plain = of(plim.run("train", plim.job(folder, **one, training__loss_scale=scale, **more), "-q", "--json", "--no-checkpoint"), "step")
        plim.ok(skipped >= 3 and len(taken) >= 6 and all(e.get("skipped") for e in late[:skipped]), f"{name}: {skipped} steps are skipped at first")
        plim.ok(taken == [(e["loss"], e["lr"]) for e in plain[:len(taken)]], f"{name}: {len(taken)} steps behind them are as if there had been none")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=2)
    plain = plim.run("train", path, "--json", "-q", "--no-checkpoint")
    looked = plim.run("train", path, "--json", "-q", "--no-checkpoint", "--check-numerics")
    plim.ok(plim.losses(plain.stdout) == plim.losses(looked.stdout) and plim.losses(plain.stdout), "losses are the same")
    plim.ok("numerics:" not in looked.stdout, "a healthy fp32 run has nothing to tell")

    path = plim.job(folder, training__steps=2, training__mixed_precision="fp16", training__loss_scale=1e9)
    result = plim.run("train", path, "--json", "-q", "--no-checkpoint", "--check-numerics")
    notes = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note"]
    steps = [e for e in plim.events(result.stdout) if e["event"] == "step"]
    plim.ok(any("not finite" in n and "op " in n and "step 1" in n for n in notes), f"fp16 with a huge scale: {notes}")
    plim.ok(steps and steps[0].get("skipped") and steps[1]["loss_scale"] == 5e8, "the step is skipped and the scale halved")

    path = plim.job(folder, training__steps=1, training__mixed_precision="fp16", training__loss_scale=1)
    result = plim.run("train", path, "--json", "-q", "--no-checkpoint", "--check-numerics")
    notes = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note"]
    plim.ok(any("zero or subnormal" in n for n in notes), f"fp16 without scaling underflows: {notes}")
for test in (diverges, bad_row, scales, not_counted):
    with tempfile.TemporaryDirectory() as folder:
        test(folder)
plim.done()
