#!/usr/bin/env python3
# run-tests: slow, timeout=900, not=dev, not=asan, not=tsan
"""The CUDA kernels on the CPU (tests/cuda_on_cpu/README.md): every op against the double-precision reference, groups of ops and rows of
weights in blocks against the same one by one; races of shared memory, threads that wait for ever and lanes that part end a test.

    CUDA_CPU_CASES=120   so many random cases of each op; OP_SEED=2 another set of them
"""
import os
import subprocess
import sys
import time

folder = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "cuda_on_cpu")
if not os.path.exists(os.path.join(folder, "80", "test_ops")):
    print("skipped: this build has no CUDA kernels for the CPU; a C++ compiler is missing")
    sys.exit(77)
cases = os.environ.get("CUDA_CPU_CASES")
runs = [  # code, card, test, its ops, cases
    ("80", "89,4", "test_ops", None, 3),
    ("80", "89,4", "test_fused", None, 0),
    ("80", "89,4", "test_together", None, 0),
    ("80", "89,4", "test_adapter_rows", None, 0),
    ("80", "89,4", "test_quantised_rows", None, 0),
    ("80", "89,4", "test_paged_rows", None, 0),
    ("80", "89,4", "test_paged_fresh", None, 0),
    ("90", "90,132", "test_ops", "linear_f8", 12),
    ("90", "90,132", "test_ops", "attn", 6),
    ("90", "90,132", "test_ops", "attn_bwd", 6),
    ("90", "90,132", "test_ops", "attn_paged", 12),
    ("90", "90,132", "test_ops", "attn_paged8", 12),
    ("90", "90,132", "test_ops", "linear_q", 6),
    ("90", "90,132", "test_ops", "expert_linear_q", 6),
    ("90", "90,132", "test_quantised_rows", None, 0),
    ("90", "90,132", "test_paged_fresh", None, 0),
    ("90", "90,132", "test_paged_rows", None, 0),
]
failed = 0
if not os.path.exists(os.path.join(folder, "90", "test_ops")):
    print("code for 9.0 is not run: cmake --build build/release --target cuda_on_cpu_90_tests builds it", flush=True)
    runs = [r for r in runs if r[0] != "90"]
for code, card, test, ops, number in runs:
    env = dict(os.environ, OP_DEVICE="cuda", OP_TUNE="0", PLIMSOLL_CALIBRATE="0", CUDA_CPU_CARD=card, CMOCKA_MESSAGE_OUTPUT="stdout",
               OP_CASES=cases or str(number))
    start = time.monotonic()
    done = subprocess.run([os.path.join(folder, code, test)] + ([ops] if ops else []), env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    what = f"{test}{' ' + ops if ops else ''}, a card {card}"
    print(f"{what}: {'ok' if not done.returncode else 'FAILED'}, {time.monotonic() - start:.1f} s", flush=True)
    if done.returncode:
        print(done.stdout)
        failed += 1
sys.exit(bool(failed))
