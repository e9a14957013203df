#!/usr/bin/env python3
# run-tests: serial, timeout=300, not=asan, not=tsan
"""A neighbour takes the card's memory until it is critical: the run takes smaller micro-batches and lives; the neighbour leaves, and
the run takes back what it gave. Losses are the undisturbed run's within what bf16 rounds, one change each way."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim
from steered import Run, lines, one_way, replans, same_losses

CRITICAL = 0.955  # of the card: past the line of 0.95

plim.need_gpu()
with tempfile.TemporaryDirectory() as folder, gpu.Neighbour() as neighbour:
    # Activations of 64 rows at once are a sixth of a large card: enough to give way with.
    path = plim.job(folder, **{**gpu.MIDDLE, "data__max_length": 1024, "training__batch_size": 64,
                               "training__gradient_accumulation_steps": 1, "training__steps": 2000})
    calm = plim.losses(plim.run("train", path, "--no-checkpoint", "-q", "--steps", 200).stdout)
    card = gpu.card_total()
    run = Run(folder, path)
    run.steps(3)
    neighbour.leave(card * (1 - CRITICAL))
    if run.wait("critical", lambda es: any("reducing" in e["action"] for e in lines(es))):
        run.wait("normal again", lambda es: lines(es)[-1]["memory"]["status"] == "normal")
        run.steps(4)
        neighbour.drop()
        run.wait("restored", lambda es: any("restored" in e["action"] and e["memory"]["level"] == "full" for e in lines(es)))
        run.steps(2)
    events, stderr = run.end()
    told = [e["text"] for e in lines(events)]
    print("\n".join("# " + t for t in told))
    plim.ok(any("Status: critical - reducing batch size" in t for t in told), f"the step line says so {stderr.strip()[-200:]}")
    plim.ok("normal" in told[0] and told[-1].endswith("Status: normal - batch size restored"), "normal again, and restored")
    down, up = one_way(events, "a neighbour on the card")
    plim.ok(down <= 2 and up <= 2, f"at most two changes a cause ({down} down, {up} up)")
    same_losses(calm, events, "a neighbour on the card", limit=5e-3)
    print(f"# re-plans take {[(round(e['plan_ms'], 1), round(e['move_ms'], 1)) for e in replans(events)]} ms (plan, move)")
plim.done()
