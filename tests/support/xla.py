"""XLA's CPU plug-in, for tests that run on it."""
import os
import sys

QUICK = "--xla_backend_optimization_level=0"  # XLA_FLAGS: programs compile in half the time


def need_plugin():
    """Its path. Ends the test as skipped where there is none: tools/deps.sh test fetches it; PLIMSOLL_TEST_PJRT names another."""
    path = os.environ.get("PLIMSOLL_TEST_PJRT", os.path.join(os.environ.get("SRC_DIR", "."), "build/pjrt/xla_cpu_pjrt.so"))
    if not os.path.exists(path):
        print(f"skipped: there is no {path}; tools/deps.sh test fetches it")
        sys.exit(77)
    return os.path.abspath(path)
