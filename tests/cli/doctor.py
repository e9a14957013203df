#!/usr/bin/env python3
"""plimsoll doctor: jobs with a planted mistake, each named; a healthy job, run and machine without a word about problems."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

HEALTHY = dict(data__max_length=64, training__steps=20, training__warmup_steps=2, training__save_every=10, training__log_every=5)


def doctor(*args, env=None):
    result = plim.run("doctor", "--json", *args, env=env)
    return json.loads(result.stdout), result


def planted(folder):
    """(name, what is changed, words of the one problem)"""
    lines = f"{folder}/rows.jsonl"
    with open(lines, "w") as f:
        for i in range(200): f.write(json.dumps({"text": "ab" if i % 20 else plim.CORPUS[:200]}) + "\n")
    return [
        ("a key nobody knows", dict(training__batch_sise=4), ["training.batch_sise", "training.batch_size"]),
        ("evaluation without data", dict(training__eval_steps=5), ["training.eval_steps", "data.validation"]),
        ("evaluated on what is trained on", dict(data__validation=f"[{folder}/corpus.txt]"), ["data.validation", "corpus.txt"]),
        ("warm-up longer than the run", dict(training__warmup_steps=50), ["training.warmup_steps", "20 steps"]),
        ("a rate that destroys", dict(training__learning_rate=0.5), ["training.learning_rate", "0.5"]),
        ("a floor above the rate", dict(training__lr_scheduler="cosine", training__min_lr=0.01), ["training.min_lr", "0.01"]),
        ("saved later than it ends", dict(training__save_every=500), ["training.save_every", "20 steps"]),
        ("a budget that nothing fits", dict(budget="6MiB"), ["budget", "does not fit", "6.00 MiB"]),
        ("debugging left on", dict(training__debug="underflow_overflow"), ["training.debug", "slower"]),
        ("attention for debugging", dict(model__use_flash_attention="false"), ["model.use_flash_attention", "debugging"]),
        ("always above the warning", dict(training__memory="{target_utilization: 0.96}"), ["training.memory.target_utilization", "warning"]),
        ("mostly padding", dict(data__train=f"[{lines}]", data__rows="samples", data__max_length=192), ["data.padding", "longest"]),
        ("the same few rows again and again", dict(training__steps=100000, training__save_every=1000), ["training.steps", "times"]),
        ("more threads than CPUs", dict(data__workers=200), ["data.workers", "200"]),
        ("recomputation that nothing asks for", dict(training__recompute="full"), ["training.recompute", "not needed"]),
        ("a rate that never moves", dict(training__lr_scheduler="greedy", training__greedy="{on: eval}"), ["training.greedy.on", "never moves"]),
    ]


def write(folder, changes):
    budget = changes.pop("budget", None)
    path = plim.job(folder, **{**HEALTHY, **changes})
    if budget:
        with open(path, "a") as f: f.write(f"budget: {budget}\n")
    return path


with tempfile.TemporaryDirectory() as folder:
    path = write(folder, {})
    found, result = doctor(path)
    plim.ok(result.returncode == 0 and found["problems"] == [] and not result.stderr, f"a healthy job: {found['problems']}")
    text = plim.run("doctor", path)
    plim.ok(text.returncode == 0 and text.stdout.startswith(f"{path}: no problems\n") and "problems:" not in text.stdout and "on, saves" in text.stdout and
            "off, would save" in text.stdout, "it says what is on, and what each thing saves or would")
    cases = planted(folder)
    plim.ok(len(cases) >= 10, f"{len(cases)} planted mistakes")
    for name, changes, words in cases:
        found, result = doctor(write(folder, dict(changes)))
        named = [p for p in found["problems"] if all(w in p for w in words)]
        plim.ok(result.returncode == 1 and len(named) == 1 and len(found["problems"]) == 1, f"{name}: {found['problems']}")
    text = plim.run("doctor", write(folder, dict(training__eval_steps=5))).stdout
    plim.ok(text.splitlines()[0].endswith(": 1 problem") and text.splitlines()[2] == "problems:", "problems come first")

    # What is ignored, and why.
    path = write(folder, dict(training__max_micro_batch_size=2, performance__torch_compile="true"))
    env = {"MAX_BATCH_SIZE": "8", "CUDA_MEMORY_FRACTION": "0.5", "WANDB_API_KEY": "x", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "RANK": "0", "WORLD_SIZE": "1"}
    found, result = doctor(path, env=env)
    for words in (("MAX_BATCH_SIZE", "job.yaml:"), ("cuda_memory_fraction", "CPU"), ("WANDB_API_KEY", "nothing is sent"), ("PYTORCH_CUDA_ALLOC_CONF", "planned"), ("RANK", "mpirun"),
                  ("performance.torch_compile", "needless")):
        plim.ok(any(all(w in line for w in words) for line in found["ignored"]), f"ignored: {words}")
    plim.ok(result.returncode == 0 and not result.stderr and not found["problems"], f"which is no problem: {found['problems']}")
    found, result = doctor(path, env={"WORLD_SIZE": "4"})
    plim.ok(result.returncode == 1 and "WORLD_SIZE" in found["problems"][0], "ranks that train would refuse")
    found, result = doctor(path, env={"MAX_BATCH_SIZE": "x"})
    plim.ok(result.returncode == 1 and "MAX_BATCH_SIZE" in found["problems"][0], "a variable that cannot be read")

    # A run, and a machine.
    path = write(folder, {})
    plim.run("train", path, "-q", "--steps", 2)
    found, result = doctor(path)
    plim.ok(len(found["problems"]) == 1 and "--resume" in found["problems"][0], f"a used folder: {found['problems']}")
    found, result = doctor(f"{folder}/run")
    plim.ok(result.returncode == 0 and not found["problems"] and any("step 2" in line for line in found["about"]), f"a run that is whole: {found['problems']}")
    weights = f"{folder}/run/checkpoint-00000002/model.safetensors"
    data = bytearray(open(weights, "rb").read())
    data[-1] ^= 1
    with open(weights, "wb") as f: f.write(data)
    found, result = doctor(f"{folder}/run")
    plim.ok(result.returncode == 1 and "model.safetensors" in found["problems"][0], f"one that is damaged: {found['problems']}")
    os.mkdir(f"{folder}/empty")
    plim.ok(doctor(f"{folder}/empty")[1].returncode == 1, "a folder without a run")
    found, result = doctor()
    plim.ok(result.returncode == 0 and not found["problems"] and any("device" in line for line in found["about"]), f"this machine {found['problems']}")
plim.done()
