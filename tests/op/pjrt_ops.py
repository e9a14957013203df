#!/usr/bin/env python3
# run-tests: slow, timeout=300, not=asan, not=tsan
"""Every op that kernels compute, on XLA's CPU plug-in, against the double reference: one random case each.

tools/deps.sh test fetches the plug-in into build/pjrt; PLIMSOLL_TEST_PJRT names another. PLIMSOLL_PJRT_CASES=40 runs as many cases of each
op, OP_SEED=2 another set of them."""
import os
import re
import subprocess
import sys

source = os.environ.get("SRC_DIR", ".")
plugin = os.environ.get("PLIMSOLL_TEST_PJRT", f"{source}/build/pjrt/xla_cpu_pjrt.so")
if not os.path.exists(plugin):
    print(f"skipped: there is no {plugin}; tools/deps.sh test fetches it")
    sys.exit(77)
program = f"{os.environ.get('BUILD_DIR', 'build/release')}/tests/op/test_ops"
env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="stdout", OP_DEVICE="pjrt", OP_PLUGIN=os.path.abspath(plugin))
kinds = re.findall(r"X\(\w+, (\w+), (?:KERNEL|CPU_ONLY)\)", open(f"{source}/src/tape/op.h").read())


def run(*ops, **settings):
    """The output of the suite, and the ops that agreed."""
    limit = None if "PLIMSOLL_PJRT_CASES" in os.environ else 280
    result = subprocess.run([program, *ops], env=dict(env, **settings), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
    return result.stdout, set(re.findall(r"\[       OK \] op_(\w+)", result.stdout))


output, worked = run(OP_CASES=os.environ.get("PLIMSOLL_PJRT_CASES", "1"))
missing = [kind for kind in kinds if kind not in worked]
for large in ("linear_q", "linear_q_dx"):  # weights that are decoded piece by piece
    text, right = run(large, OP_CASE="39")
    if large not in right:
        missing.append(large + " of a large weight")
        output += text
if missing or len(kinds) < 50:
    print(output)
print(f"{len(worked)} ops agree with the reference" + (f"; not: {', '.join(missing)}" if missing else ""))
sys.exit(bool(missing) or len(kinds) < 50)
