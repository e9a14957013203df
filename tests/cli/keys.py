#!/usr/bin/env python3
"""Keys people already have: two names for one wish may agree, a wish that cannot be granted is an error that says what to
write instead, and what only another framework needs is accepted with a note. Dropout is trained, and ranks are refused by name."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def job(folder, text):
    """The small job with a piece of YAML merged into its sections."""
    path = plim.job(folder)
    lines = open(path).read()
    for section, keys in text.items():
        body = "".join(f"  {line}\n" for line in keys.splitlines())
        lines = lines.replace(f"{section}:\n", f"{section}:\n{body}", 1) if f"{section}:\n" in lines else lines + f"{section}:\n{body}"
    with open(path, "w") as f: f.write(lines)
    return path


def refused(name, args, words, env=None):
    result = plim.run(*args, env=env)
    missing = [w for w in words if w not in result.stderr]
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and not missing and not result.stdout,
            f"{name}: {result.stderr.strip()} LACKS {missing}" if missing else f"{name}: {result.returncode} {result.stderr.strip()}")


def planned(name, path, *args, check=lambda plan: True):
    plan, result = plim.plan(path, "--budget", "64MiB", *args)
    plim.ok(result.returncode == 0 and plan and check(plan), f"{name} {result.stderr.strip()}")


def two_names(folder):
    def is_type(kind): return lambda plan: plan["knobs"]["precision"] == kind
    def recomputes(kind): return lambda plan: plan["knobs"]["recompute"] == kind
    same = [
        ("bf16 twice", {"training": "bf16: true"}, ["training.mixed_precision=bf16"], is_type("bf16")),
        ("two names of a number", {"training": "max_steps: 4\nper_device_train_batch_size: 4\nadam_beta2: 0.95\nbeta2: 0.95\nsave_total_limit: 2"}, [],
         lambda p: p["effective_batch"] == 8),
        ("checkpointing as output and training", {"training": "gradient_checkpointing: true", "output": "gradient_checkpointing: true"}, [], recomputes("full")),
        ("checkpointing and what it may be", {"training": "gradient_checkpointing: true\nrecompute: selective"}, [], recomputes("selective")),
        ("no checkpointing, twice", {"training": "gradient_checkpointing: false\nrecompute: none"}, [], recomputes("none")),
        ("DeepSpeed's checkpointing acts", {"training": "deepspeed:\n  activation_checkpointing: true"}, [], recomputes("full")),
        ("fp16 false beside fp32", {"training": "fp16: false\nbf16: false"}, [], is_type("fp32")),
        ("an override wins over the other name", {"training": "bf16: true"}, ["training.mixed_precision=fp32"], is_type("fp32")),
        ("an override of checkpointing wins over recompute", {"training": "recompute: full"}, ["training.gradient_checkpointing=false"], recomputes("none")),
    ]
    for name, text, sets, check in same:
        path = job(folder, text)
        if "mixed_precision=bf16" in "".join(sets):  # in the file, beside the other name
            lines = open(path).read().replace("mixed_precision: fp32", "mixed_precision: bf16")
            with open(path, "w") as f: f.write(lines)
            sets = []
        elif "bf16: true" in text.get("training", ""):
            lines = open(path).read().replace("  mixed_precision: fp32\n", "")
            with open(path, "w") as f: f.write(lines)
        planned(name, path, *[x for s in sets for x in ("--set", s)], check=check)
    differ = [
        ("bf16 beside fp32", "bf16: true", ["training.bf16: true", "training.mixed_precision: fp32"]),
        ("fp16 and bf16", "bf16: true\nfp16: true", ["training.fp16: true", "training.bf16: true"]),
        ("steps and max_steps", "max_steps: 5", ["training.max_steps", "training.steps", "5", "4"]),
        ("recompute and checkpointing", "recompute: none\ngradient_checkpointing: true", ["training.recompute: none", "training.gradient_checkpointing: true"]),
        ("DeepSpeed's checkpointing and none", "gradient_checkpointing: false\ndeepspeed:\n  activation_checkpointing: true",
         ["training.deepspeed.activation_checkpointing: true", "training.gradient_checkpointing: false"]),
    ]
    for name, keys, words in differ:
        refused(name, ["plan", job(folder, {"training": keys})], ["job.yaml", *words])


def wishes(folder):
    denied = [
        ("training", "report_to: mlflow", ["training.report_to", "mlflow", "tensorboard", "--log"]),
        ("training", "debug: tpu_metrics_debug", ["training.debug", "underflow_overflow"]),
        ("training", "dynamic_batching:\n  min_batch_size: 5\n  max_batch_size: 7", ["5", "7", "8 rows"]),
        ("training", "dynamic_batching:\n  min_batch_size: 4\n  max_batch_size: 2", ["max_batch_size 2", "min_batch_size 4"]),
        ("training", "memory:\n  warning_threshold: 0.97\n  critical_threshold: 0.9", ["warning_threshold 0.97", "critical_threshold 0.9"]),
        ("training", "max_steps: -1", ["training.max_steps", "-1"]),
        ("training", "warmup_ratio: 0.1\nwarmup_steps: 2", ["training.warmup_ratio: 0.1", "training.warmup_steps: 2"]),
        ("model", "attention_type: sparse\nsparse_block_size: 48", ["model.sparse_block_size", "48", "data.max_length 64", "32"]),
        ("model", "num_experts: 8", ["num_experts", "mixtral"]),
        ("data", "padding: do_not_pad", ["data.padding", "longest"]),
    ]
    for section, keys, words in denied:
        refused(keys.splitlines()[-1].strip(), ["train", "-q", job(folder, {section: keys})], ["job.yaml", *words])
    sparse = job(folder, {"model": "attention_type: sparse\nsparse_block_size: 16\nnum_local_blocks: 2"})
    plain, _ = plim.plan(sparse, "--set", "model.attention_type=flash")
    planned("attention over blocks", sparse, check=lambda p: p["arena_bytes"] == plain["arena_bytes"])
    for name, sets, words in (("and a window", ["model.architecture=mistral", "model.sliding_window=16"], ["attention_type", "exclude"]),
                              ("of an encoder", ["model.architecture=bert", "model.num_key_value_heads=4"], ["attention_type", "bert"])):
        refused(f"blocks {name}", ["train", "-q", sparse, *[x for s in sets for x in ("--set", s)]], words)
    planned("wishes for nothing", job(folder, {"training": "deepspeed:\n  zero_stage: 0\n  cpu_offload: false\n  nvme_offload: false\n"
                                               "memory:\n  pool_size_gb: 0\n  enable_cpu_offload: false", "model": "num_experts: 0", "data": "padding: longest"}))
    planned("sections that are off", job(folder, {"training": "deepspeed:\n  use_deepspeed: false\n  zero_stage: 3\n  nvme_offload: true\n"
                                                  "dynamic_batching:\n  enabled: false\n  max_batch_size: 8"}))
    needless = job(folder, {"training": "deepspeed:\n  zero_stage: 1\nmemory:\n  clear_cache_frequency: 10\n  enable_cpu_offload: true",
                            "performance": "torch_compile: true", "data": "persistent_workers: true"})
    result = plim.run("plan", needless, "--json")
    plim.ok(result.returncode == 0 and result.stderr.count("is accepted: ") == 4 and "one rank" in result.stderr, f"needless keys are accepted, each with a note: {result.stderr.count(chr(10))}")


def standard_attention(folder):
    """use_flash_attention: false computes the same by plain loops, in memory that grows with the square of a row."""
    sizes, losses = [], []
    for flash in ("true", "false"):
        path = job(folder, {"model": f"use_flash_attention: {flash}"})
        plan, _ = plim.plan(path, "--set", "data.max_length=1024")
        run = plim.run("train", path, "--steps", 2, "--json", "--no-checkpoint")
        sizes.append(plan["arena_bytes"] if plan else 0)
        losses.append(list(plim.losses(run.stdout).values()))
    near = len(losses[0]) == len(losses[1]) == 2 and all(abs(a - b) < 1e-3 * a for a, b in zip(*losses))
    plim.ok(near, f"standard attention gives the losses of the tiled one: {losses}")
    plim.ok(sizes[1] > sizes[0] > 0, f"and its scores are in the plan: {sizes[0]} and {sizes[1]} bytes")


def dropout(folder):
    path = plim.job(folder)
    made = [plim.run("train", path, "-q", "--steps", 1), plim.run("export", f"{folder}/run", "-o", f"{folder}/model", "--dtype", "f32")]
    if not plim.ok(all(r.returncode == 0 for r in made), "a model to give dropout"): return
    config = json.load(open(f"{folder}/model/config.json"))
    config["attention_dropout"] = 0.1
    json.dump(config, open(f"{folder}/model/config.json", "w"))
    model = ["--set", "model.architecture=", "--set", f"model.path={folder}/model"]
    refused("dropout of everything", ["train", path, "--set", "model.dropout=1"], ["model.dropout", "less than 1"])
    whole = plim.run("train", path, *model, "--steps", 4, "--json", "--set", f"output.dir={folder}/whole")
    half = plim.run("train", path, *model, "--steps", 2, "--json", "--set", f"output.dir={folder}/half")
    rest = plim.run("train", path, *model, "--steps", 4, "--json", "--resume", "--set", f"output.dir={folder}/half")
    parts = {**plim.losses(half.stdout), **plim.losses(rest.stdout)}
    plim.ok(whole.returncode == 0 and len(parts) == 4 and parts == plim.losses(whole.stdout), f"dropout of a config is trained, and a resume drops the same {rest.stderr.strip()}")
    plain = plim.run("train", path, *model, "--steps", 4, "--json", "--no-checkpoint", "--set", "model.dropout=0")
    plim.ok(plain.returncode == 0 and plim.losses(plain.stdout) != parts, "model.dropout: 0 gives other losses")
    judged = plim.run("eval", path, "--json", "--model", f"{folder}/model")
    plim.ok(judged.returncode == 0, f"evaluated it is {judged.stderr.strip()}")
    said = plim.run("generate", f"{folder}/model", "--prompt", "The", "--max-tokens", 4)
    plim.ok(said.returncode == 0, "and it generates")
    plim.run("export", f"{folder}/model", "-o", f"{folder}/copy")
    plim.ok(json.load(open(f"{folder}/copy/config.json"))["attention_dropout"] == 0.1, "an export keeps it")
    without = plim.run("train", path, *model, "--steps", 1, "-q", "--set", "model.dropout=0", "--set", f"output.dir={folder}/without")
    plim.run("export", f"{folder}/without", "-o", f"{folder}/trained")
    plim.ok(without.returncode == 0 and json.load(open(f"{folder}/trained/config.json"))["attention_dropout"] == 0,
            f"model.dropout: 0 trains without, and the result says so {without.stderr.strip()}")


def ranks(folder):
    path = plim.job(folder)
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        refused(f"{name}=4", ["train", path], [name, "4"], env={name: "4"})
    refused("WORLD_SIZE=many", ["train", path], ["WORLD_SIZE", "many"], env={"WORLD_SIZE": "many"})
    alone = {"WORLD_SIZE": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "PMI_SIZE": ""}
    result = plim.run("train", path, "-q", "--steps", 1, "--no-checkpoint", env=alone)
    plim.ok(result.returncode == 0, f"one process inside an allocation trains {result.stderr.strip()}")
    plim.ok(plim.run("plan", path, "--json", env={"WORLD_SIZE": "4"}).returncode == 0, "plan is one process anywhere")


for part in (two_names, wishes, standard_attention, dropout, ranks):
    with tempfile.TemporaryDirectory() as folder:
        part(folder)
plim.done()
