#!/usr/bin/env python3
# run-tests: serial, timeout=1800, not=asan, not=tsan
"""Every op on the GPU against the double-precision reference (tests/op/test_ops.c), and groups of them against the same
ops one by one (test_together.c, test_fused.c, test_paged_fresh.c); rows of weights in blocks (test_quantised_rows.c) and of attention over blocks (test_paged_rows.c).

    OP_CASES                                    random cases per op, default 120
    GPU_SANITIZER=memcheck|racecheck|initcheck  the same under compute-sanitizer, default 4 cases; any finding fails.
                                                racecheck: our own kernels alone
Then once more with the kernels of smaller cards (PLIMSOLL_GPU=portable), which a large one does not take by itself.
"""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

plim.need_gpu()
tool = os.environ.get("GPU_SANITIZER")
check = []
if tool:
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(sanitizer):
        print("compute-sanitizer is not installed")
        sys.exit(77)
    check = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
cases = os.environ.get("OP_CASES", "4" if tool else "120")
env = {**os.environ, "OP_DEVICE": "cuda", "OP_CASES": cases}
if tool == "racecheck":  # it flags kernels of libraries: none of them is to run
    env.update(PLIMSOLL_CALIBRATE="0", OP_SKIP="linear*", OP_TUNE="0")


def run(name, **more):
    return subprocess.run([*check, os.path.join(os.environ["BUILD_DIR"], "tests", "op", name)], env={**env, **more}).returncode


failed = [run("test_ops"), run("test_ops", PLIMSOLL_GPU="portable", OP_SKIP="linear*")]
failed += [run(name) for name in ("test_together", "test_fused", "test_paged_fresh", "test_quantised_rows", "test_paged_rows")]
sys.exit(any(failed))
