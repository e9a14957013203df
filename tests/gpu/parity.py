#!/usr/bin/env python3
# run-tests: serial, not=asan, not=tsan
"""Logits, gradients and AdamW losses on the GPU against PyTorch's numbers (tests/golden/test_parity.c)."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

plim.need_gpu()
program = os.path.join(os.environ["BUILD_DIR"], "tests", "golden", "test_parity")
sys.exit(subprocess.run([program], env={**os.environ, "TEST_DEVICE": "cuda"}).returncode)
