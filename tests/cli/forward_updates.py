#!/usr/bin/env python3
"""Updates inside the next step's forward: the bits of updates after backward through checkpoints, evaluations, a signal and a budget that
moves; what the planner says of them, and where it refuses them."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

STEPS = 6
FORWARD, AFTER = (["--set", f"training.optimizer_in_forward={value}"] for value in ("true", "false"))


def content(folder):
    """Bytes of a checkpoint's tensors."""
    out = {}
    for root, _, files in os.walk(folder):
        for name in files:
            if name.endswith(".safetensors"):
                with open(os.path.join(root, name), "rb") as f: out[os.path.relpath(os.path.join(root, name), folder)] = f.read()
    return out


def train(path, name, *args):
    """Steps and evaluations with their losses, and the last checkpoint's bytes."""
    folder = os.path.join(os.path.dirname(path), name)
    if "--resume" not in args: shutil.rmtree(folder, ignore_errors=True)
    result = plim.run("train", path, "--json", "-q", *args, "--set", f"output.dir={folder}")
    events = plim.events(result.stdout)
    told = {(e["event"], e["step"]): e["loss"] for e in events if e["event"] in ("step", "eval")}
    train.replans = sum(e["event"] == "replan" for e in events)
    return told, content(f"{folder}/checkpoint-{STEPS:08}"), result.stderr.strip()


def same_bits(folder, path, clip):
    norm = ["--set", f"training.max_grad_norm={clip}"]
    after, want, why = train(path, "after", *AFTER, *norm)
    plim.ok(sum(kind == "step" for kind, _ in after) == STEPS and want, f"clip {clip}: updates after backward {why}")
    forward, have, why = train(path, "forward", *FORWARD, *norm)
    plim.ok(forward == after and have == want, f"clip {clip}: losses, evaluations and checkpoint of updates inside forward {why}")
    for name, second in (("forward", FORWARD), ("after backward", AFTER)):
        first, _, _ = train(path, "parts", "--steps", "3", *FORWARD, *norm)
        rest, have, why = train(path, "parts", "--resume", *second, *norm)
        both = {key: loss for key, loss in {**first, **rest}.items() if key in after}
        plim.ok(both == after and have == want, f"clip {clip}: inside forward, then resumed {name} {why}")


