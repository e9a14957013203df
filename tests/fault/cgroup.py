#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""A run in a real control group, inside another one whose limit is lowered under it and raised again: normal, critical, reduced,
normal, restored; losses are the undisturbed run's within rounding, each cause changes the plan at most twice, and the system has
nobody to kill. Skips itself where groups cannot be made."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import control_group
import plim
from steered import Run, lines, losses, one_way, same_losses

MIB = 1 << 20
# Far enough apart that comparing plans, which takes some MiB beside the run, meets no further line, and no limit.
LINES = {"target_utilization": 0.62, "warning_threshold": 0.68, "critical_threshold": 0.74, "emergency_threshold": 0.97}
CRITICAL = 0.77  # of the lowered limit is in use


def squeezed(group, folder, path, full):
    words = [w for name, share in LINES.items() for w in ("--set", f"training.memory.{name}={share}")]
    group.limit(8 * full)
    run = Run(folder, path, "--budget", full, "--set", "training.dynamic_batching.smooth_transitions=false", "--set", "monitoring.interval=0.02",
              *words, before=group.enter)
    told = None
    try:
        run.steps(2)
        low = int(group.used() / CRITICAL) & -4096
        group.limit(low)
        if run.wait("a lowered limit", lambda es: any("reducing" in e["action"] for e in lines(es))):
            run.wait("normal again", lambda es: lines(es)[-1]["memory"]["status"] == "normal")
            run.steps(4)
            told = run.ctl("status", "--json").stdout
            group.limit(8 * full)
            run.wait("restored", lambda es: any("restored" in e["action"] and e["memory"]["level"] == "full" for e in lines(es)))
            run.steps(1)
        events, stderr = run.end()
    finally:
        if run.process.poll() is None: run.process.kill()
        run.process.wait()
    plim.ok(run.process.returncode == 130 and group.kills() == 0, f"it goes on until it is stopped, and nobody was killed: {stderr.strip()}")
    plim.ok(told and '"container"' in told and f'"total":{low}' in told.replace(" ", ""), f"the outer group's limit of {low} is what it sees")
    return events


def check(events):
    texts = [e["text"] for e in lines(events)]
    print("\n".join("# " + t for t in texts))
    reduced = [i for i, e in enumerate(lines(events)) if "reducing" in e["action"]]
    plim.ok("Status: normal" in texts[0] and reduced and all("Status: critical - reducing batch size" in texts[i] for i in reduced), "normal, critical, reduced")
    plim.ok(any(t.endswith("Status: normal") for t in texts[reduced[-1]:]) and texts[-1].endswith("Status: normal - batch size restored"), "normal, restored")
    plim.ok(all(e["memory"]["strain"] == "a lowered limit" for e in lines(events) if e["memory"]["status"] == "critical"), "what strains it is named")
    down, up = one_way(events, "a real group")
    plim.ok(down <= 2 and up <= 2, f"{down} changes down, {up} up")


def main():
    with control_group.Group() as group, tempfile.TemporaryDirectory() as folder:
        print(f"# cgroup v{group.version}: {group.inner}")
        path = plim.job(folder, training__steps=3000, training__batch_size=16, training__gradient_accumulation_steps=1, data__max_length=96)
        roomy, _ = plim.plan(path, "--budget", "8GiB")
        events = squeezed(group, folder, path, roomy["naive_bytes"] + 2 * MIB)
        check(events)
        calm = plim.losses(plim.run("train", path, "--budget", roomy["naive_bytes"] + 2 * MIB, "--no-checkpoint", "--overwrite", "-q", "--steps", max(losses(events))).stdout)
        same_losses(calm, events, "a real group")
        outer = group.folder
    plim.ok(not os.path.exists(outer), "the groups are gone")
    plim.done()


main()
