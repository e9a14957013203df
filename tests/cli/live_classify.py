#!/usr/bin/env python3
"""plimsoll classify against the transformers that is installed: fresh models and texts, of LIVE_SEED and LIVE_COUNT seeds from there on (1)."""
# run-tests: not=asan, not=tsan
import os
import subprocess
import sys
import tempfile

python = os.environ.get("PYTHON_WITH_TORCH", sys.executable)
if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True).returncode:
    print("torch or transformers is not installed for", python)
    sys.exit(77)
here, first, failed = os.path.dirname(os.path.abspath(__file__)), int(os.environ.get("LIVE_SEED", "100")), 0
for seed in range(first, first + int(os.environ.get("LIVE_COUNT", "1"))):
    with tempfile.TemporaryDirectory() as folder:
        expected = f"{folder}/expected.json"
        subprocess.run([python, f"{here}/../golden/make_classify.py", "--out", expected, "--seed", str(seed)], check=True, stderr=subprocess.DEVNULL)
        print(f"# seed {seed}", flush=True)
        failed |= subprocess.run([sys.executable, f"{here}/classify.py"], env={**os.environ, "CLASSIFY_EXPECTED": expected, "CLASSIFY_SEED": str(seed)}).returncode
sys.exit(failed)
