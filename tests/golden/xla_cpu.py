#!/usr/bin/env python3
"""Models on XLA's CPU plug-in: greedy tokens and log-probabilities are the CPU backend's, losses are PyTorch's and the CPU backend's, and the
process stays within its plan at three budgets.

Two families and one training job by default; PLIMSOLL_LONG_TESTS=1 runs every family, T5's and BERT's losses and recompute. tools/deps.sh test fetches the
plug-in into build/pjrt; PLIMSOLL_TEST_PJRT names another."""
# run-tests: timeout=3600, not=asan, not=tsan
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
from plim import ok
import xla

PLUGIN = xla.need_plugin()
LONG = os.environ.get("PLIMSOLL_LONG_TESTS")
MIB = 1 << 20
FAMILIES = ["gpt2", "mixtral"]
MORE = ["llama-tied", "llama-untied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "smollm3", "phi3", "granite", "qwen3_moe", "olmoe", "qwen2_moe",
        "t5-v10", "t5-v11"]
TRAINED = ["llama-tied", "llama-untied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "smollm3", "gpt2", "phi3", "granite", "mixtral", "qwen3_moe",
           "olmoe", "qwen2_moe"]


def golden(program, *args):
    """A golden test's program on the plug-in."""
    path = f"{os.environ.get('BUILD_DIR', 'build/release')}/tests/golden/{program}"
    r = subprocess.run([path, *args], env=dict(os.environ, TEST_DEVICE=f"pjrt:{PLUGIN}", CMOCKA_MESSAGE_OUTPUT="stdout"), stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    lines = [line for line in r.stdout.splitlines() if line.startswith("# ")]
    ok(r.returncode == 0 and lines, f"{program} {' '.join(args)}: {'; '.join(l[2:] for l in lines)}")
    if r.returncode: print("# " + r.stdout.replace("\n", "\n# "))


def losses(text): return [e["loss"] for e in plim.events(text) if e["event"] == "step"]


def training(folder, tolerance, budgets=(512, 160, 112), **changes):
    """The CPU backend's losses, in the plan's bytes, at three budgets."""
    changes = {**dict(training__steps=10, training__micro_batch_size=2, model__num_layers=1), **changes}
    name = ", ".join(f"{k.split('__')[1]} {v}" for k, v in changes.items())
    want = losses(plim.run("train", plim.job(folder, **changes), "--no-checkpoint", "-q", "--overwrite").stdout)
    path = plim.job(folder, **changes, training__device="pjrt:cpu")
    first = plim.run("train", path, "--no-checkpoint", "-q", "--overwrite")  # compiles
    got = losses(first.stdout)
    worst = max((abs(a - b) / b for a, b in zip(got, want)), default=1)
    ok(len(got) == len(want) == 10 and worst < tolerance, f"{name}: ten losses {worst:.1e} apart from the CPU backend's {first.stderr.strip()[-200:]}")
    for mib in budgets: within_plan(path, mib)


def within_plan(path, mib):
    budget = f"{mib}MiB"
    plim.plan(path, "--budget", budget)  # compiles, which the next one need not
    planned, r = plim.plan(path, "--budget", budget)
    if not ok(planned and planned["fits"], f"{budget}: plans {r.stderr.strip()}"): return
    events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", budget, "--no-checkpoint", "--overwrite")
    end = events[-1] if events else {}
    if not ok(code == 0 and end.get("event") == "end", f"{budget}: trains {stderr.strip()}"): return
    total = end["planned_peak"]
    ok(end["ledger_peak"] == total and abs(total - planned["peak_bytes"]["total"]) < 2 * MIB, f"{budget}: ledger peak = planned peak = {total / MIB:.2f} MiB; plan {planned['peak_bytes']['total'] / MIB:.2f} MiB")
    ok(total - 48 * MIB < peak <= total <= mib * MIB, f"{budget}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB")


def main():
    os.environ["XLA_FLAGS"] = xla.QUICK
    os.environ["PJRT_PLUGIN_LIBRARY_PATH"] = PLUGIN
    golden("test_greedy", "--as-cpu", *FAMILIES)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        training(folder, 1e-5)
        if LONG: training(folder, 1e-5, (512, 224, 160), training__micro_batch_size=None, data__max_length=256, training__batch_size=16)  # another plan at each budget
        if LONG: training(folder, 2e-2, training__mixed_precision="bf16", training__recompute="full")
        if LONG: training(folder, 1e-5, (512, 224, 160), **plim.T5, data__train=f"[{plim.pairs(folder)}]")
    if LONG:
        for family in MORE: golden("test_greedy", "--as-cpu", family)
        golden("test_t5_generate")
        for program in ("test_t5", "test_encoders"): golden(program, "test_ten_steps")
        for family in TRAINED: golden("test_parity", "test_ten_steps", family)
        for test in ("test_ten_steps_under_every_trick", "test_logits_bf16", "test_gradients_bf16"): golden("test_parity", test, "llama-tied", "qwen2")
    plim.done()


main()
