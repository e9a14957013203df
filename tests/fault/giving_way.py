#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""A run gives way and takes back, three causes: its budget is lowered by ctl, another process takes memory, a container's
limit is lowered under it. Losses are the undisturbed run's within rounding, and each cause changes the plan at most twice.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import machine
import plim
from steered import Run, effective, lines, one_way, replans, same_losses

MIB = 1 << 20


def budget_by_ctl(folder, path, full, calm):
    run = Run(folder, path, "--budget", full)
    run.steps(1)
    for share in (70, 50, 100):
        told = run.ctl("budget", full * share // 100)
        plim.ok(told.returncode == 0 and "planned" in told.stdout, f"ctl budget {share} %: {told.stdout.strip()} {told.stderr.strip()}")
        run.steps(1)
    refused = run.ctl("budget", "64KiB")
    plim.ok(refused.returncode == 3 and "the smallest plan" in refused.stderr and refused.stderr.count("\n") == 1,
            f"a budget that nothing fits is refused: {refused.stderr.strip()}")
    run.steps(1)
    events, _ = run.end()
    plim.ok(len(replans(events)) == 3 and effective(events) == {16}, "three re-plans, the effective batch stays 16")
    plim.ok(replans(events)[-1]["knobs"] == events[0]["knobs"], "back at the old budget the old plan is back")
    same_losses(calm, events, "budget by ctl")


def squeezed(folder, path, full, calm, what, smooth, squeeze, relax):
    """critical -> reduced -> normal -> restored, on a machine that the run and others share."""
    box = machine.Machine(4 * full, others=full)
    run = Run(folder, path, "--budget", full, "--set", f"training.dynamic_batching.smooth_transitions={smooth}",
              "--set", "monitoring.interval=0.02", env={"PLIMSOLL_MACHINE": box.root})
    box.follow(run.process.pid)
    run.steps(2)
    squeeze(box)
    if run.wait(what, lambda es: any("reducing" in e["action"] for e in lines(es))):
        run.wait(what, lambda es: lines(es)[-1]["memory"]["status"] == "normal")
        run.steps(4)
        relax(box)
        run.wait(what, lambda es: any("restored" in e["action"] and e["memory"]["level"] == "full" for e in lines(es)))
        run.steps(1)
    events, stderr = run.end()
    box.close()
    told = [e["text"] for e in lines(events)]
    print("\n".join("# " + t for t in told))
    reduced = [e for e in lines(events) if "reducing" in e["action"]]
    plim.ok(all("Status: critical - reducing batch size" in e["text"] for e in reduced) and reduced, f"{what}: the step line says so")
    plim.ok("normal" in told[0] and told[-1].endswith("Status: normal - batch size restored"), f"{what}: normal again, and restored")
    down, up = one_way(events, what)
    if smooth == "false": plim.ok(down <= 2 and up <= 2, f"{what}: at most two changes a cause")
    same_losses(calm, events, what)
    print(f"# re-plans take {[round(e['plan_ms'] + e['move_ms'], 1) for e in replans(events)]} ms")


def emergency(folder, path, full, calm):
    """Beyond the last line the run does not wait and does not only cut its batches: it plans anew under a lower line, and gives back."""
    box = machine.Machine(4 * full, others=full)
    run = Run(folder, path, "--budget", full, "--set", "monitoring.interval=0.02", "--set", "monitoring.log_every=5", env={"PLIMSOLL_MACHINE": box.root})
    box.follow(run.process.pid)
    run.steps(2)
    box.others = int(box.total * 0.985) - box.ours()
    if run.wait("emergency", lambda es: any(e["memory"]["level"] == "tight" for e in lines(es))):
        run.steps(12)
        box.others = full
        run.wait("emergency", lambda es: any("restored" in e["action"] and e["memory"]["level"] == "full" for e in lines(es)))
        run.steps(1)
    events, _ = run.end()
    box.close()
    acts = [e for e in lines(events) if e["action"] and "restored" not in e["action"]]
    plim.ok(acts and "Status: emergency - " in acts[0]["text"] and acts[0]["memory"]["level"] == "tight", f"emergency: the first answer {[e['text'] for e in acts]}")
    smaller = [e["planned_total"] for e in replans(events)]
    plim.ok(smaller and smaller[0] < events[0]["planned_total"], f"emergency: {events[0]['planned_total']} bytes become {smaller}")
    told = [e["step"] for e in lines(events) if not e["action"]]
    plim.ok(set(range(5, max(told, default=0) + 1, 5)) <= {e["step"] for e in lines(events)}, f"a step line every five steps: {told}")
    same_losses(calm, events, "emergency")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=600, training__batch_size=16, training__gradient_accumulation_steps=1,
                    data__max_length=32 if plim.SANITIZED else 64, model__hidden_size=64, model__num_layers=3)
    roomy, _ = plim.plan(path, "--budget", "8GiB")
    full = roomy["naive_bytes"] + 2 * MIB
    calm = plim.losses(plim.run("train", path, "--budget", full, "--no-checkpoint", "-q", "--steps", 120).stdout)
    budget_by_ctl(folder, path, full, calm)

    def neighbour(box): box.others = int(box.total * 0.955) - box.ours()
    def neighbour_leaves(box): box.others = full
    squeezed(folder, path, full, calm, "a neighbour", "false", lambda box: box.invite(0.96), lambda box: box.dismiss())
    squeezed(folder, path, full, calm, "a neighbour, smoothly", "true", neighbour, neighbour_leaves)

    def lower(box): box.limit = int((box.others + box.ours()) / 0.955)
    def lift(box): box.limit = box.total
    squeezed(folder, path, full, calm, "a lowered limit", "false", lower, lift)
    emergency(folder, path, full, calm)
plim.done()
