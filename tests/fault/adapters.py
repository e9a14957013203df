#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Jobs that train a part of a model keep the promises of ordinary jobs: planned bytes are measured bytes, every budget from the
smallest on gives the same losses, the budget may move, a kill loses nothing, and ranks agree at every stage although most parameters are frozen.
ADAPTER_KILLS: kills of each job (default 2). ADAPTER_BUDGETS: budgets of each stair (default 3). PLIMSOLL_LONG_TESTS=1: ranks of every job, at every stage."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder
import plim
import ranks

MIB = 1 << 20
STAGES = range(4) if plim.LONG else (0, 3)
KILLS, BUDGETS = int(os.environ.get("ADAPTER_KILLS", "2")), int(os.environ.get("ADAPTER_BUDGETS", "3"))
BASE = {f"model__{k}": None for k in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")}
JOBS = {
    "lora": dict(adapter__type="lora", adapter__modules_to_save="[norm]", training__mixed_precision="bf16"),
    "qlora": dict(adapter__type="lora", model__weights="nf4", adapter__dropout=0.1, training__mixed_precision="bf16"),
    "dora": dict(adapter__type="dora", adapter__dropout=0.1, model__weights="q8"),
    "dpo": dict(adapter__type="lora", training__objective="dpo", training__beta=0.5),
    "frozen": dict(training__train_only='["layers.1", norm]'),
}


def losses(text): return list(plim.losses(text).values())


def write_job(folder, model, keys):
    """A job of its own data: pairs of completions where it learns preferences."""
    if "training__objective" in keys:
        with open(f"{folder}/pairs.jsonl", "w") as f:
            for i in range(24): f.write(json.dumps({"prompt": plim.CORPUS[31 * i:31 * i + 20], "chosen": plim.CORPUS[17 * i:17 * i + 9 + i], "rejected": f"no {i}", "completion": f"well {i}", "label": i % 2 > 0}) + "\n")
        keys = {**keys, "data__train": f"[{folder}/pairs.jsonl]"}
        if keys["training__objective"] == "dpo": keys["data__pair_length"] = 3 * keys.get("data__max_length", 64) // 2
    return plim.job(folder, **{**BASE, "model__path": model, **keys})


def check_truth(folder, model, name, keys, *budget):
    path = write_job(folder, model, {"training__steps": 2, "data__max_length": 128, **keys})
    planned, result = plim.plan(path, *budget)
    total = planned["peak_bytes"]["total"] if planned else 0
    events, peak, _, code, stderr = plim.run_watched("train", path, "--no-checkpoint", "--overwrite", *(("--budget", total) if budget else ()))
    end = events[-1] if events else {}
    if plim.ok(code == 0 and end.get("ledger_peak") == end.get("planned_peak"), f"{name}: ledger peak = planned peak {stderr.strip()[-200:]} {result.stderr.strip()}"):
        plim.ok(total - max(0.01 * total, 6 * MIB) <= peak <= total, f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB")


def check_stair(name, path, run, reference):
    """From what the plan states as the smallest budget to twice that: the same losses, within rounding."""
    stated, _ = plim.plan(path, "--budget", "1MiB")
    least = stated["peak_bytes"]["total"]
    below = plim.run("train", path, "-q", "--no-checkpoint", "--budget", least - MIB, *run)
    plim.ok(below.returncode == 3 and below.stderr.count("\n") == 1, f"{name}: less than the stated minimum is refused in one line {below.returncode} {below.stderr.strip()[-200:]}")
    bad = []
    for i in range(BUDGETS):
        result = plim.run("train", path, "-q", "--no-checkpoint", "--budget", least + least * i // BUDGETS, *run)
        got = losses(result.stdout)
        if len(got) != len(reference) or any(abs(a - b) > 2e-6 * abs(b) for a, b in zip(got, reference)): bad.append((i, got, result.stderr.strip()[-200:]))
    plim.ok(not bad, f"{name}: {BUDGETS} budgets from {least / MIB:.1f} MiB on have the same losses {bad[:2]}")


def check_moves(name, path, run, reference):
    roomy, least = plim.plan(path)[0]["naive_bytes"] + 2 * MIB, plim.plan(path, "--budget", "1MiB")[0]["peak_bytes"]["total"]
    result = plim.run("train", path, "-q", "--no-checkpoint", "--budget", roomy, "--budget-at", f"2={least}", "--budget-at", f"4={roomy}", *run)
    got, moves = losses(result.stdout), [e["step"] for e in plim.events(result.stdout) if e["event"] == "replan"]
    near = len(got) == len(reference) and all(abs(a - b) <= 2e-6 * abs(b) for a, b in zip(got, reference))
    plim.ok(result.returncode == 0 and near and moves == [1, 3], f"{name}: the budget falls to {least / MIB:.1f} MiB and rises again: the same losses, re-planned after {moves} {result.stderr.strip()[-200:]}")


def check_kills(name, path, folder, reference):
    rng, kills, wrong, code, seen = random.Random(4), 0, [], None, {}
    log, out = f"{folder}/killed.jsonl", f"{folder}/killed-{name}"
    while (kills < KILLS or code != 0) and not wrong:
        if code == 0: shutil.rmtree(out)
        if os.path.exists(log): os.remove(log)
        process = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", "--resume", "--log", log, "--set", f"output.dir={out}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try: process.wait(timeout=rng.uniform(0.02, 0.3) if kills < KILLS else None)
        except subprocess.TimeoutExpired: process.kill()
        code = process.wait()
        kills += code == -9
        got = plim.losses(open(log).read() if os.path.exists(log) else "")
        seen.update(got)
        wrong += [(s, loss) for s, loss in got.items() if loss != reference[s - 1]] + ([code] if code not in (0, -9) else [])
    plim.ok(not wrong and len(seen) == len(reference), f"{name}: {kills} kills: resumed runs have the losses of the uninterrupted one {wrong[:3]}")


def check_ranks(name, path, folder):
    """The same bits and the same file at every stage."""
    seen, files = {}, {}
    for stage in STAGES:
        result = ranks.run(2, "train", path, "-q", "--json", "--overwrite", "--steps", "3", "--set", "training.batch_size=2", "--set", "training.max_grad_norm=1",
                           "--set", f"training.zero_stage={stage}", "--set", f"output.dir={folder}/ranks-{name}-{stage}")
        seen[stage] = losses(result.stdout)
        saved = f"{folder}/ranks-{name}-{stage}/checkpoint-00000003"
        for file in ("adapter_model.safetensors", "model.safetensors"):
            if os.path.exists(f"{saved}/{file}"): files[stage] = open(f"{saved}/{file}", "rb").read()
    plim.ok(len(seen[0]) == 3 and all(seen[s] == seen[0] for s in seen) and len(files) == len(STAGES) and len(set(files.values())) == 1, f"{name}: two ranks have the same losses and save the same file at every stage {seen} {result.stderr.strip()[-300:]}")


with tempfile.TemporaryDirectory() as folder:
    big = llama_folder.make(f"{folder}/big", hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=8, head_dim=32)
    for name, keys in (("lora fp32", dict(adapter__type="lora")), ("dora bf16, dropout", dict(adapter__type="dora", adapter__dropout=0.1, training__mixed_precision="bf16")),
                       ("base on disk", dict(adapter__type="lora", training__param_tier="disk")), ("nf4", JOBS["qlora"]), ("nf4 on disk", dict(JOBS["qlora"], training__param_tier="disk")),
                       ("dpo", JOBS["dpo"]), ("frozen", dict(training__train_only='["layers.5"]'))):
        check_truth(folder, big, name, keys)

    # The tapes of a deep model are a large part of its smallest plan, and the reference's pass has one of its own.
    deep = llama_folder.make(f"{folder}/deep", hidden_size=32, intermediate_size=64, head_dim=8, num_hidden_layers=32)
    check_truth(folder, deep, "kto of a deep model", dict(adapter__type="dora", training__objective="kto", training__gradient_accumulation_steps=1, data__max_length=64), "--budget", 1)

    model = llama_folder.make(f"{folder}/base")
    for name, keys in JOBS.items():
        path = write_job(folder, model, {**keys, "training__steps": 5, "training__save_every": 1, "training__micro_batch_size": 1, "training__learning_rate": 1e-3, "training__dynamic_batching": {"enabled": False}})
        run = ("--overwrite", "--set", f"output.dir={folder}/stair")
        whole = plim.run("train", path, "-q", "--set", f"output.dir={folder}/whole-{name}")
        reference = losses(whole.stdout)
        if not plim.ok(len(reference) == 5, f"{name}: the uninterrupted run {whole.stderr.strip()[-200:]}"): continue
        check_stair(name, path, run, reference)
        check_moves(name, path, run, reference)
        check_kills(name, path, folder, reference)
        if not shutil.which("mpirun") or not ranks.feature("mpi"): plim.skip("several ranks: no MPI")
        elif plim.LONG or name in ("qlora", "dpo", "frozen"): check_ranks(name, path, folder)
plim.done()
