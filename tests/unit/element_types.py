"""CPU code made for an element type that it has no case for does not compile; for a compute type it does."""
# run-tests: not=asan, not=tsan
import os
import pathlib
import shutil
import subprocess
import sys

SRC = pathlib.Path(os.environ.get("SRC_DIR", pathlib.Path(__file__).parents[2])) / "src"
CODE = """
#include "device/cpu/vec.h"
VEC_BEGIN
float first(const void *x);
float first(const void *x) { return v_sum(v_load(%s, x, 0, VEC_LANES)); }
VEC_END
"""
CODE_REG = """
#include "device/cpu/vwiden.h"
void widen(float *y, const void *x);
void widen(float *y, const void *x) { reg_store(y, widen_reg(x, %s, 0)); }
"""


def compiles(code, kind):
    done = subprocess.run([cc, "-std=gnu11", "-O2", "-S", "-o", os.devnull, f"-I{SRC}", "-xc", "-"], input=code % kind, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


cc = shutil.which("cc")
if not cc:
    print("no compiler")
    sys.exit(77)
cases = [(what, code, kind) for what, code in (("v_load", CODE), ("widen_reg", CODE_REG)) for kind in ("DT_F32", "DT_F16", "DT_U8", "DT_F64")]
print(f"1..{len(cases)}")
failed = False
for i, (what, code, kind) in enumerate(cases, 1):
    good, said = compiles(code, kind)
    refused = not good and "no code for this element type" in said
    right = good if kind in ("DT_F32", "DT_F16") else refused
    failed |= not right
    print(f"{'ok' if right else 'not ok'} {i} - {what} of {kind} {'compiles' if good else 'is refused'}")
    if not right: print("# " + said.replace("\n", "\n# "))
sys.exit(failed)
