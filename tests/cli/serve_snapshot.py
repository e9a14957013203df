#!/usr/bin/env python3
# run-tests: not=tsan
"""Snapshots of serving: of a plan (plan --serve --trace, --memory-viz, --snapshot) and of a server that is under way (ctl SOCKET snapshot FILE), the
same three forms as of training. A measured step makes the same tokens; a server with nothing to do writes its plan."""
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import contextlib
import json
import tempfile
import threading

import llama_folder
import plim
import server
import tiny_bert
from plim import ok
from snapshots import MEASURED, check_json, check_pickle, check_trace, load

server.need_http()
FORMS = {"snapshot": "json", "trace": "trace.json", "memory-viz": "pickle"}
DECODER = {"kinds": {"linear", "attn_paged"}, "phases": {"forward"}}
CASES = {  # options of plan --serve
    "cpu": ["--device", "cpu"],
    "cpu, one request of one token at a time": ["--device", "cpu", "--parallel", 1, "--max-context", 16],
    "gpu with its host": ["--device", "a10g", "--budget", "506MiB"],
}


def of(serving, budget, snapshot):
    """A plan of serving as the checks want it."""
    return {"peak_bytes": {"total": serving["total"]}, "budget_bytes": budget, "arena_bytes": serving["arena"],
            "lower_bound_bytes": snapshot["peak_bytes"], "planning": {"ops": len(snapshot["ops"])}}


def plans(folder, model):
    for name, flags in CASES.items():
        files = {form: f"{folder}/plan.{ending}" for form, ending in FORMS.items()}
        told = plim.run("plan", "--serve", model, "--json", *flags, *[w for form, file in files.items() for w in (f"--{form}", file)])
        if not ok(told.returncode == 0, f"{name}: planned {told.stderr.strip()}"): continue
        p, snapshot = json.loads(told.stdout), load(files["snapshot"])
        plan = of(p["plan"], p["budget"], snapshot)
        check_json(name, snapshot, plan)
        check_trace(name, load(files["trace"]), plan, **DECODER)
        check_pickle(name, files["memory-viz"], plan)
        ok("run" not in snapshot and snapshot["step_us"] > 0 and snapshot["loop_end"] == len(snapshot["ops"]), f"{name}: a step that has not run, {snapshot['step_us']:.0f} us")
        ok(max(t["offset"] + t["bytes"] for t in snapshot["tensors"] if t["tier"] == 0) <= p["plan"]["arena"], f"{name}: inside the arena")
        for file in files.values(): os.remove(file)


@contextlib.contextmanager
def busy(ask):
    """Somebody asks all the time; what was answered is in the list."""
    stop, got = threading.Event(), []
    def work():
        while not stop.is_set(): got.append(ask())
    workers = [threading.Thread(target=work) for _ in range(3)]
    for w in workers: w.start()
    try: yield got
    finally:
        stop.set()
        for w in workers: w.join()


def measured(socket, folder, name, ask, wanted):
    """A snapshot that met a step, as JSON; whoever asks meanwhile is answered as ever."""
    file = f"{folder}/{name}.json"
    with busy(ask) as got:
        for _ in range(200):
            told = plim.run("ctl", socket, "snapshot", file)
            if told.returncode or "run" in load(file): break
    ok(told.returncode == 0 and told.stdout.strip() == file and "run" in load(file), f"{name}: {told.stdout.strip()} {told.stderr.strip()}")
    ok(got and all(g == wanted for g in got), f"{name}: {len(got)} answers meanwhile, all the same")
    snapshot = load(file)
    run, ops = snapshot["run"], snapshot["ops"]
    ok(all(o["measured_us"] >= 0 for o in ops) and run["measured"]["passes"][0]["what"] == "step" and run["measured"]["used"] > 0, f"{name}: all {len(ops)} ops were measured")
    ok("loss" not in run and run["step"] > 0 and run["model"] and snapshot["environment"] and snapshot["holders"] and snapshot["serving"]["total"] == snapshot["total"],
       f"{name}: step {run['step']}, environment, holders, plan")
    check_json(name, snapshot, of(snapshot["serving"], snapshot["budget"], snapshot))
    return snapshot


def idle(s, socket, folder):
    ok(s.wait_for(s.idle), "idle")
    told = plim.run("ctl", socket, "snapshot", f"{folder}/idle.json")
    snapshot = load(f"{folder}/idle.json") if told.returncode == 0 else {}
    ok(snapshot.get("ops") and "run" not in snapshot, f"a server with nothing to do writes its plan {told.stderr.strip()}")
    return snapshot


