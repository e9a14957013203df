#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""a stated minimum always works. `plan` says what the smallest plan takes; `train` with just that budget runs, and so it
does with every budget above it, again and again, although no two processes are of the same size. PLIMSOLL_LONG_TESTS=1: twice as often."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

WIDE = dict(model__hidden_size=128, model__intermediate_size=256)
MODELS = {
    "llama": dict(),
    "llama, 12 layers, 7 x 3 rows of 61": dict(model__num_layers=12, training__batch_size=7, data__max_length=61, training__gradient_accumulation_steps=3),
    "llama, adafactor": dict(training__optimizer="adafactor", **WIDE),
    "llama, 8-bit moments": dict(training__optimizer="adamw8bit", training__mixed_precision="bf16", **WIDE),
    "gpt2": dict(model__architecture="gpt2", model__num_key_value_heads=4),
    "mistral": dict(model__architecture="mistral", training__mixed_precision="bf16"),
    "qwen2": dict(model__architecture="qwen2", training__max_grad_norm=1),
    "gemma3": dict(model__architecture="gemma3", model__sliding_window=16),
    # Tapes are large beside the arena: comparing plans takes more than most of them.
    "gemma3, 24 layers, 2 x 2 rows of 16": dict(model__architecture="gemma3", model__sliding_window=64, model__num_layers=24, model__hidden_size=24, model__intermediate_size=72,
                                                model__num_attention_heads=1, model__num_key_value_heads=1, model__vocab_size=4096, data__max_length=16,
                                                training__batch_size=2, training__gradient_accumulation_steps=2, training__mixed_precision="bf16", training__optimizer="sgd"),
}
PAGES = (0, 0, 0, 1, 2, 3, 7, 16, 40, 61, 80, 100)

for number, (name, changes) in enumerate(MODELS.items()):
    pages_of = PAGES if plim.LONG else PAGES[number % 2::2]  # 0 is among them
    with tempfile.TemporaryDirectory() as folder:
        path = plim.job(folder, training__steps=1, **changes)
        plan, result = plim.plan(path, "--budget", "1MiB")
        if not plim.ok(plan and result.returncode == 3, f"{name}: the minimum is stated {result.stderr.strip()}"): continue
        least = plan["peak_bytes"]["total"]
        stated = {plim.plan(path, "--budget", "1MiB")[0]["peak_bytes"]["total"] - least for _ in range(4)}
        plim.ok(stated == {0}, f"{name}: and is the same at every start: {sorted(stated)}")
        refused = []
        for pages in pages_of:
            done = plim.run("train", path, "--budget", least + 4096 * pages, "--no-checkpoint", "-q")
            if done.returncode: refused.append((pages, done.stderr.strip()))
        plim.ok(not refused, f"{name}: {least} bytes and {len([n for n in pages_of if n])} budgets above it are enough {refused[:2]}")
        told = {k: v for r in plan["remedies"] for k, v in r["set"].items() if k == "budget"}
        done = plim.run("train", path, "--budget", told.get("budget", 0), "--no-checkpoint", "-q")
        plim.ok(done.returncode == 0, f"{name}: so is the remedy {told} {done.stderr.strip()}")

# Threads bring their stacks, rows of several lengths their tapes: both are in the number, and the process stays below it.
POINTS = {"64 threads": dict(training__threads=64), "16 threads, bf16": dict(training__threads=16, training__mixed_precision="bf16"),
          "rows of several lengths, 24 layers": dict(model__num_layers=24, data__padding="longest", data__packing="false", data__format="lines", data__max_length=61)}
for name, changes in POINTS.items():
    with tempfile.TemporaryDirectory() as folder:
        path = plim.job(folder, training__steps=2, **changes)
        least = plim.plan(path, "--budget", "1MiB")[0]["peak_bytes"]["total"]
        for budget in (least, int(1.5 * least)):
            said = plim.plan(path, "--budget", budget)[0]["peak_bytes"]["total"]
            events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", budget, "--no-checkpoint")
            planned = [e["planned_total"] for e in events if e["event"] == "plan"]
            plim.ok(code == 0 and planned == [said] and peak <= budget,
                    f"{name}: plan says {said}, train plans {planned} within {budget}, and takes {peak} {stderr.strip()}")

# Evaluation and generation state a minimum where they run; the next process is given just that.
with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=1)
    plim.run("train", path, "-q")
    for command in (["eval", path, "--rows", 2, "--json"], ["generate", path, "-p", "The ship", "-n", 4, "--json"]):
        told = plim.run(*command, "--budget", "1MiB")
        missing = [int(w.lstrip("(")) for w, n in zip(told.stderr.split(), told.stderr.split()[1:]) if n == "bytes)"]
        if not plim.ok(told.returncode == 3 and missing, f"{command[0]} states its minimum: {told.stderr.strip()}"): continue
        refused = []
        for pages in PAGES:
            done = plim.run(*command, "--budget", (1 << 20) + missing[0] + 4096 * pages)
            if done.returncode: refused.append((pages, done.stderr.strip()))
            elif json.loads(done.stdout)["memory"]["ledger_peak"] != json.loads(done.stdout)["memory"]["planned_total"]: refused.append((pages, "ledger"))
        plim.ok(not refused, f"{command[0]}: {missing[0]} bytes more are enough {refused[:2]}")
plim.done()
