"""torch for a test that holds us against it: `from with_torch import torch`, before anything else of the test.

Skips the test where torch or transformers is not installed. `make test-live` installs them into build/venv-live and runs these tests with its
Python; PYTHON_WITH_TORCH names another interpreter that has them."""
import os
import sys

other = os.environ.pop("PYTHON_WITH_TORCH", None)
if other: os.execv(other, [other, *sys.argv])
beside = os.path.dirname(os.path.abspath(sys.argv[0]))
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != beside]  # tests there have names of modules that torch imports
try:
    import torch
    import transformers
except ImportError as e:
    print(f"no torch here: {e}")
    sys.exit(77)
