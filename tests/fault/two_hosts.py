#!/usr/bin/env python3
# run-tests: not=asan, not=tsan, serial
"""Two hosts with a wire of 1 Gb/s between them are two ranks like any others: the same bits as on one machine, at every stage, with
exchanges beside computing and one after the other with it. Where machines have two ranks each, each may have the whole model.
How long it takes is bench/two_hosts.py's to tell.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks
import two_hosts

two_hosts.need()


def losses(result):
    return list(plim.losses(result.stdout or "").values())


def told(result):
    return (result.stderr or "").strip()[:300]


with tempfile.TemporaryDirectory() as folder, two_hosts.Hosts() as hosts:
    print(f"# wire: shaped {hosts.shaped}, delayed {hosts.delayed}")
    path = plim.job(folder, training__gradient_accumulation_steps=1, training__threads=1, training__max_grad_norm=1.0)
    base = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", 3, "--set", "training.batch_size=4", "--set"]
    here = losses(ranks.run(2, *base, "training.zero_stage=3"))
    for stage in (0, 3):
        there = hosts.run(1, *base, f"training.zero_stage={stage}")
        plim.ok(len(here) == 3 and losses(there) == here, f"stage {stage}: two hosts have one machine's bits {told(there)}")
    alone = hosts.run(1, *base, "training.zero_stage=3", env={"PLIMSOLL_LANE": "0"})
    plim.ok(losses(alone) == here, f"so they have with exchanges one after the other {told(alone)}")
    four = [hosts.run(2, *base, f"training.zero_stage={stage}", "--set", "training.batch_size=2") for stage in (3, 4)]
    near = [abs(a - b) <= 1e-6 * abs(a) for a, b in zip(*map(losses, four))]
    plim.ok(len(near) == 3 and all(near), f"two ranks on each, in pieces of all and of each host {told(four[1])}")
plim.done()
