#!/usr/bin/env python3
# run-tests: serial, not=asan, not=tsan
"""A neighbour fills the card up to the planned bytes: the run does not notice. When it leaves less, the run says so in
one line before anything is computed."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim

MIB = gpu.MIB
MARGIN, TOO_MUCH = 64 * MIB, 512 * MIB

plim.need_gpu()
with tempfile.TemporaryDirectory() as folder, gpu.Neighbour() as neighbour:
    # Everything is pinned, so the plan is the same whatever the driver tells of the context beside a neighbour; the
    # budget leaves room for what it may be taken for.
    path = plim.job(folder, **{**gpu.MIDDLE, **gpu.PINNED, "training__steps": 8, "training__recompute": "selective",
                               "training__state_tier": "device", "training__grad_tier": "device",
                               "training__optimizer_in_backward": "false"})
    planned, result = plim.plan(path)
    plim.ok(planned and planned["fits"], f"plans {result.stderr.strip()}")
    plim.ok("free" in neighbour.ready, f"the neighbour is on the card {neighbour.ready}")
    if planned and "free" in neighbour.ready:
        total = planned["peak_bytes"]["total"]
        limit = ["--budget", total + 512 * MIB]
        calm = gpu.train(path, *limit)
        full = neighbour.leave(total + MARGIN)
        plim.ok(full.get("free", 1 << 60) <= total + MARGIN + 4 * MIB,
                f"the neighbour leaves {full.get('free', 0) / MIB:.0f} MiB for a plan of {total / MIB:.0f} MiB {full.get('error', '')}")
        crowded = gpu.train(path, *limit)
        gpu.same(calm.losses(), crowded.losses(), "beside the neighbour")
        arenas = [run.of("plan")[0]["arena_bytes"] if run.of("plan") else 0 for run in (calm, crowded)]
        plim.ok(arenas[0] == arenas[1], f"with the same plan ({arenas[0] / MIB:.0f} MiB of arena)")
        more = neighbour.take(TOO_MUCH)
        plim.ok("error" not in more, f"the neighbour takes {TOO_MUCH / MIB:.0f} MiB more {more.get('error', '')}")
        refused = gpu.Training(path, *limit)
        plim.ok(refused.code == 4 and refused.stderr.startswith("plimsoll: ") and "\n" not in refused.stderr and not refused.of("step"),
                f"too little left: exit {refused.code}: {refused.stderr}")
        neighbour.drop()
        again = gpu.train(path, *limit)
        gpu.same(calm.losses(), again.losses(), "when it has gone back a little")
plim.done()
