#!/usr/bin/env python3
"""The data loader on a generated file of JSON lines: samples per second, and memory against its plan.

    bench/loader.py [--bytes 2e9] [--tokenizer FILE] [--workers 2] [--build build/release]

Builds nothing: `cmake --build build/release --target bench_loader` first. The file lies in a temporary folder and is
removed at the end. Without --tokenizer, text is bytes.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

WORDS = ("cargo hull tide harbour beam draught keel ballast anchor mast rope current gale lantern captain crew deck "
         "manifest freeboard timber iron canvas wharf channel buoy pilot signal watch storm calm north south").split()


def write(path, size):
    """Lines of about 1 kB, different enough for a tokenizer's cache not to see through them."""
    random.seed(1)
    done = 0
    with open(path, "w") as f:
        while done < size:
            block = []
            for _ in range(1000):
                words = random.choices(WORDS, k=random.randint(60, 240))
                words[::7] = [f"{w}{random.randrange(10000)}" for w in words[::7]]
                block.append(json.dumps({"id": done, "text": " ".join(words)}) + "\n")
            text = "".join(block)
            f.write(text)
            done += len(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=float, default=2e9)
    p.add_argument("--tokenizer")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--build", default="build/release")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bench.jsonl")
        write(path, args.bytes)
        print(f"file         {os.path.getsize(path) / 1e6:8.0f} MB", flush=True)
        return subprocess.run([os.path.join(args.build, "bench_loader"), path, args.tokenizer or "bytes",
                               str(args.workers)]).returncode


if __name__ == "__main__":
    sys.exit(main())