def decoder(folder, model):
    socket = f"{folder}/llama.sock"
    with server.Server(model, "--budget", "96MiB", "--control", socket, program=plim.PLIMSOLL) as s:
        ask = lambda: s.post("/generate", {"prompt": "The heavy ship", "max_tokens": 60, "temperature": 0, "ignore_eos": True})[1]["generated_text"]
        wanted = ask()
        plan = idle(s, socket, folder)
        planned = json.loads(plim.run("plan", "--serve", model, "--json", "--device", "cpu", "--budget", "96MiB", "--snapshot", f"{folder}/plan.json").stdout)
        same = {k: v for k, v in load(f"{folder}/plan.json").items() if k not in ("total", "overhead")}
        ok(planned and all(plan[k] == v for k, v in same.items()), "and it is that of plan --serve")
        snapshot = measured(socket, folder, "llama", ask, wanted)
        hold = json.loads(s.get("/hold")[1])
        ok(snapshot["total"] == hold["used"] and snapshot["budget"] == hold["budget"], "total and budget are the server's")
        trace(s, socket, folder, ask, of(snapshot["serving"], snapshot["budget"], snapshot))
        refusals(socket, folder)
        ok(ask() == wanted and s.stop() == 0, "it goes on, and stops")


def trace(s, socket, folder, ask, plan):
    """The other forms, of steps of whatever size; a name without a folder is taken where ctl is called."""
    with busy(ask):
        for _ in range(200):
            told = [plim.run("ctl", socket, "snapshot", f"{folder}/step.trace.json"), plim.run("ctl", socket, "snapshot", f"{folder}/step", "--format", "memory_viz")]
            events = load(f"{folder}/step.trace.json") if not told[0].returncode else {"traceEvents": []}
            if told[0].returncode or any(e["pid"] == MEASURED for e in events["traceEvents"]): break
    ok(not any(t.returncode for t in told), f"as trace and memory_viz {[t.stderr for t in told]}")
    live = max(sum(e["args"].values()) for e in events["traceEvents"] if e["ph"] == "C" and e["name"] == "live bytes")
    check_trace("trace of a server", events, {**plan, "lower_bound_bytes": events["otherData"]["peak_bytes"]}, run=True, **DECODER)
    with open(f"{folder}/step", "rb") as f: ok(f.read(1) == b"\x80", f"a pickle; at most {live} bytes live")


def refusals(socket, folder):
    for words, told in ((["snapshot"], "a server has no folder"), (["snapshot", f"{folder}/nowhere/a.json"], "nowhere"), (["checkpoint"], "snapshot and stop")):
        r = plim.run("ctl", socket, *words)
        ok(r.returncode != 0 and r.stderr.count("\n") == 1 and told in r.stderr, f"{words}: exit {r.returncode}, {r.stderr.strip()}")


def bad_flags(folder, model):
    for form in FORMS:
        r = plim.run("serve", model, f"--{form}", f"{folder}/x")
        ok(r.returncode == 2 and r.stderr.count("\n") == 1 and "only with --plan" in r.stderr, f"serve --{form}: {r.stderr.strip()}")
        r = plim.run("plan", "--serve", model, "--device", "cpu", f"--{form}", f"{folder}/nowhere/x")
        ok(r.returncode == 2 and r.stderr.count("\n") == 1 and "nowhere" in r.stderr and not r.stdout, f"into a folder that is not there: {r.stderr.strip()}")


def other_kinds(folder):
    tiny_bert.make_model(f"{folder}/bert")
    socket = f"{folder}/bert.sock"
    with server.Server(f"{folder}/bert", "--control", socket, program=plim.PLIMSOLL) as s:
        vector = lambda: s.post("/v1/embeddings", {"input": "The ship left."})[1]["data"][0]["embedding"]
        wanted = vector()
        idle(s, socket, folder)
        measured(socket, folder, "bert", vector, wanted)
    trained = plim.run("train", plim.job(folder, **plim.T5, data__train=f"[{plim.pairs(folder)}]", training__steps=1, output__dir=f"{folder}/t5"), "-q")
    socket = f"{folder}/t5.sock"
    with server.Server(f"{folder}/t5", "--max-context", 64, "--parallel", 4, "--control", socket, program=plim.PLIMSOLL) as s:
        text = lambda: s.post("/v1/completions", {"prompt": "The heavy ship", "max_tokens": 40, "temperature": 0, "ignore_eos": True})[1]["choices"][0]["text"]
        wanted = text()
        ok(trained.returncode == 0 and wanted is not None, "a T5")
        idle(s, socket, folder)
        measured(socket, folder, "t5", text, wanted)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/m", hidden_size=128, head_dim=128, num_attention_heads=8, num_key_value_heads=8)
        plans(folder, model)
        decoder(folder, model)
        bad_flags(folder, model)
        other_kinds(folder)
    plim.done()


main()
