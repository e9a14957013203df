#!/usr/bin/env python3
"""Stopping, going on, a disk that is full, checkpoints of strangers: a run loses nothing."""
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def snapshot(folder):
    """Names and bytes of everything below a folder but what watchers read, which grows whatever is saved."""
    out = {}
    for root, _, files in os.walk(folder):
        for name in files:
            if root == folder and name in plim.WATCHED: continue
            with open(os.path.join(root, name), "rb") as f: out[os.path.relpath(os.path.join(root, name), folder)] = f.read()
    return out


def stop_test(folder, path):
    """SIGTERM in the middle, --resume, and the same losses as without."""
    steps = 300
    cosine = ["--set", "training.lr_scheduler=cosine"]
    whole = plim.run("train", path, "-q", *cosine, "--steps", steps, "--set", f"output.dir={folder}/whole")
    reference = plim.losses(whole.stdout)
    plim.ok(whole.returncode == 0 and len(reference) == steps, f"a whole run {whole.stderr.strip()}")
    for number, signal_ in enumerate((signal.SIGTERM, signal.SIGINT)):
        run_dir, log = f"{folder}/stopped{number}", f"{folder}/stopped{number}.jsonl"
        process = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", *cosine, "--steps", str(steps), "--log", log, "--set", f"output.dir={run_dir}"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and (not os.path.exists(log) or '"step":5,' not in open(log).read()): time.sleep(0.002)
        process.send_signal(signal_)
        out, err = process.communicate()
        seen = plim.losses(open(log).read())
        plim.ok(process.returncode == 130 and err.count("\n") == 1 and "--resume" in err, f"{signal_.name}: exit 130: {err.strip()}")
        plim.ok(5 <= len(seen) < steps, f"{signal_.name}: stopped after step {len(seen)}")
        saved = f"{run_dir}/checkpoint-{len(seen):08d}"
        plim.ok(os.path.exists(f"{saved}/trainer.json"), f"{signal_.name}: a checkpoint of that step is there")
        more = plim.run("train", path, "-q", *cosine, "--steps", steps, "--resume", "--log", log, "--set", f"output.dir={run_dir}")
        after = plim.losses(open(log).read())
        plim.ok(more.returncode == 0 and after == reference, f"{signal_.name}: resumed, every loss is the whole run's {more.stderr.strip()}")
        a, b = snapshot(f"{folder}/whole/checkpoint-{steps:08d}"), snapshot(f"{run_dir}/checkpoint-{steps:08d}")
        plim.ok(a and a == b, f"{signal_.name}: and so are the last checkpoint's bytes")


def no_room(run, what):
    """A first checkpoint is saved; then there is no room for the second. `run` starts the program without room."""
    folder, path, reference = run["folder"], run["path"], run["reference"]
    shutil.rmtree(f"{folder}/full", ignore_errors=True)
    out = run["dir"]
    first = plim.run("train", path, "-q", "--steps", 3, "--set", f"output.dir={out}")
    before = snapshot(out)
    plim.ok(first.returncode == 0 and before, f"{what}: a first checkpoint")
    result = run["start"](["train", path, "-q", "--steps", "6", "--resume", "--set", f"output.dir={out}", "--set", "training.save_every=5"])
    line = result.stderr.strip()
    code = run.get("code", 2)
    plim.ok(result.returncode == code and result.stderr.count("\n") == 1 and "checkpoint" in line, f"{what}: exit {code}: {line}")
    plim.ok(snapshot(out) == before, f"{what}: the old checkpoint is intact and nothing else is left {sorted(set(snapshot(out)) ^ set(before))}")
    run["free"]()
    again = plim.run("train", path, "-q", "--steps", 6, "--resume", "--set", f"output.dir={out}")
    losses = plim.losses(again.stdout)
    plim.ok(again.returncode == 0 and losses == {k: v for k, v in reference.items() if k > 3}, f"{what}: a resume from it goes on as if nothing had been")


def full_disk_tests(folder, path):
    reference = plim.losses(plim.run("train", path, "-q", "--steps", 6, "--set", f"output.dir={folder}/reference").stdout)
    base = {"folder": folder, "path": path, "reference": reference, "free": lambda: None}

    def faulty(args):
        return plim.run(*args, env={"PLIMSOLL_FAULT": "write:6"})

    def limited(args):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails instead of killing
            resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
        return subprocess.run([plim.PLIMSOLL, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=limit)

    no_room({**base, "dir": f"{folder}/fault", "start": faulty}, "a failing write")
    no_room({**base, "dir": f"{folder}/limit", "start": limited}, "a limit on file sizes")

    mount = f"{folder}/mount"
    os.mkdir(mount)
    size = 3 * sum(len(data) for data in snapshot(f"{folder}/reference").values())
    mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], capture_output=True).returncode == 0
    if not mounted:
        plim.skip("a full disk: mounting a small tmpfs is not allowed here")
        return
    try:
        def fill(args):
            with open(f"{mount}/ballast", "wb", buffering=0) as f:
                try:
                    while f.write(bytes(4096)): pass
                except OSError:
                    pass
            os.truncate(f"{mount}/ballast", max(0, os.path.getsize(f"{mount}/ballast") - 60000))
            return plim.run(*args)
        no_room({**base, "dir": f"{mount}/run", "start": fill, "free": lambda: os.remove(f"{mount}/ballast"), "code": 3}, "a full disk")
    finally:
        subprocess.run(["umount", mount])


def stranger_tests(folder, path):
    out = f"{folder}/strange"
    plim.run("train", path, "-q", "--steps", 2, "--set", f"output.dir={out}")
    before = snapshot(out)
    for name, change, word in [("width", "model.hidden_size=128", "hidden_size"), ("layers", "model.num_layers=2", "num_layers"),
                               ("precision", "training.mixed_precision=fp32", "mixed_precision"), ("optimizer", "training.optimizer=sgd", "optimizer")]:
        result = plim.run("train", path, "-q", "--resume", "--set", f"output.dir={out}", "--set", change)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and word in result.stderr and "output.dir" in result.stderr,
                f"a checkpoint of another {name}: {result.stderr.strip()}")
    plim.ok(snapshot(out) == before, "and it is left alone")
    shutil.copytree(out, f"{folder}/damaged")
    newest = f"{folder}/damaged/checkpoint-00000002"
    os.truncate(f"{newest}/state/model.safetensors", 1000)
    result = plim.run("train", path, "-q", "--resume", "--set", f"output.dir={folder}/damaged")
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "state" in result.stderr, f"a damaged checkpoint: {result.stderr.strip()}")
    fresh = plim.run("train", path, "-q", "--resume", "--steps", 2, "--set", f"output.dir={folder}/fresh")
    plim.ok(fresh.returncode == 0 and len(plim.losses(fresh.stdout)) == 2, "--resume without a checkpoint starts anew")
    done = plim.run("train", path, "-q", "--resume", "--steps", 2, "--set", f"output.dir={folder}/fresh")
    plim.ok(done.returncode == 0 and not plim.losses(done.stdout), "a finished run has nothing to do")


with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_, training__mixed_precision="bf16")
    stop_test(folder_, path_)
    full_disk_tests(folder_, path_)
    stranger_tests(folder_, path_)
plim.done()
