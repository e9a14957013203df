#!/usr/bin/env python3
# run-tests: slow, timeout=300, not=asan, not=tsan
"""Every op with an emitter on XLA's CPU plug-in, against the double reference: one random case each.

tools/deps.sh test fetches the plug-in into build/pjrt; PLIMSOLL_TEST_PJRT names another. PLIMSOLL_PJRT_CASES runs more cases."""
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
env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="stdout", OP_DEVICE="pjrt", OP_PLUGIN=os.path.abspath(plugin), OP_CASES=os.environ.get("PLIMSOLL_PJRT_CASES", "1"))
result = subprocess.run([program], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280)
worked = len(re.findall(r"\[       OK \]", result.stdout))
if result.returncode or worked < 10:
    print(result.stdout)
print(f"{worked} ops agree with the reference")
sys.exit(result.returncode != 0 or worked < 10)
