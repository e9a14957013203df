#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""The source system's job, scaled down, on four ranks of this machine: DeepSpeed's JSON acts in a run as in a plan, what does not fit
together is told once, and the link between ranks is measured once and remembered."""
import glob
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks

ranks.need_mpi()

SOURCE = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}, "stage3_max_live_parameters": 1e9,
                                "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True},
          "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": 1.0}


def write(path, data):
    with open(path, "w") as f: json.dump(data, f)
    return path


def near(a, b): return len(a) == len(b) > 0 and all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b))


def losses(result): return list(plim.losses(result.stdout or "").values())


def source(folder):
    path = plim.job(folder, training__gradient_accumulation_steps=2, training__threads=1, training__mixed_precision="fp32")
    base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", 4, "--lr_scheduler", "greedy"]
    one = plim.run(*base, "--batch-size", 8, "--set", "training.max_grad_norm=1")
    ds = write(f"{folder}/ds.json", SOURCE)
    four = ranks.run(4, *base, "--batch-size", 2, "--deepspeed", ds, "--mode", "multi")
    plim.ok(near(losses(one), losses(four)), f"ZeRO 3 on four ranks has one's losses: {losses(one)} {losses(four)} {four.stderr.strip()[:200]}")
    keys = {"stage3_max_live_parameters": 1, "stage3_param_persistence_threshold": 5000, "stage3_prefetch_bucket_size": 0}
    for key, value in keys.items():
        other = write(f"{folder}/other.json", {**SOURCE, "zero_optimization": {"stage": 3, key: value}})
        result = ranks.run(2, *base, "--batch-size", 4, "--deepspeed", other)
        plim.ok(near(losses(one), losses(result)), f"{key}: {value} has the same losses {result.stderr.strip()[:200]}")
    kept = ranks.run(2, *base, "--batch-size", 4, "--deepspeed", ds, "--set", "training.link=1g")
    plim.ok(near(losses(one), losses(kept)), f"parameters that stay whole have the same losses {kept.stderr.strip()[:200]}")
    wrong = write(f"{folder}/wrong.json", {"train_batch_size": 512})
    for name, args, words in (("a product that is another", ("--deepspeed", wrong, "--batch-size", 1), ("train_batch_size: 512",)),
                              ("--mode single", ("--mode", "single"), ("2 ranks",)), ("a link that is none", ("--set", "training.link=10gb"), ("10gb", "10g")),
                              ("a misspelt key", ("--deepspeed", write(f"{folder}/bad.json", {"zero_optimization": {"stge": 3}})), ("stge", "stage"))):
        bad = ranks.run(2, *base, *args)
        told = [line for line in bad.stderr.splitlines() if line.startswith("plimsoll:")]
        plim.ok(bad.returncode == 2 and len(told) == 1 and all(w in told[0] for w in words), f"{name}, told once: {bad.returncode} {told}")


def link(folder):
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1)
    env = {"XDG_CACHE_HOME": folder, "PLIMSOLL_CALIBRATE": "1"}
    base = ["train", path, "--no-checkpoint", "--steps", 1, "--json"]
    planned = lambda: json.loads(plim.run("plan", path, "--ranks", 2, "--json", "-q", env=env).stdout)["peak_bytes"]["total"]
    trained = lambda done: [json.loads(line)["planned_total"] for line in done.stdout.splitlines() if '"event":"plan"' in line]
    first = ranks.run(2, *base, env=env)
    plim.ok(first.returncode == 0 and not glob.glob(f"{folder}/plimsoll/link-*.json"), f"a run measures no link: {first.stderr.strip()[-200:]}")
    plim.ok(trained(first) == [planned()], f"its plan is that of plan --ranks, to the byte: {trained(first)} {planned()}")
    made = ranks.run(2, "calibrate", "--threads", 1, env=env)
    files = glob.glob(f"{folder}/plimsoll/link-*.json")
    kept = json.load(open(files[0])) if files else {}
    plim.ok(made.returncode == 0 and made.stdout.count("ranks exchange") == 1 and kept.get("bandwidth", 0) > 1e6 and 0 < kept.get("seconds", 0) < 1,
            f"calibrate does: {kept} {made.stdout.strip()} {made.stderr.strip()[-200:]}")
    second = ranks.run(2, *base, env=env)
    plim.ok(second.returncode == 0 and json.load(open(files[0])) == kept and trained(second) == [planned()], f"both take what is kept: {trained(second)} {planned()}")


def uneven(folder):
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1)
    part = lambda budget: [plim.PLIMSOLL, "train", path, "--no-checkpoint", "--steps", "1", "--budget", budget]
    result = ranks.ended(ranks.unlike([(1, part("96MiB"), None), (1, part("64MiB"), None)]))
    plim.ok(result.returncode == 0 and "rank 1 may use 64.0 MiB and rank 0 96.0 MiB; the smaller one counts for all" in result.stderr, f"uneven ranks are told: {result.stderr.strip()[-300:]}")


for part_ in (source, link, uneven):
    with tempfile.TemporaryDirectory() as folder_: part_(folder_)
plim.done()
