#!/usr/bin/env python3
# run-tests: slow, timeout=600, not=asan, not=tsan
"""Soak: half a minute of random jobs (tools/soak), 0 above the plan or the budget, 0 crashes, 0 lost checkpoints."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

done = subprocess.run([sys.executable, os.path.join(plim.SRC_DIR, "tools", "soak"), "0.5"], capture_output=True, text=True,
                      env={**os.environ, "PLIMSOLL": os.path.abspath(plim.PLIMSOLL)})
print("\n".join("# " + line for line in done.stdout.splitlines()[-12:]))
passed = re.search(r"(\d+) passed, 0 failed", done.stdout)
plim.ok(done.returncode == 0 and passed and int(passed[1]) > 0, f"every job holds its line {done.stderr.strip()[-200:]}")
plim.done()
