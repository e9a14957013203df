#!/usr/bin/env python3
# run-tests: not=tsan
"""every byte of a checkpoint is accounted for: damage is named by resume, export, eval and generate, and the checkpoint
before it offered. Steps that cannot be are refused. Checkpoints of versions without a manifest are told by one line."""
import glob
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def overwrite(path, at, count=64):
    with open(path, "r+b") as f:
        f.seek(at)
        old = f.read(count)
        f.seek(at)
        f.write(bytes(b ^ 0x5a for b in old))


def commands(path, run, folder):
    return {"resume": ["train", path, "-q", "--resume", "--steps", 5, "--set", f"output.dir={run}"],
            "export": ["export", run, "-o", f"{folder}/exported", "--force", "-q"],
            "train": ["train", path, "-q", "--steps", 1, "--no-checkpoint", "--set", "training.save_every=0", "--set", "model.architecture=",
                      "--set", f"model.path={run}/checkpoint-00000004"],
            "eval": ["eval", path, "-q", "--rows", 1, "--set", f"output.dir={run}"],
            "generate": ["generate", run, "-p", "The", "-n", 2, "-q", "--device", "cpu"]}


def damage_tests(folder, path, good):
    newest = "checkpoint-00000004"
    files = sorted(os.path.relpath(p, f"{good}/{newest}") for p in glob.glob(f"{good}/{newest}/**", recursive=True) if os.path.isfile(p))
    plim.ok(files == ["config.json", "manifest.json", "model.safetensors", "state/model.safetensors", "trainer.json"], f"a checkpoint's files: {files}")
    listed = json.load(open(f"{good}/{newest}/manifest.json"))["files"]
    plim.ok(sorted(listed) == [f for f in files if f != "manifest.json"], "the manifest lists all the others")
    run = f"{folder}/hurt"
    hurt = f"{run}/{newest}"
    for name in files:
        size = os.path.getsize(f"{good}/{newest}/{name}")
        for what in ("bytes", "cut", "gone"):
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(good, run)
            if what == "bytes": overwrite(f"{hurt}/{name}", size // 2)
            if what == "cut": os.truncate(f"{hurt}/{name}", size - 1)
            if what == "gone": os.remove(f"{hurt}/{name}")
            wrong = []
            for command, args in commands(path, run, folder).items():
                if command in ("train", "eval", "generate") and name == "state/model.safetensors": continue  # not read there
                if command == "train" and name == "config.json": continue  # read before, and refused or the same model
                result = plim.run(*args)
                line = result.stderr.strip()
                named = name in line and "checkpoint-00000002" in line and "damaged" in line
                if result.returncode != 2 or result.stderr.count("\n") != 1 or not named: wrong.append((command, result.returncode, line))
            plim.ok(not wrong, f"{name}, {what}: named everywhere, and the one before offered {wrong[:2]}")
    shutil.rmtree(f"{run}/{newest}")
    shutil.copytree(f"{good}/{newest}", f"{run}/{newest}")
    for name in ("trainer.json", "manifest.json", "config.json"): os.remove(f"{hurt}/{name}")
    result = plim.run(*commands(path, run, folder)["resume"])
    plim.ok(result.returncode == 2 and "trainer.json: damaged: it is missing" in result.stderr, f"weights alone are a damaged checkpoint, too: {result.stderr.strip()}")
    shutil.rmtree(hurt), os.makedirs(hurt)
    result = plim.run(*commands(path, run, folder)["resume"])
    plim.ok(sorted(plim.losses(result.stdout)) == [3, 4, 5], f"an empty folder is none {result.stderr.strip()}")
    shutil.rmtree(run)
    shutil.copytree(good, run)
    for step in ("00000002", "00000004"): overwrite(f"{run}/checkpoint-{step}/model.safetensors", 2000)
    line = plim.run(*commands(path, run, folder)["resume"]).stderr.strip()
    plim.ok("no intact checkpoint" in line and "checkpoint-00000002 " not in line, f"a damaged one is not offered: {line}")
    shutil.rmtree(f"{run}/{newest}"), shutil.rmtree(f"{run}/checkpoint-00000002")
    shutil.copytree(f"{good}/{newest}", f"{run}/{newest}")
    shutil.copytree(f"{good}/checkpoint-00000002", f"{run}/checkpoint-00000002")
    shutil.copy(f"{run}/checkpoint-00000002/state/model.safetensors", f"{run}/{newest}/state/model.safetensors")
    line = plim.run(*commands(path, run, folder)["resume"]).stderr.strip()
    plim.ok("state/model.safetensors: damaged" in line, f"the state of another step: {line}")
    shutil.rmtree(run)
    shutil.copytree(good, run)
    os.rename(f"{run}/{newest}", f"{run}/checkpoint-00000009")
    line = plim.run(*commands(path, run, folder)["resume"]).stderr.strip()
    plim.ok("different steps" in line, f"a checkpoint under another name: {line}")


def rotation_tests(folder, path, good):
    """One that is damaged behind a run's back takes no whole one's place, and goes when it is old."""
    run = f"{folder}/rotated"
    for name in ("trainer.json", "manifest.json", "model.safetensors"):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(good, run)
        shutil.copytree(f"{run}/checkpoint-00000002", f"{run}/checkpoint-00000003")
        os.remove(f"{run}/checkpoint-00000003/{name}")
        seen = []
        for steps in (6, 8, 10):
            plim.run("train", path, "-q", "--resume", "--steps", steps, "--set", f"output.dir={run}", "--set", "output.keep_checkpoints=3")
            seen.append([int(n[-8:]) for n in plim.left(run)])
        plim.ok(seen == [[2, 3, 4, 6], [3, 4, 6, 8], [6, 8, 10]], f"step 3 lacks {name}, three whole ones are kept: {seen}")


def without_manifest(run, step=None):
    """As an earlier version would have written it."""
    for folder in glob.glob(f"{run}/checkpoint-*"):
        os.remove(f"{folder}/manifest.json")
        trainer = json.load(open(f"{folder}/trainer.json"))
        del trainer["format"]
        if step is not None and folder.endswith("4"): trainer["step"] = step
        with open(f"{folder}/trainer.json", "w") as f: json.dump(trainer, f)


def old_tests(folder, path, good):
    reference = plim.losses(plim.run("train", path, "-q", "--steps", 6, "--no-checkpoint").stdout)
    run = f"{folder}/old"
    for step in (1e300, -4, 4.5, "4", None, 7):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(good, run)
        without_manifest(run, step if step is not None else "null")
        result = plim.run("train", path, "-q", "--resume", "--change", "manifest", "--steps", 6, "--set", f"output.dir={run}")
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "step" in result.stderr and "checkpoint-00000002" in result.stderr, f"step {step}: {result.stderr.strip()}")
    shutil.rmtree(run)
    shutil.copytree(good, run)
    without_manifest(run)
    for command, args in commands(path, run, folder).items():
        if command == "train": continue  # a model like any other
        result = plim.run(*args)
        line = result.stderr.strip()
        fine = result.returncode == (2 if command == "resume" else 0) and result.stderr.count("\n") == 1 and "--change manifest" in line
        plim.ok(fine, f"{command} of a checkpoint without a manifest: {line}")
    result = plim.run("train", path, "-q", "--resume", "--change", "manifest", "--steps", 6, "--set", f"output.dir={run}")
    plim.ok(plim.losses(result.stdout) == {s: x for s, x in reference.items() if s > 4}, f"and it goes on when told to {result.stderr.strip()}")
    plim.ok(os.path.exists(f"{run}/checkpoint-00000006/manifest.json"), "with a manifest from then on")


with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_, training__mixed_precision="bf16", training__save_every=2)
    good_ = f"{folder_}/good"
    plim.run("train", path_, "-q", "--steps", 4, "--set", f"output.dir={good_}")
    damage_tests(folder_, path_, good_)
    rotation_tests(folder_, path_, good_)
    old_tests(folder_, path_, good_)
plim.done()
