#!/usr/bin/env python3
"""The whole server on every rung: faults at start-up and a card lost while requests run, by log, exit code and answers; the stages of a
start; and a start after SIGKILL."""
# run-tests: long, timeout=300, not=asan, not=tsan
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import http.client
import json
import re
import signal
import subprocess
import tempfile
import time

import llama_folder
import machine
import plim
from plim import ok
import server

server.need_http()
CARD = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "fake_card", "plimsoll")
STAGES = ["start", "config_loaded", "tokenizer_loaded", "weights_mapped", "model_loaded_cpu", "inputs_on_device", "model_on_device",
          "compilation_started", "compilation_complete", "warmup_complete", "model_saved", "final_cleanup", "ready"]
ASK = {"prompt": "The ship", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


class Env:
    """Variables of the environment for a while."""

    def __init__(self, **values): self.values = values
    def __enter__(self):
        self.before = {k: os.environ.get(k) for k in self.values}
        os.environ.update(self.values)
    def __exit__(self, *_):
        for k, v in self.before.items():
            if v is None: del os.environ[k]
            else: os.environ[k] = v


def serve(model, *flags, card="absent=1", fault="", device="auto"):
    with Env(FAKE_CARD=card, PLIMSOLL_FAULT=fault) if fault else Env(FAKE_CARD=card):
        return server.Server(model, *flags, "--device", device, program=CARD)


def text(s, **more):
    code, r = s.post("/v1/completions", {**ASK, **more})
    return r["choices"][0]["text"] if code == 200 else (code, r)


def start(model, wanted, rung, words, *flags, **how):
    """A server that must stand on this rung, say these words and give the usual text (None: another one will do)."""
    what = f"{flags} {how}"
    with tempfile.TemporaryDirectory() as cache, Env(XDG_CACHE_HOME=cache), serve(model, *flags, **how) as s:  # nothing is remembered
        hold = json.loads(s.get("/hold")[1])
        got = text(s)
        log = s.log()
        missing = [w for w in words if w not in log]
        ok(hold.get("rung") == rung and not missing and (wanted is None or got == wanted), f"{what}: rung {hold.get('rung')}, missing {missing}, {got!r}")
        if missing: print("# " + log.replace("\n", "\n# "))
        ok(s.stop() == 0, "and stops with 0")


def faults_at_start(model, wanted):
    start(model, wanted, "full", ["rung full:"])
    start(model, wanted, "full", ["rung full:"], card="")
    start(model, wanted, "fewer", ["rung full: RESOURCE_EXHAUSTED after stage model_loaded_cpu (host ", "rung fewer:"], fault="alloc:1")
    start(model, wanted, "cpu-fp32", ["rung full: compile after stage model_loaded_cpu", "performance will be limited"], fault="compile:1")
    start(model, wanted, "cpu-fp32", ["rung full: compile after stage compilation_started"], fault="compile:2")
    start(model, wanted, "cpu", ["rung full: compile", "next: cpu,", "performance will be limited"], card="x=1", fault="compile:2")
    start(model, wanted, "cpu", ["rung full: RESOURCE_EXHAUSTED", "rung fewer: RESOURCE_EXHAUSTED", "rung streamed: RESOURCE_EXHAUSTED", "rung cpu: on the CPU"], card="full=1")
    start(model, wanted, "cpu", ["rung full: device lost after stage compilation_complete", "rung cpu"], card="lost=1")


def remembered(model, folder):
    """A rung that was refused memory is not tried again by the next start, while the rest is as it was."""
    box = machine.Machine(4 << 30, 1 << 30)
    def begin(*flags, **how):
        with serve(model, "--max-context", 64, *flags, **how) as s:
            rung, log = json.loads(s.get("/hold")[1])["rung"], s.log()
            s.stop()
        return rung, log
    with Env(XDG_CACHE_HOME=f"{folder}/rungs", PLIMSOLL_MACHINE=box.root):
        files = lambda: [os.path.join(d, n) for d, _, names in os.walk(f"{folder}/rungs") for n in names if n.startswith("rung-")]
        rung, log = begin()
        ok(rung == "full" and not files() and "begins on" not in log, "nothing is refused, nothing is remembered")
        rung, log = begin(fault="alloc:1")
        ok(rung == "fewer" and len(files()) == 1, f"refused memory: rung {rung}, kept {files()}")
        rung, log = begin()
        ok(rung == "fewer" and log.count("begins on rung fewer") == 1 and files()[0] in log and "rung full:" not in log, f"the next start begins there: {rung} {log.splitlines()[3:6]}")
        plan = subprocess.run([CARD, "plan", "--serve", model, "--json", "--device", "auto", "--max-context", "64"], capture_output=True, text=True, env=dict(os.environ, FAKE_CARD="absent=1"))
        ok(json.loads(plan.stdout)["rung"] == "fewer", f"and plan --serve says so {plan.stderr}")
        ok(begin("--budget", "200MiB")[0] == "full", "another budget is another case")
        with open(files()[0], "w") as f: f.write("{")
        rung, log = begin()
        ok(rung == "full" and "is damaged and ignored" in log and not files(), f"a damaged file is told of and goes: {rung}")
        begin(fault="alloc:1")
        box.others = 0
        box.write()
        rung, log = begin()
        ok(rung == "full" and "begins on" not in log and not files(), f"with more free memory it begins above again: {rung}")
    box.close()


def rung_at(model, budget, *flags):
    r = subprocess.run([CARD, "plan", "--serve", model, "--json", "--device", "cuda", "--budget", str(budget), *flags], capture_output=True, text=True,
                       env=dict(os.environ, FAKE_CARD="x=1"))
    p = json.loads(r.stdout) if r.returncode == 0 else {"rung": None}
    return p["rung"] if not flags or r.returncode or p["plan"]["context"] >= 256 else "too short"


def least(model, rungs, *flags):
    """The smallest budget whose plan is on one of these rungs."""
    low, high = 0, 256 << 20
    while high - low > 16384:
        middle = (low + high) // 2
        low, high = (low, middle) if rung_at(model, middle, *flags) in rungs else (middle, high)
    return high


def budgets(model, wanted):
    full, fewer = least(model, ("full",)), least(model, ("full", "fewer"))
    start(model, wanted, "full", ["rung full"], "--budget", full, card="x=1")
    start(model, wanted, "fewer", ["rung full: buffer allocation", "next: fewer"], "--budget", full - 16384, card="x=1")
    start(model, None, "streamed", ["rung fewer: buffer allocation", "rung streamed", "performance will be limited"], "--budget", fewer - 16384, card="x=1")
    longest = least(model, ("full", "fewer", "streamed"), "--allow-degraded", "window")
    start(model, None, "minimal", ["rung streamed: buffer allocation", "each token computed from the last 32"], "--budget", longest - 16384,
          "--allow-degraded", "window", card="x=1")


def exit_codes(model):
    run = lambda *flags, **env: subprocess.run([CARD, "serve", model, "--port", "0", *flags], capture_output=True, text=True, timeout=60,
                                               env=dict(os.environ, **{"FAKE_CARD": "x=1", **env}))
    for code, words, r in ((3, "buffer allocation", run("--device", "cuda", "--budget", "100000")),
                           (4, "RESOURCE_EXHAUSTED", run("--device", "cuda", FAKE_CARD="full=1")),
                           (2, "device lost", run("--device", "cuda", FAKE_CARD="lost=1")),
                           (2, "compile", run("--device", "cuda", PLIMSOLL_FAULT="compile:1"))):
        ok(r.returncode == code and words in r.stderr and r.stderr.count("\nplimsoll: ") == 1, f"no rung is left: exit {r.returncode}, {r.stderr.splitlines()[-2:]}")


def explained(model, folder):
    """Refused memory is explained as a run's: the tensor, who holds the memory, and options that were planned and really help."""
    large = server.blank_model(f"{folder}/blank")
    flags = ("--device", "cpu", "--budget", "40MiB", "--scratch", "none", "--max-context", "1024", "--parallel", "4", "--allow-degraded", "none")
    r = plim.run("serve", large, "--port", "0", "-q", *flags)
    lines = r.stderr.splitlines()
    ok(r.returncode == 3 and "memory was refused in planning" in r.stderr and "model too large" in r.stderr and lines[-1].startswith("plimsoll: "), f"a budget that is too small: {lines[-1]}")
    ok("the largest thing at the peak, in " in r.stderr and "memory is held by " in r.stderr and "this process " in r.stderr, f"tensor and holders: {lines[2:5]}")
    found = re.findall(r"^    (--\S+) (\S+): (\S+ \S+?)[,;]", r.stderr, re.M)
    helps = [plim.run("plan", "--serve", large, *flags, option, folder if value == "DIR" else value).returncode == 0 for option, value, _ in found]
    ok({"--budget", "--weights"} <= {f[0] for f in found} and all(helps), f"what would help does: {found} {helps}")
    said = plim.run("plan", "--serve", large, *flags)
    ok(said.returncode == 3 and "what would help" in said.stderr and not said.stdout, "plan --serve says it, too")
    card = lambda *more, **env: subprocess.run([CARD, "serve", model, "--port", "0", *more], capture_output=True, text=True, timeout=60, env=dict(os.environ, **env))
    r = card("--device", "cuda", FAKE_CARD="full=1")
    ok(r.returncode == 4 and "memory was refused in committing" in r.stderr and re.search(r"rung full: .*largest of it is kv.pool, .* of class kv; memory is held by .*this process", r.stderr),
       f"each rung that is refused names what and who: {r.stderr.splitlines()[-3:]}")
    bad = server.blank_model(f"{folder}/nan")
    with open(f"{bad}/model.safetensors", "r+b") as f:
        f.seek(-4, 2)
        f.write(b"\0\0\xc0\x7f")
    r = plim.run("serve", bad, "--port", "0", "--device", "cpu", "--budget", "200MiB")
    host = re.search(r"error: failed before stage model_on_device; host ([\d.]+) MiB", r.stderr)
    ok(r.returncode == 2 and host and float(host[1]) > 100, f"memory is that of the failure: {host and host[0]}")


def lost_while_serving(model):
    with serve(model) as s: wanted = [text(s, prompt="The ship " * n) for n in range(1, 9)]
    with serve(model, "--parallel", 4, card="lost=30") as s:
        threads = [server.background(text_of, s, "The ship " * n) for n in range(1, 9)]
        for t in threads: t.join()
        log = s.log()
        ok([t.result for t in threads] == wanted, f"a card lost while 8 requests run and wait: all answered, as without {[t.result for t in threads if t.result not in wanted]}")
        ok("rung full: device lost after stage ready" in log and "rung cpu: on the CPU" in log and "performance will be limited" in log, f"the log says why {log.splitlines()[-3:]}")
        ok(json.loads(s.get("/hold")[1])["rung"] == "cpu" and s.get("/health")[0] == 200 and text(s, prompt="The ship ") == wanted[0], "it goes on")
        ok(s.stop() == 0, "and stops with 0")
    with serve(model, device="cuda", card="lost=30") as s:
        codes = [server.background(code_of, s) for _ in range(2)]
        for t in codes: t.join()
        told = [t.result for t in codes]  # one that comes when the server has given up hears that it shuts down, or finds nobody
        ok(500 in told and set(told) <= {500, 503, None} and s.process.wait(30) == 2 and "device lost" in s.log(), f"with no rung left: {told}, exit {s.process.returncode}")


def text_of(s, prompt): return text(s, prompt=prompt)


def code_of(s):
    try:
        return s.post("/v1/completions", dict(ASK, max_tokens=200))[0]
    except (OSError, http.client.HTTPException):
        return None


def stages(model):
    with serve(model) as s:
        s.wait_for(lambda: "ready after" in s.log())
        s.stop()
        found = re.findall(r"stage +(\d+)/13 (\S+) +([\d.]+) s, host (\S+ \S+), device (.*)", s.log())
        ok([f[1] for f in found] == STAGES and [float(f[2]) for f in found] == sorted(float(f[2]) for f in found)
           and not any("part of" in f[4] for f in found), f"thirteen stages, each by itself, with memory {[f[1:3] for f in found]}")
        ok(re.search(r"ready after [\d.]+ s", s.log()), "the time of the start is told")


def killed(folder):
    """SIGKILL and a start: ready as soon as after a usual end, compared in the same run."""
    model = llama_folder.make(f"{folder}/large", hidden_size=512, intermediate_size=2048, num_hidden_layers=6, head_dim=64, num_attention_heads=8, num_key_value_heads=8)
    def begin(number):
        at = time.monotonic()
        with serve(model, "--budget", "400MiB", "--control", f"{folder}/kill.sock") as s:
            seconds = time.monotonic() - at
            asked = [server.background(lambda: try_post(s)) for _ in range(3)]
            time.sleep(0.05)
            s.process.send_signal(number)
            s.process.wait()
            for a in asked: a.join()
        return seconds
    begin(signal.SIGTERM)
    warm, after = [], []
    for _ in range(5):  # by turns, and the best of each: other programs disturb some of them
        warm.append(begin(signal.SIGKILL))   # the start behind a usual end
        after.append(begin(signal.SIGTERM))  # the start behind a kill
    warm, after = min(warm), min(after)
    ok(after <= 3 * warm + 1, f"after SIGKILL it is ready in {after:.3f} s, {after / warm:.2f} of a warm start")


def try_post(s):
    try: return s.post("/v1/completions", dict(ASK, max_tokens=400))
    except OSError: return None
    except Exception: return None


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        model = llama_folder.make(f"{folder}/m")
        with serve(model) as s: wanted = text(s)
        faults_at_start(model, wanted)
        remembered(model, folder)
        budgets(model, wanted)
        exit_codes(model)
        explained(model, folder)
        lost_while_serving(model)
        stages(model)
        killed(folder)
    plim.done()


main()
