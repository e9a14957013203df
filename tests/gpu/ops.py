#!/usr/bin/env python3
# run-tests: serial, timeout=1800, not=asan, not=tsan
"""Every op on the GPU against the double-precision reference (tests/op/test_ops.c), and groups of them against the same
ops one by one (tests/op/test_together.c, tests/op/test_fused.c); rows of weights in blocks (tests/op/test_quantised_rows.c).

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
folder = os.path.join(os.environ["BUILD_DIR"], "tests", "op")
names = "test_ops", "test_together", "test_fused", "test_quantised_rows"
program, together, fused, rows = ([os.path.join(folder, name)] for name in names)
if tool:
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(sanitizer):
        print("compute-sanitizer is not installed")
        sys.exit(77)
    check = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
    program, together, fused, rows = (check + p for p in (program, together, fused, rows))
cases = os.environ.get("OP_CASES", "4" if tool else "120")
env = {**os.environ, "OP_DEVICE": "cuda", "OP_CASES": cases}
if tool == "racecheck":  # it flags kernels of libraries: none of them is to run
    env.update(PLIMSOLL_CALIBRATE="0", OP_SKIP="linear*", OP_TUNE="0")
best = subprocess.run(program, env=env).returncode
portable = subprocess.run(program, env={**env, "PLIMSOLL_GPU": "portable", "OP_SKIP": "linear*"}).returncode
groups = subprocess.run(together, env=env).returncode or subprocess.run(fused, env=env).returncode
alone = subprocess.run(rows, env=env).returncode
sys.exit(best or portable or groups or alone)
