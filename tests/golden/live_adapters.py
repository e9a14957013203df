#!/usr/bin/env python3
"""Live parity of adapters: every case of make_adapters.py from the PEFT that is installed, compared as the committed ones are;
then folders that we wrote, read by PEFT. Skips itself where PEFT is not installed; PYTHON_WITH_TORCH names another interpreter."""
# run-tests: not=asan, not=tsan, slow, timeout=900
import os
import subprocess
import sys
import tempfile

python = os.environ.get("PYTHON_WITH_TORCH", sys.executable)
if subprocess.run([python, "-c", "import torch, transformers, safetensors, peft"], capture_output=True).returncode:
    print("torch, transformers or peft is not installed for", python)
    sys.exit(77)
here = os.path.dirname(os.path.abspath(__file__))
program = os.path.join(os.environ["BUILD_DIR"], "tests", "golden", "test_adapters")
with tempfile.TemporaryDirectory() as folder:
    for name in os.listdir(here):
        if os.path.isdir(os.path.join(here, name)) and not name.startswith("adapter-"): os.symlink(os.path.join(here, name), os.path.join(folder, name))
    subprocess.run([python, os.path.join(here, "make_adapters.py"), "--out", folder], check=True, stderr=subprocess.DEVNULL)
    cases = sorted(name for name in os.listdir(folder) if name.startswith("adapter-"))
    print(f"# {len(cases)} cases", flush=True)
    sys.exit(subprocess.run([program, *cases], env={**os.environ, "GOLDEN_DIR": folder}).returncode)
