#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Jobs with an adapter: planned bytes are measured bytes, the budget holds from the smallest on, a kill loses nothing, and ranks
agree at every stage although most parameters are frozen. ADAPTER_KILLS: as many kills (default 4)."""
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
KILLS = int(os.environ.get("ADAPTER_KILLS", "4"))
BASE = {f"model__{k}": None for k in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")}


def losses(text): return list(plim.losses(text).values())


with tempfile.TemporaryDirectory() as folder:
    big = llama_folder.make(f"{folder}/big", hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=8, head_dim=32)
    for name, keys in (("lora fp32", dict(adapter__type="lora")), ("dora bf16, dropout", dict(adapter__type="dora", adapter__dropout=0.1, training__mixed_precision="bf16")),
                       ("base on disk", dict(adapter__type="lora", training__param_tier="disk")), ("frozen", dict(training__train_only='["layers.5"]'))):
        job = plim.job(folder, **{**BASE, "model__path": big, "training__steps": 2, "data__max_length": 128, **keys})
        planned, result = plim.plan(job)
        total = planned["peak_bytes"]["total"] if planned else 0
        events, peak, _, code, stderr = plim.run_watched("train", job, "--no-checkpoint", "--overwrite")
        end = events[-1] if events else {}
        if not plim.ok(code == 0 and end.get("ledger_peak") == end.get("planned_peak"), f"{name}: ledger peak = planned peak {stderr.strip()[-200:]}"): continue
        plim.ok(abs(peak - total) <= max(0.01 * total, 6 * MIB), f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB")

    model = llama_folder.make(f"{folder}/base")
    job = plim.job(folder, **{**BASE, "model__path": model, "adapter__type": "lora", "adapter__modules_to_save": "[norm]", "training__mixed_precision": "bf16", "training__steps": 8, "training__save_every": 1, "training__micro_batch_size": 1})
    whole = plim.run("train", job, "-q", "--set", f"output.dir={folder}/whole")
    reference = plim.losses(whole.stdout)
    plim.ok(len(reference) == 8, f"the uninterrupted run {whole.stderr.strip()[-200:]}")
    fits = 0
    for budget in range(8, 16):
        result = plim.run("train", job, "-q", "--overwrite", "--no-checkpoint", "--set", f"output.dir={folder}/stair", "--budget", f"{budget}MiB")
        if result.returncode == 3: continue
        fits += 1
        same = losses(result.stdout) == list(reference.values())
        if not plim.ok(result.returncode == 0 and same, f"a budget of {budget} MiB: the same losses {result.stderr.strip()[-200:]}"): break
    plim.ok(fits > 2, f"{fits} budgets of the stair fit")

    rng, kills, wrong, seen = random.Random(4), 0, [], {}
    while kills < KILLS and not wrong:
        subprocess.run(["rm", "-rf", f"{folder}/killed"], check=True)
        code, seen = None, {}
        while code != 0 and not wrong:
            log = f"{folder}/killed.jsonl"
            if os.path.exists(log): os.remove(log)
            process = subprocess.Popen([plim.PLIMSOLL, "train", job, "-q", "--resume", "--log", log, "--set", f"output.dir={folder}/killed"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try: process.wait(timeout=rng.uniform(0.02, 0.3) if kills < KILLS else None)
            except subprocess.TimeoutExpired: process.kill()
            code = process.wait()
            kills += code == -9
            got = plim.losses(open(log).read() if os.path.exists(log) else "")
            wrong += [s for s, loss in got.items() if loss != reference[s]]
            seen.update(got)
            if code not in (0, -9): wrong.append(code)
    plim.ok(not wrong, f"{kills} kills: resumed runs have the losses of the uninterrupted one {wrong}")

    if shutil.which("mpirun") and ranks.feature("mpi"):
        two = plim.job(folder, **{**BASE, "model__path": model, "adapter__type": "dora", "adapter__bias": None, "training__batch_size": 2, "training__steps": 3, "training__max_grad_norm": 1})
        seen = {}
        for stage in range(4):
            result = ranks.run(2, "train", two, "-q", "--json", "--overwrite", "--set", f"training.zero_stage={stage}", "--set", f"output.dir={folder}/ranks{stage}")
            seen[stage] = losses(result.stdout)
        if plim.ok(len(seen[0]) == 3 and all(seen[s] == seen[0] for s in seen), f"two ranks: the same bits at every stage {seen} {result.stderr.strip()[-300:]}"):
            a, b = (open(f"{folder}/ranks{s}/checkpoint-00000003/adapter_model.safetensors", "rb").read() for s in (0, 3))
            plim.ok(a == b, "and the same adapter")
    else:
        plim.skip("several ranks: no MPI")
plim.done()
