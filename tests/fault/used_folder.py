#!/usr/bin/env python3
# run-tests: not=tsan
"""An output folder with a past, and a re-plan that fails half-way: the newest good state is what a resume finds."""
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def content(folder, name="model.safetensors"):
    with open(f"{folder}/{name}", "rb") as f:
        return f.read()


def folder_tests(folder, path):
    out = f"{folder}/run"
    train = lambda *more: plim.run("train", path, "-q", "--set", "training.save_every=2", *more)
    train("--steps", 4, "--set", "training.seed=8")
    old = content(f"{out}/checkpoint-00000004")
    os.makedirs(f"{out}/.tmp-checkpoint-00000009/state")
    reference = plim.losses(train("--steps", 8, "--set", f"output.dir={folder}/other").stdout)
    again = train("--steps", 1)
    plim.ok(again.returncode == 2 and again.stderr.count("\n") == 1 and all(w in again.stderr for w in ("step 4", "--resume", "--overwrite", "output.dir")),
            f"a new run in a used folder is refused: {again.stderr.strip()}")
    plim.ok(content(f"{out}/checkpoint-00000004") == old, "and nothing in it has changed")
    both = train("--steps", 1, "--overwrite", "--resume")
    plim.ok(both.returncode == 2 and both.stderr.count("\n") == 1, f"--overwrite and --resume exclude each other: {both.stderr.strip()}")
    trial = train("--steps", 1, "--no-checkpoint", "--set", "training.save_every=0")
    plim.ok(trial.returncode == 0 and content(f"{out}/checkpoint-00000004") == old, f"a run that saves nothing leaves a used folder alone {trial.stderr.strip()}")
    few = train("--steps", 1, "--overwrite", "--set", "training.save_every=0")
    plim.ok(few.returncode == 0 and plim.left(out) == ["checkpoint-00000001"], f"--overwrite: of the old run's higher steps nothing is left: {plim.left(out)}")
    again = train("--steps", 4, "--overwrite")
    plim.ok(again.returncode == 0 and content(f"{out}/checkpoint-00000004") != old, "a fresh run replaces an old run's checkpoint of the same step")
    plim.ok(plim.left(out) == ["checkpoint-00000002", "checkpoint-00000004"], f"and leaves nothing else behind: {plim.left(out)}")
    shutil.copytree(f"{out}/checkpoint-00000004", f"{out}/checkpoint-00000006")
    os.remove(f"{out}/checkpoint-00000006/trainer.json")
    more = train("--steps", 8, "--resume")
    plim.ok(more.returncode == 2 and "checkpoint-00000006/trainer.json: damaged" in more.stderr, f"a newest folder that lacks a file is not passed over: {more.stderr.strip()}")
    precious = f"{folder}/precious"
    os.rename(f"{out}/checkpoint-00000006", precious)
    more = train("--steps", 8, "--resume")
    plim.ok(plim.losses(more.stdout) == {s: x for s, x in reference.items() if s > 4}, f"without it the run goes on {more.stderr.strip()}")
    plim.ok(content(f"{out}/checkpoint-00000008") == content(f"{folder}/other/checkpoint-00000008"), "and the end is the whole run's")
    fewer = train("--steps", 3, "--resume")
    plim.ok(fewer.returncode == 0 and not plim.losses(fewer.stdout), "fewer steps than the checkpoint has: nothing to do")
    shutil.rmtree(f"{out}/checkpoint-00000006")
    os.symlink(precious, f"{out}/checkpoint-00000006")
    train("--steps", 12, "--resume")
    plim.ok(plim.left(out) == ["checkpoint-00000010", "checkpoint-00000012"] and os.path.exists(f"{precious}/model.safetensors"),
            f"pruning removes a link, not what it points to: {plim.left(out)}")


def replan_tests(folder, path):
    pins = ["--set", "training.micro_batch_size=1", "--set", "training.recompute=full"]
    totals = {}
    for tier in ("device", "disk"):
        planned, _ = plim.plan(path, "--budget", "1GiB", *pins, "--set", f"training.state_tier={tier}")
        totals[tier] = planned["peak_bytes"]["total"]
    room, tight = totals["device"] + (4 << 20), (totals["device"] + totals["disk"]) // 2
    train = lambda out, *more, env=None: plim.run("train", path, "-q", "--steps", 6, *pins, "--budget", room, "--set", f"output.dir={folder}/{out}", *more, env=env)
    calm = train("calm")
    moved = train("moved", "--budget-at", f"3={tight}", "--budget-at", f"5={room}")
    tiers = [e["knobs"]["state_tier"] for e in plim.events(moved.stdout) if e["event"] == "replan" and "knobs" in e]
    plim.ok(tiers == ["disk", "device"], f"state goes to disk and comes back: {tiers} {moved.stderr.strip()}")
    plim.ok(plim.losses(moved.stdout) == plim.losses(calm.stdout) and len(plim.losses(calm.stdout)) == 6, "not a bit of a loss changes")
    plim.ok(content(f"{folder}/moved/checkpoint-00000006", "state/model.safetensors") == content(f"{folder}/calm/checkpoint-00000006", "state/model.safetensors"), "and so are the moments")
    for write in (1, 3):
        out = f"failed{write}"
        failed = train(out, "--budget-at", f"4={tight}", env={"PLIMSOLL_FAULT": f"write:{write}"})
        there = os.path.exists(f"{folder}/{out}/checkpoint-00000003/trainer.json")
        plim.ok(failed.returncode != 0 and failed.stderr.count("\n") == 1 and there, f"write {write} fails in a re-plan: the work so far is saved: {failed.stderr.strip()}")
        more = train(out, "--resume")
        plim.ok(plim.losses(more.stdout) == {s: x for s, x in plim.losses(calm.stdout).items() if s > 3}, "and a resume goes on as if nothing had been")


with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_, training__mixed_precision="bf16")
    folder_tests(folder_, path_)
    told_ = plim.run("doctor", path_)
    plim.ok("used" in told_.stdout or "--resume" in told_.stdout, f"doctor names it, and reads nothing that is gone: {told_.stdout[:100]!r} {told_.stderr[:200]}")
    replan_tests(folder_, plim.job(folder_, training__mixed_precision="bf16", model__hidden_size=192, model__intermediate_size=512))
plim.done()
