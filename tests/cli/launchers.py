#!/usr/bin/env python3
"""Where the program is started by another one, or lies where make install puts it: what launchers do to options and terminals, pages that
errors refer to, and notes that name the right place."""
import argparse
import glob
import json
import os
import pty
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks


def installed(folder):
    """Every page that a text of the program names is below the documentation folder of an installation."""
    result = subprocess.run(["cmake", "--install", os.environ.get("BUILD_DIR", "build/release"), "--prefix", folder], capture_output=True, text=True)
    plim.ok(result.returncode == 0, f"make install: {result.stderr.strip()[-200:]}")
    pages = set()
    for path in glob.glob(f"{plim.SRC_DIR}/src/**/*.[ch]", recursive=True):
        pages |= set(re.findall(r"docs/[a-z_-]+\.md", open(path, encoding="utf-8").read()))
    missing = [p for p in pages if not os.path.exists(f"{folder}/share/doc/plimsoll/{p}")]
    plim.ok(len(pages) >= 5 and not missing, f"pages that are named are installed: {sorted(pages)} {missing}")


def torchrun(folder):
    """torchrun's parser looks at all arguments, also those behind the program's name, and takes --log for the beginning of --log-dir."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.error = lambda text: (_ for _ in ()).throw(ValueError(text))
    for names in (("--nnodes",), ("--nproc-per-node", "--nproc_per_node"), ("--rdzv-backend", "--rdzv_backend"), ("--rdzv-endpoint", "--rdzv_endpoint"), ("--rdzv-id", "--rdzv_id"), ("--rdzv-conf", "--rdzv_conf"),
                  ("--max-restarts", "--max_restarts"), ("--monitor-interval", "--monitor_interval"), ("--start-method", "--start_method"), ("--event-log-handler", "--event_log_handler"), ("--role",),
                  ("--log-dir", "--log_dir"), ("-r", "--redirects"), ("-t", "--tee"), ("--local-ranks-filter", "--local_ranks_filter"), ("--node-rank", "--node_rank"), ("--master-addr", "--master_addr"),
                  ("--master-port", "--master_port"), ("--local-addr", "--local_addr"), ("--logs-specs", "--logs_specs")):
        parser.add_argument(*names)
    for names in (("-m", "--module"), ("--no-python", "--no_python"), ("--run-path", "--run_path"), ("--standalone",)): parser.add_argument(*names, action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)

    def passes(*args):
        try: return parser.parse_args(["--nproc-per-node", "2", "--no-python", "plimsoll", "train", "job.yaml", *args]).training_script_args == ["train", "job.yaml", *args]
        except ValueError: return False
    options = re.findall(r"--[a-z][a-z-]+", plim.run("train", "--help").stdout.split("Examples:")[0])
    caught = sorted({o for o in options if not passes(o, "x")})
    plim.ok(len(set(options)) > 15 and caught == ["--log"], f"of train's options torchrun keeps {caught}")
    plim.ok(passes("--log-file", "x"), "--log-file is left to the program")
    path = plim.job(folder, training__steps=2)
    result = plim.run("train", path, "-q", "--no-checkpoint", "--log-file", f"{folder}/log.jsonl")
    plim.ok(result.returncode == 0 and len(plim.losses(open(f"{folder}/log.jsonl").read())) == 2, f"and writes the log {result.stderr.strip()}")


def mpirun(folder):
    if not ranks.feature("mpi"):
        plim.skip("this plimsoll was built without MPI")
        return
    path = plim.job(folder, training__steps=3, performance__torch_compile="true")
    piped = ranks.run(2, "train", path, "--no-checkpoint")
    text = piped.stdout + piped.stderr
    plim.ok(piped.returncode == 0 and "\x1b" not in text and "\r" not in text.replace("\r\n", "\n"), f"no escapes in a pipe: {text[:200]!r}")
    plim.ok(text.count("torch_compile' is accepted") == 1, "a note is told once")
    plim.ok(len(plim.losses(piped.stdout)) == 3, "a pipe gets JSON, as from one process")
    master, slave = pty.openpty()
    shown = ranks.start(2, "train", path, "--no-checkpoint", stdout=slave, stderr=slave)
    os.close(slave)
    text = b""
    try:
        while part := os.read(master, 65536): text += part
    except OSError: pass
    shown.wait()
    os.close(master)
    plim.ok(shown.returncode == 0 and text.count(b"\r\x1b[K") >= 3 and text.count(b"step 1/3") == 1, f"a terminal has one bar: {text[-300:]!r}")


def places(folder):
    path = plim.job(folder, training__steps=2, training__state_tier="disk", output__disk_dir=f"{folder}/fast")
    result = plim.run("train", path, "--no-checkpoint", "--json")
    notes = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note" and "disk tier" in e["text"]]
    plim.ok(result.returncode == 0 and len(notes) == 1 and f"below {folder}/fast," in notes[0], f"the note names the folder that is used: {notes} {result.stderr.strip()}")


def agreement(folder):
    with open(f"{folder}/ds.json", "w") as f: json.dump({"zero_optimization": {"stage": 0}, "steps_per_print": 2000}, f)
    path = plim.job(folder, training__logging_steps=10, training__deepspeed=f"{folder}/ds.json")
    shown, result = plim.plan(path)
    plim.ok(shown and shown["settings"]["training.log_every"]["value"] == "10", f"steps_per_print beside logging_steps: the job says how often {result.stderr.strip()}")
    lines = f"{folder}/short.jsonl"
    with open(lines, "w") as f:
        for i in range(60): f.write(json.dumps({"text": "short" if i % 16 else "long " * 38}) + "\n")
    def padding(**keys): return [p for p in json.loads(plim.run("doctor", plim.job(folder, data__train=f"[{lines}]", data__rows="samples", data__max_length=192, **keys), "--json").stdout)["problems"] if "is padding" in p]
    first, second = padding(), padding(data__padding="longest", data__group_by_length="false")
    plim.ok(len(first) == 1 and "longest" in first[0] and not any("longest or" in p for p in second), f"doctor does not advise what is set: {first} {second}")


for part in (installed, torchrun, mpirun, places, agreement):
    with tempfile.TemporaryDirectory() as folder_: part(folder_)
plim.done()
