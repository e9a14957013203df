#!/usr/bin/env python3
# run-tests: not=tsan
"""Every seed of fuzz/corpus/<target>/ through its fuzz target, without libFuzzer: what was found once stays found.

Targets and seeds are found by their place, fuzz/fuzz_<target>.c; the build makes tests/fuzz/replay_<target> of each.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

ROOT = pathlib.Path(plim.SRC_DIR)
BUILD = pathlib.Path(os.environ.get("BUILD_DIR", "build/release"))

for source in sorted((ROOT / "fuzz").glob("fuzz_*.c")):
    target = source.stem[len("fuzz_"):]
    seeds = sorted(str(p) for p in (ROOT / "fuzz" / "corpus" / target).glob("*") if p.is_file())
    program = BUILD / "tests" / "fuzz" / f"replay_{target}"
    if not program.exists():
        plim.ok(False, f"{target}: {program} was not built")
        continue
    if not plim.ok(seeds, f"{target} has seeds in fuzz/corpus/{target}"): continue
    done = subprocess.run([str(program), *seeds], capture_output=True, text=True, errors="replace")
    good = plim.ok(done.returncode == 0, f"{target}: {len(seeds)} seeds")
    if not good: print("\n".join("# " + line for line in done.stderr.splitlines()[-40:]), flush=True)
plim.done()
