#!/usr/bin/env python3
"""Models with experts in bf16, over many random models and batches: is our error larger than PyTorch's?

    python tests/golden/live_experts.py [--draws N] [--seed S] [--out FILE.json]

Of each model PyTorch's fp32 run is the truth, and the relative errors of two bf16 runs are compared: ours and PyTorch's, of the logits and of all
gradients as one vector. A rounding that sends one token to another expert changes an error tenfold, in either run, so single draws say
nothing: the test is on the mean logarithm of ours / PyTorch's, and fails where it lies above 0 by more than three standard errors. Skips itself where torch is not
installed (with_torch.py)."""
# run-tests: slow, timeout=1200, not=asan, not=tsan
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import transformers
import plim

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
import make_golden

ROUTED = ["mixtral", "qwen3_moe", "olmoe", "qwen2_moe"]
LOGITS = re.compile(r"# (\w+): logits error (\S+) \(torch bf16 (\S+)\)")
GRADIENTS = re.compile(r"# (\w+): gradients as one vector (\S+) \(torch bf16 (\S+)\)")
SIGMAS = 3


def compare(seed, folder):
    """[(model, what, our error, PyTorch's)] of one draw of each model."""
    for n, name in enumerate(ROUTED):
        torch.manual_seed(seed)
        make_golden.plain_case(folder, name, make_golden.CASES[name], 100003 * (n + 1) + seed, 0)
    program = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "golden", "test_parity")
    done = subprocess.run([program, "*_bf16", *ROUTED], env={**os.environ, "GOLDEN_DIR": folder}, capture_output=True, text=True)
    told = done.stdout + done.stderr
    found = [(model, what, float(ours), float(theirs)) for what, form in (("logits", LOGITS), ("gradients", GRADIENTS)) for model, ours, theirs in form.findall(told)]
    if done.returncode or len(found) != 2 * len(ROUTED): plim.ok(False, f"draw {seed}: {told[-500:]}")
    return found


def judge(what, rows):
    logs = [math.log(ours / theirs) for _, _, ours, theirs in rows]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    middle = [statistics.median(r[k] for r in rows) for k in (2, 3)]
    plim.ok(mean <= SIGMAS * error, f"{what}: ours is {math.exp(mean):.3f} x PyTorch's on average (one standard error: {math.exp(error):.3f} x), "
            f"worse in {sum(g > 0 for g in logs)} of {len(logs)}; medians {middle[0]:.2e} and {middle[1]:.2e}")
    return dict(what=what, count=len(logs), mean_ratio=math.exp(mean), standard_error=math.exp(error), worse=sum(g > 0 for g in logs), median=middle[0], median_torch=middle[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(args.seed, args.seed + args.draws):
        with tempfile.TemporaryDirectory() as folder: rows += compare(seed, folder)
    sums = [judge(f"{what} of {model}", [r for r in rows if r[:2] == (model, what)]) for model in ROUTED for what in ("logits", "gradients")]
    sums += [judge(f"{what} of all", [r for r in rows if r[1] == what]) for what in ("logits", "gradients")]
    if args.out:
        with open(args.out, "w") as f:
            json.dump(dict(torch=torch.__version__, transformers=transformers.__version__, machine=os.uname().machine, draws=args.draws, seed=args.seed, sums=sums,
                           rows=[dict(model=m, what=w, ours=o, torch=t) for m, w, o, t in rows]), f, indent=1)
            f.write("\n")
    plim.done()


main()
