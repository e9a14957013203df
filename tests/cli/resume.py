#!/usr/bin/env python3
"""Stopping, going on, a disk that is full, checkpoints of strangers: a run loses nothing."""
import json
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


def evaluation_test(folder):
    """greedy.on: eval: the evaluation at a run's end moves no rate, and one that a stop interrupts is made up for: a run that is
    extended or resumed has the rates of a whole one."""
    keys = dict(training__lr_scheduler="greedy", training__greedy="{on: eval, patience: 0, factor: 0.5, max_lr: 0.1}", training__eval_every=4, training__steps=18,
                data__validation=f"[{folder}/corpus.txt]", training__eval_rows=4, model__num_layers=1)
    path = plim.job(folder, **keys)
    def train(*args): return plim.run("train", path, "-q", "--json", *args)
    def rates(*runs): return {e["step"]: (e["lr"], e["loss"]) for run in runs for e in plim.events(run) if e["event"] == "step"}
    whole = rates(train("--no-checkpoint").stdout)
    plim.ok(len(whole) == 18 and len({lr for lr, _ in whole.values()}) > 2, f"evaluations move the rate: {sorted({lr for lr, _ in whole.values()})}")
    for stop in (6, 8, 13):
        first = train("--steps", stop, "--overwrite")
        plim.ok(rates(first.stdout, train("--resume").stdout) == whole, f"a run of {stop} steps extended to 18")
    with open(f"{folder}/many.jsonl", "w") as f:
        for i in range(3000): f.write(json.dumps({"text": plim.CORPUS[i:i + 60]}) + "\n")
    path = plim.job(folder, **{**keys, "training__eval_rows": 3000, "data__validation": f"[{folder}/many.jsonl]", "data__shuffle_buffer": 16, "training__steps": 6})
    whole, log, stopped = rates(train("--no-checkpoint").stdout), f"{folder}/eval.jsonl", 0
    for _ in range(2):
        if os.path.exists(log): os.remove(log)
        process = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", "--log", log, "--overwrite"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not os.path.exists(log) or '"step":4,' not in open(log).read()): time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        process.wait()
        first = open(log).read()
        stopped += '"event":"eval"' not in first
        plim.ok(rates(first, train("--resume").stdout) == whole, f"stopped in an evaluation ({stopped} so far) and resumed")


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
with tempfile.TemporaryDirectory() as folder_:
    evaluation_test(folder_)
plim.done()
