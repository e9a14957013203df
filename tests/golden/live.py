#!/usr/bin/env python3
"""Live parity: fresh random models from the PyTorch that is installed, compared as the golden ones are.

Ten AdamW steps of a tiny model amplify the last bit: with some seeds another build of PyTorch is itself more than
1e-5 away after nine of them, so the seed is fixed (LIVE_SEED for another). Experts in bf16 have a test of their own (live_experts.py). Skips itself where torch is not installed; PYTHON_WITH_TORCH names another interpreter that has it."""
# run-tests: not=asan, not=tsan
import os
import subprocess
import sys
import tempfile

python = os.environ.get("PYTHON_WITH_TORCH", sys.executable)
if subprocess.run([python, "-c", "import torch, transformers, safetensors"], capture_output=True).returncode:
    print("torch or transformers is not installed for", python)
    sys.exit(77)
here = os.path.dirname(os.path.abspath(__file__))
seed = int(os.environ.get("LIVE_SEED", "100"))
with tempfile.TemporaryDirectory() as folder:
    failed = 0
    for script, test in ((("make_golden.py", "--draws", "0"), "test_parity"), (("make_encoders.py",), "test_encoders"), (("make_t5.py",), "test_t5")):
        subprocess.run([python, os.path.join(here, script[0]), *script[1:], "--out", folder, "--seed", str(seed)], check=True)
        print(f"# seed {seed}", flush=True)
        program = os.path.join(os.environ["BUILD_DIR"], "tests", "golden", test)
        failed |= subprocess.run([program], env={**os.environ, "GOLDEN_DIR": folder}).returncode
    sys.exit(failed)
