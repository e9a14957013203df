#!/usr/bin/env python3
"""training.device: what is no device, what is not here, and falling back to the CPU. Runs with and without a GPU."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


def gpu_here():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def ask(command, device, env=None):
    more = ["--no-checkpoint"] if command == "train" else []
    return plim.run(command, path, "-q", "--json", "--set", f"training.device={device}", *more, env=env)


def refused(result, words, text):
    """Exit 2 and one line that has all these words."""
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and result.stderr.startswith(f"plimsoll: {path}: ")
            and all(word in result.stderr for word in words) and not result.stdout, f"{text}: {result.stderr.strip()}")


built, here = plim.has_cuda(), gpu_here()
print(f"# CUDA {'is' if built else 'is not'} in the program; there is {'a' if here else 'no'} GPU")
with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=2)
    for name in ("tpux", "pjrt:", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999", "cpu:0", ""):
        refused(ask("plan", name), ["'training.device'", f"'{name}'", "cpu, cuda, cuda:1"], f"'{name}' is no device")
    refused(ask("train", "gpu"), ["'training.device'"], "train says the same")

    why = ["NVIDIA", "training.device: cpu"] if built else ["without CUDA", "nvcc", "training.device: cpu"]
    for command in ("plan", "train"):
        refused(ask(command, "cuda", HIDDEN), why, f"{command} on a GPU that is hidden or not there")
    first = ask("plan", "cuda")
    usable = built and here and first.returncode == 0
    if built and here and not usable:
        refused(first, ["training.device: cpu"], "a GPU this program cannot use")
    elif usable:
        refused(ask("train", "cuda:99"), ["no GPU 99", "this machine has"], "the hundredth GPU")
    else:
        refused(ask("train", "cuda:99"), why, "the hundredth GPU of none")

    # generate has an option of its own; the model is what the first steps left
    plim.run("train", path, "-q", "--set", "training.device=cpu", "--set", f"output.dir={folder}/made")
    write = lambda *args, **more: plim.run("generate", f"{folder}/made", "-p", "The ", "-n", 4, "-t", 0, "-q", *args, **more)
    no = write("--device", "gpu")
    plim.ok(no.returncode == 2 and "'--device': 'gpu' is no device" in no.stderr and no.stderr.count("\n") == 1, f"generate: {no.stderr.strip()}")
    no = write("--device", "cuda", env=HIDDEN)
    plim.ok(no.returncode == 2 and "--device cpu" in no.stderr and no.stderr.count("\n") == 1, f"generate on a GPU that is not there: {no.stderr.strip()}")
    text = write("--device", "cpu")
    plim.ok(text.returncode == 0 and text.stdout and text.stdout == write(env=HIDDEN).stdout, f"generate falls back to the CPU {text.stderr.strip()}")

    cpu = plim.losses(ask("train", "cpu").stdout)
    fallen = ask("train", "auto", HIDDEN)
    plim.ok(fallen.returncode == 0 and plim.losses(fallen.stdout) == cpu and len(cpu) == 2 and not fallen.stderr,
            f"auto falls back to the CPU without a word {fallen.stderr.strip()}")
    auto = ask("train", "auto")
    plim.ok(auto.returncode == 0 and len(plim.losses(auto.stdout)) == 2, f"auto trains on what there is {auto.stderr.strip()}")
    told = [e["device"] for e in plim.events(fallen.stdout) if e["event"] == "plan"]
    plim.ok(told == [plim.plan(path, "--set", "training.device=cpu")[0]["device"]], f"the log says what it runs on: {told}")
    named = [plim.plan(path, "--set", f"training.device={name}")[0] for name in ("auto", "cuda" if usable else "cpu")]
    plim.ok(all(named) and named[0]["device"] == named[1]["device"], f"auto is {named[0] and named[0]['device']}")
plim.done()
