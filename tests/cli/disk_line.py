#!/usr/bin/env python3
"""disk is a line of the plan. What a run writes (offloaded tensors, and one checkpoint more than it keeps) is held
against what is free below output.dir, by plan and by train, before the first step."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import encoder_jobs
import plim

FULL = {"PLIMSOLL_FAULT": "disk:1"}  # the first look at free space finds none


def tree_bytes(path):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)


def small_disk(folder):
    """A file system of 3 MiB, where this process may mount one."""
    place = os.path.join(folder, "small")
    os.mkdir(place)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", place], capture_output=True)
    return place if done.returncode == 0 else None


with tempfile.TemporaryDirectory() as folder:
    for objective in ("token_labels", "sentence_pairs"):
        ample, _ = plim.plan(encoder_jobs.job(os.path.join(folder, objective), objective))
        plim.ok(ample["peak_bytes"]["disk"] == 0, f"{objective}: what fits into memory does not go to disk")

with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__save_every=2, training__steps=8, training__state_tier="disk")
    plan, result = plim.plan(path)
    disk = plan["disk"]
    plim.ok(plan["fits"] and disk["holds_plan"] and disk["free_bytes"] > 0, f"the plan has its line: {disk}")
    plim.ok(disk["checkpoints"] == 3 and disk["bytes"] == disk["tier"] + 3 * disk["checkpoint"] and disk["tier"] == plan["peak_bytes"]["disk"] > 0,
            "two checkpoints stay and a third is written beside the tier")
    once, _ = plim.plan(path, "--set", "training.save_every=0")
    plim.ok(once["disk"]["checkpoints"] == 1, "one that is only saved at the end needs no more")
    there, _ = plim.plan(path, "--device", "a10g", "--set", "training.state_tier=host")
    plim.ok("disk" not in there, "the disk of another machine is unknown")
    text = plim.run("plan", path, "-q")
    plim.ok("on disk" in text.stdout and "3 checkpoints of" in text.stdout, "the text tells")
    plim.run("plan", path, "-q", "--html", f"{folder}/plan.html")
    plim.ok("3 checkpoints of" in open(f"{folder}/plan.html").read(), "so does the page")

    for args in (["plan", path, "-q"], ["plan", path, "-q", "--json"], ["train", path, "-q"]):
        full = plim.run(*args, env=FULL)
        plim.ok(full.returncode == 3 and "output.dir" in full.stderr and "missing" in full.stderr and full.stderr.count("\n") == 1
                and "fits: " not in full.stdout and '"fits": true' not in full.stdout, f"a full disk, {args[0]}: {full.stderr.strip()[:200]}")
    plim.ok(not os.path.exists(f"{folder}/run"), "train has written nothing")

    done = plim.run("train", path, "-q")
    size = max(tree_bytes(os.path.join(folder, "run", name)) for name in plim.left(f"{folder}/run"))
    plim.ok(done.returncode == 0 and size <= disk["checkpoint"] <= size + (256 << 10), f"a checkpoint takes {size}, planned {disk['checkpoint']}")
    again, _ = plim.plan(path)
    plim.ok(again["disk"]["checkpoints"] == 1, "the two that are there make room for new ones")

    place = small_disk(folder)
    if not place:
        plim.skip("a small file system: this process may not mount one")
    else:
        try:
            tight = ["--set", f"output.dir={place}/runs/a", "--set", "output.keep_checkpoints=1", "--set", "training.state_tier=device"]
            before, result = plim.plan(path, *tight, "--set", "output.keep_checkpoints=3")
            refused = plim.run("train", path, "-q", *tight, "--set", "output.keep_checkpoints=3")
            plim.ok(result.returncode == 3 and refused.returncode == 3 and not any(files for _, _, files in os.walk(place)), f"a small disk: {refused.stderr.strip()[:200]}")
            last = ["--set", "training.optimizer=sgd"]
            fits, result = plim.plan(path, *tight, *last)
            done = plim.run("train", path, "-q", *tight, *last)
            plim.ok(result.returncode == 0 and done.returncode == 0 and fits["disk"]["bytes"] <= 3 << 20, f"what fits it trains {result.stderr} {done.stderr}")
        finally:
            subprocess.run(["umount", place], check=False)
plim.done()
