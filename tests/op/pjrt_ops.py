#!/usr/bin/env python3
# run-tests: slow, timeout=300, not=asan, not=tsan
"""Every op with an emitter on XLA's CPU plug-in, against the double reference: one random case each. docs/design/pjrt.md lists the ops without one.

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
env.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # programs compile in half the time


def rows(path, pattern):
    with open(f"{source}/{path}") as f: return re.findall(pattern, f.read())


def run(*ops, **settings):
    """The output of the suite, and the ops that agreed."""
    limit = None if "PLIMSOLL_PJRT_CASES" in os.environ else 280
    result = subprocess.run([program, *ops], env=dict(env, **settings), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
    return result.stdout, set(re.findall(r"\[       OK \] op_(\w+)", result.stdout))


emitted = rows("src/device/pjrt/emit.h", r"X\(\w+, (\w+)\)")
computed = rows("src/tape/op.h", r"X\(\w+, (\w+), (?:KERNEL|CPU_ONLY)\)")
listed = rows("docs/design/pjrt.md", r"no emitter: ([^.]*)\.")
without = ", ".join(op for op in computed if op not in emitted) or "none"
output, worked = run(OP_CASES=os.environ.get("PLIMSOLL_PJRT_CASES", "1"))
failed = [op for op in emitted if op not in worked]
for large in ("linear_q", "linear_q_dx"):  # weights that are decoded piece by piece
    text, right = run(large, OP_CASE="39")
    if large not in right: failed.append(f"{large} of a large weight")
    if large not in right: output += text
if failed: print(output)
print(f"{len(worked)} of {len(emitted)} ops agree with the reference" + (f"; not: {', '.join(failed)}" if failed else ""))
if listed != [without]: print(f"docs/design/pjrt.md: ops without an emitter are {without}, not {listed}")
sys.exit(bool(failed) or len(emitted) < 50 or listed != [without])
