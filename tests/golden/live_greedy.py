#!/usr/bin/env python3
"""Greedy tokens and log-probabilities of many prompts beside transformers, every architecture, alone, batched, in chunks, preempted and shared.

    python tests/golden/live_greedy.py --prompts 200          # some minutes; the test command has the golden file and a few prompts more

Skips itself where torch is not installed (with_torch.py)."""
# run-tests: slow, timeout=1200, not=asan, not=tsan
import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import plim

parser = argparse.ArgumentParser()
parser.add_argument("--prompts", type=int, default=12)
args = parser.parse_args()
here = os.path.join(plim.SRC_DIR, "tests", "golden")
with tempfile.TemporaryDirectory() as folder:
    made = subprocess.run([sys.executable, os.path.join(here, "make_greedy.py"), "--prompts", str(args.prompts), "--out", f"{folder}/cases.json"], capture_output=True, text=True)
    plim.ok(made.returncode == 0, f"transformers has answered {made.stderr[-500:] if made.returncode else ''}")
    held = subprocess.run([os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "golden", "test_greedy"), f"{folder}/cases.json"], capture_output=True, text=True)
    for line in held.stdout.splitlines():
        if "apart" in line: print("# " + line)
    plim.ok(held.returncode == 0, f"so has the engine {held.stderr[-500:] if held.returncode else ''}")
plim.done()
