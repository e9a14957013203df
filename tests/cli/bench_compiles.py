#!/usr/bin/env python3
"""Every program of bench/ compiles without warnings: no other test builds them. Only the compiler's front end runs."""
# run-tests: not=asan, not=tsan
import glob
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

FLAGS = ["-fsyntax-only", "-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Wno-missing-field-initializers", "-Werror", '-DPLIMSOLL_VERSION="0"']
FOLDERS = [f"-I{plim.SRC_DIR}/{folder}" for folder in ("src", "include", "bench", "tests")]

for path in sorted(glob.glob(f"{plim.SRC_DIR}/bench/bench_*.c") + glob.glob(f"{plim.SRC_DIR}/bench/load/*.c")):
    told = subprocess.run([os.environ.get("CC", "cc"), *FLAGS, *FOLDERS, path], capture_output=True, text=True).stderr
    plim.ok(not told, f"{os.path.relpath(path, plim.SRC_DIR)} {told[:300]}")
plim.done()
