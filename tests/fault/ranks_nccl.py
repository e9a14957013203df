#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Ranks whose devices exchange by themselves: the fake card (tests/support/fake_device.h) with a library that stands for NCCL
(tests/support/fake_nccl.c). The same bits as through host memory, in recorded steps, and every way in which the library can fail is one
line and the end of all ranks.
"""
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks

ranks.need_mpi()
BUILD = os.environ.get("BUILD_DIR", "build/release")
plim.PLIMSOLL = os.path.join(BUILD, "tests/fake_card/plimsoll")
LIBRARY = os.path.abspath(os.path.join(BUILD, "tests/fake_nccl.so"))
MPI = os.path.abspath(os.path.join(BUILD, "plimsoll-mpi.so"))


def losses(result):
    return list(plim.losses(result.stdout or "").values())


def lines(result):
    return [l for l in (result.stderr or "").splitlines() if l.startswith("plimsoll:")]


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__device="cuda", training__gradient_accumulation_steps=2, training__max_grad_norm=1.0)
    base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", 3, "--set", "training.micro_batch_size=2", "--set"]

    def run(stage, library, count=2, **env):
        return ranks.run(count, *base, f"training.zero_stage={stage}", env={"PLIMSOLL_NCCL": library, "PLIMSOLL_MPI": MPI, "FAKE_NCCL_DIR": folder, **env})

    for stage, count in ((0, 2), (1, 3), (2, 2), (3, 3)):
        host, card = run(stage, "0", count), run(stage, LIBRARY, count)
        plim.ok(len(losses(card)) == 3 and losses(card) == losses(host), f"stage {stage}, {count} ranks: the bits of host memory {card.stderr.strip()[:300]}")
    nodes = [run(4, library, 4, PLIMSOLL_RANKS_PER_NODE="2") for library in ("0", LIBRARY)]
    plim.ok(len(losses(nodes[0])) == 3 and losses(nodes[0]) == losses(nodes[1]), f"stage 4, two nodes of two {nodes[1].stderr.strip()[:300]}")
    left = [name for name in os.listdir(folder) if name[0].isdigit()]
    plim.ok(not left, f"everything that was sent was taken {left[:3]}")

    def one(rank, mode, others="", stage=3):
        env = {"PLIMSOLL_NCCL": LIBRARY, "PLIMSOLL_MPI": MPI, "FAKE_NCCL_DIR": folder, "PLIMSOLL_PATIENCE": "4"}
        args = [*base, f"training.zero_stage={stage}"]
        parts = [(1, {**env, "FAKE_NCCL": mode if r == rank else others}, args, None) for r in range(2)]
        began = time.monotonic()
        return ranks.ended(ranks.apart(parts)), time.monotonic() - began

    for mode, said in (("version", "NCCL is version 2408; install 2.7 or newer"), ("init", "NCCL: rank 0 of 2: joining: internal error"),
                       ("async", "NCCL: exchange: internal error"), ("group", "internal error")):
        bad = run(3, LIBRARY, FAKE_NCCL=mode)
        plim.ok(bad.returncode not in (0, None) and said in bad.stderr and len(lines(bad)) == 1, f"{mode}: {lines(bad)}")
    # One rank fails, and the others wait for it; the communicator hangs for all.
    for name, rank, mode, others, said in (("joining fails on one rank", 1, "init", "init-waits", "joining: "),
                                           ("joining hangs on one rank", 1, "init-waits", "init-waits", "joining: not all ranks came within 2 s"),
                                           ("an error in a step", 1, "async:40", "gives-up", "rank 1 of 2: NCCL: exchange: internal error"),
                                           ("an error in a step, on all", 1, "async:40", "async:40", "NCCL: exchange: internal error"),
                                           ("a call that hangs", 1, "group-waits:9", "gives-up", "answered within 4 s"),
                                           ("a communicator that hangs", 1, "hangs:40", "gives-up", "within 4 s")):
        bad, took = one(rank, mode, others)
        plim.ok(bad.returncode not in (0, None) and len(lines(bad)) == 1 and said in lines(bad)[0] and took < 60, f"{name}: after {took:.1f} s {lines(bad)}")
    other = run(3, "libm.so.6")
    plim.ok(other.returncode not in (0, None) and len(lines(other)) == 1 and "NCCL's library has no ncclGetVersion" in other.stderr, f"another library: {lines(other)}")
    missing = run(3, os.path.join(folder, "none.so"))
    plim.ok(missing.returncode not in (0, None) and missing.stderr.count("NCCL is not installed") == 1, f"no library: {missing.stderr.strip()[:200]}")
    shared = run(3, LIBRARY, FAKE_CARD="cards=1")
    plim.ok(shared.returncode not in (0, None) and len(lines(shared)) == 1 and "start one rank per card" in lines(shared)[0], f"ranks that share a card: {lines(shared)}")
    shared = run(3, "0", FAKE_CARD="cards=1")
    plim.ok(len(losses(shared)) == 3, f"ranks that share a card, through host memory: {shared.stderr.strip()[:200]}")
plim.done()