def stopped(folder, path):
    """SIGTERM between two steps or inside one: what waits is in the checkpoint."""
    whole, want, _ = train(path, "whole", *AFTER, "--set", "training.max_grad_norm=0.5")
    run = f"{folder}/stopped"
    args = ["train", path, "--json", "-q", *FORWARD, "--set", "training.max_grad_norm=0.5", "--set", f"output.dir={run}"]
    process = subprocess.Popen([plim.PLIMSOLL, *args], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if '"event":"step"' in line and '"step":2,' in line: break
    process.send_signal(signal.SIGTERM)
    process.communicate()
    rest, have, why = train(path, "stopped", "--resume", *FORWARD, "--set", "training.max_grad_norm=0.5")
    plim.ok(all(whole[key] == loss for key, loss in rest.items()) and have == want, f"stopped by a signal and resumed {why}")


def moving(path):
    """The budget falls and rises again."""
    pins = ["--set", "training.micro_batch_size=4", "--set", "training.max_grad_norm=0.5"]
    plan, _ = plim.plan(path, *FORWARD, *pins, "--budget", "1GiB")
    low = plan["peak_bytes"]["total"] - 32768
    whole, want, _ = train(path, "still", *AFTER, *pins, "--budget", "1GiB")
    moved, have, why = train(path, "moved", *FORWARD, *pins, "--budget", "1GiB", "--budget-at", f"3={low}", "--budget-at", "5=1GiB")
    plim.ok(moved == whole and have == want and train.replans == 2, f"a budget that moves {why}")


def before(path):
    """Updates before the norm: found, pinned and forbidden; what they take of the host; where they are refused."""
    pin = lambda *words: [x for word in words for x in ("--set", f"training.{word}")]
    plan = lambda *words: plim.plan(path, "--device", "h200", "--budget", "2GiB", *pin("state_tier=host", "grad_tier=host", "host_update=1", *words))[0]
    never, always, found = plan("update_before_norm=0", "optimizer_in_forward=true"), plan("update_before_norm=1"), plan("max_grad_norm=0")
    shares = [p["knobs"]["before_norm_share"] for p in (never, always, found, plan("max_grad_norm=1"))]
    plim.ok(shares[:2] == [0, 16] and shares[2] > 0 and shares[3] == 0, f"before the norm, found where nothing is clipped: shares {shares}")
    ms = [p["predicted"]["step_ms"] for p in (never, always, found)]
    plim.ok(ms[2] < ms[0] and ms[2] <= ms[1], f"before the norm: faster by the clock where it is found {ms}")
    state = 10 * always["parameters"]  # two f32 moments and half a master; weights twice
    more = always["peak_bytes"]["host"] - never["peak_bytes"]["host"]
    plim.ok(0.6 * state < more < 1.3 * state, f"before the norm: {more} bytes more of the host, {state} of state")
    text = plim.run("plan", path, "--device", "h200", "--budget", "2GiB", *pin("grad_tier=host", "update_before_norm=1")).stdout
    plim.ok("before the norm is known" in text, "before the norm: the plan's text names it")
    for words, told in ((("update_before_norm=1", "micro_batch_size=1"), "training.micro_batch_size and training.update_before_norm exclude each other"),
                        (("update_before_norm=1", "optimizer=adafactor"), "training.update_before_norm needs one rank"),
                        (("update_before_norm=2",), "training.update_before_norm")):
        result = plim.run("plan", path, "--device", "h200", *pin(*words))
        plim.ok(result.returncode not in (0, 3) and told in result.stderr and result.stderr.count("\n") == 1, f"before the norm, refused: {words}: {result.stderr.strip()}")
    result = plim.run("plan", path, "--device", "cpu-4gb", *pin("state_tier=disk", "update_before_norm=1"))
    plim.ok(result.returncode not in (0, 3) and "training.update_before_norm" in result.stderr, f"before the norm: refused by a CPU {result.stderr.strip()}")


def planned(folder):
    path = plim.job(folder, model__hidden_size=1024, model__intermediate_size=4096, model__num_layers=8, model__vocab_size=32000, data__max_length=512,
                    training__batch_size=8, training__mixed_precision="bf16", training__max_grad_norm=1, training__state_tier="host")
    after, _ = plim.plan(path, "--device", "h200", "--budget", "8GiB")
    forward, result = plim.plan(path, "--device", "h200", "--budget", "8GiB", *FORWARD)
    plim.ok(not after["knobs"]["optimizer_in_forward"] and forward["knobs"]["optimizer_in_forward"], "a knob of the plan")
    plim.ok(forward["predicted"]["step_ms"] < after["predicted"]["step_ms"], "state on the host: faster by the clock")
    plim.ok(after["predicted"]["in_forward_ms"] < after["predicted"]["step_ms"] and "in_forward_ms" not in forward["predicted"], "and the plan without it says so")
    before(path)
    text = plim.run("plan", path, "--device", "h200", "--budget", "8GiB", *FORWARD).stdout
    plim.ok("inside the next step's forward" in text, "the plan's text names it")
    for args, word in ((["--ranks", "2"], "training.optimizer_in_forward needs one rank"), (["--set", "training.optimizer_in_backward=true", "--set", "training.max_grad_norm=0"], "exclude each other"),
                       (["--set", "data.padding=longest"], "data.padding")):
        result = plim.run("plan", path, "--device", "h200", *FORWARD, *args)
        plim.ok(result.returncode not in (0, 3) and word in result.stderr, f"refused: {' '.join(args)}: {result.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=STEPS, data__validation=f"[{folder}/corpus.txt]", training__eval_every=2, training__eval_rows=8, training__save_every=3, training__mixed_precision="bf16")
    for clip in (0.5, 100): same_bits(folder, path, clip)
    stopped(folder, path)
    moving(path)
    planned(folder)
plim.done()
