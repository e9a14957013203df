#!/usr/bin/env python3
"""A server on a PJRT plug-in that fails: each kind of failure, at each stage, ends on the right rung of the ladder; the log names stage, cause
and memory; the rung that worked is remembered; a later start reuses the compiled programs; the plug-in's objects are all destroyed."""
# run-tests: timeout=300, not=asan, not=tsan
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import json
import re
import shutil
import subprocess
import tempfile

import llama_folder
import plim
from plim import ok
import server

server.need_http()
PLUGIN = os.path.abspath(os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "fake_pjrt.so"))
ASK = {"prompt": "The ship", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
INTERNAL, EXHAUSTED, LOST = 13, 8, 14
COMPILE, UPLOAD, EXECUTE, READ = "Client_Compile", "Client_BufferFromHostBuffer", "LoadedExecutable_Execute", "Buffer_ToHostBuffer"


class Place:
    """A model, a cache and the text that the CPU gives."""

    def __init__(self, folder):
        self.folder = folder
        self.model = llama_folder.make(f"{folder}/m")
        self.report = f"{folder}/report"
        with server.Server(self.model, program=plim.PLIMSOLL) as s: self.wanted = self.text(s)

    def text(self, s):
        code, r = s.post("/v1/completions", ASK)
        return r["choices"][0]["text"] if code == 200 else (code, r)

    def clear(self): shutil.rmtree(f"{self.folder}/cache", ignore_errors=True)

    def serve(self, orders, *flags, plugin=PLUGIN):
        if os.path.exists(self.report): os.remove(self.report)
        os.environ["FAKE_PJRT"] = ",".join(filter(None, [orders, f"report={self.report}", "limit=268435456"]))
        os.environ["XDG_CACHE_HOME"] = f"{self.folder}/cache"
        return server.Server(self.model, "--max-context", 256, "--parallel", 2, *flags, "--device", f"pjrt:{plugin}", program=plim.PLIMSOLL)

    def start(self, orders, rung, *words, flags=(), keep=False):
        """The log of a server that must stand on this rung, say these words, and answer."""
        if not keep: self.clear()
        with self.serve(orders, *flags) as s:
            up = s.process.poll() is None
            got = self.text(s) if up else None
            stands = json.loads(s.get("/hold")[1]).get("rung") if up else None
            code, log = s.stop(), s.log()
        missing = [w for w in words if not re.search(w, log)]
        right = got == self.wanted if rung.startswith("cpu") else isinstance(got, str)
        ok(stands == rung and right and not missing and code == 0, f"{orders or 'no failure'}: rung {stands} (expected {rung}); missing {missing}; exit {code}; {got!r}")
        if stands != rung or missing: print("# " + log.replace("\n", "\n# "))
        left = open(self.report).read() if os.path.exists(self.report) else "no report"
        ok(re.match(r"live 0 misuses 0 ", left), f"{orders or 'no failure'}: {left.strip()}")
        return log


def said(rung, cause, stage): return rf"rung {rung}: {cause} after stage {stage} \(host [\d.]+ \wiB, device [\d.]+ \w+\)"


def at_start(p):
    stage = r"\w+"
    p.start("", "full", "rung full")
    p.start("own=1", "full", "rung full")
    for code in (3, 12, INTERNAL):
        p.start(f"fail={COMPILE}:1:{code}", "cpu", said("full", "compile", stage), "was ordered to fail", "performance will be limited")
    p.start(f"fail={COMPILE}:1:{EXHAUSTED}", "fewer", said("full", "RESOURCE_EXHAUSTED", stage), "rung fewer:")
    p.start(f"fail={COMPILE}:0:{EXHAUSTED}", "cpu", said("full", "RESOURCE_EXHAUSTED", stage), said("fewer", "RESOURCE_EXHAUSTED", stage), "rung cpu: on the CPU")
    p.start(f"fail={COMPILE}:1:{LOST}", "cpu", said("full", "device lost", stage))
    for on in ("", ":event"):
        p.start(f"fail={UPLOAD}:6:{EXHAUSTED}{on}", "fewer", said("full", "RESOURCE_EXHAUSTED", stage))
        p.start(f"fail={UPLOAD}:6:{INTERNAL}{on}", "cpu", said("full", "device lost", stage))
        p.start(f"fail={EXECUTE}:1:{EXHAUSTED}{on}", "fewer", said("full", "RESOURCE_EXHAUSTED", stage))
        p.start(f"fail={EXECUTE}:1:{INTERNAL}{on}", "cpu", said("full", "device lost", stage))
        p.start(f"fail={READ}:1:{INTERNAL}{on}", "cpu", said("full", "device lost", stage))
    for call in (COMPILE, UPLOAD, EXECUTE, READ): p.start(f"lose={call}:2", "cpu", said("full", "device lost", stage))


def by_memory(p):
    """The device has less memory than it says: the less it has, the lower the rung, and the server is always up."""
    rungs, order = [], ["full", "fewer", "minimal", "cpu"]
    for kib in (100, 380, 500, 1000):
        p.clear()
        with p.serve(f"holds={kib << 10}") as s:
            got = p.text(s)
            rungs.append(json.loads(s.get("/hold")[1])["rung"])
            log = s.log()
        ok(isinstance(got, str) and (rungs[-1] == "full" or "Out of memory allocating" in log), f"{kib} KiB: rung {rungs[-1]}")
    found = [order.index(r) for r in rungs]
    ok(found == sorted(found, reverse=True) and found[0] == 3 and found[-1] == 0 and len(set(found)) > 2, f"rungs by memory: {rungs}")


def plans_reported(p):
    """The plan holds what the executable reports: temporaries above the arena's are added byte by byte, or refused."""
    def plan(mib, budget):
        p.clear()
        os.environ["FAKE_PJRT"], os.environ["XDG_CACHE_HOME"] = f"temp={mib << 20},limit=268435456", f"{p.folder}/cache"
        r = plim.run("serve", p.model, "--plan", "--json", "--max-context", 256, "--parallel", 2, "--budget", budget, "--device", f"pjrt:{PLUGIN}")
        return json.loads(r.stdout), r.stderr
    plans = [plan(mib, "128MiB")[0] for mib in (0, 32, 64)]
    totals = [r["plan"]["total"] for r in plans]
    ok(totals[0] == plans[0]["plan"]["arena"] and totals[2] - totals[1] == 32 << 20 and totals[1] > 32 << 20, f"temporaries of 0, 32 and 64 MiB: planned {totals}, arena {plans[0]['plan']['arena']}")
    low, log = plan(64, "48MiB")
    ok(low["rung"] == "cpu" and re.search(r"does not fit: .* take [\d.]+ MiB, the budget is 48.0 MiB", log), f"a budget of 48 MiB: rung {low['rung']}, {log.splitlines()[0][:200]}")


def remembered(p):
    p.start(f"fail={EXECUTE}:1:{EXHAUSTED}", "fewer")
    p.start("", "fewer", "begins on rung fewer, because memory was refused above it", keep=True)
    p.start("", "full")


def reused(p):
    p.start("", "full", r"compiled \d+ programs? in [\d.]+ s")
    log = p.start("", "full", r"reused \d+ programs? from \S+/pjrt in [\d.]+ s", keep=True)
    ok("compiled" not in log.replace("compilation", ""), "the second start compiles nothing")
    listed = json.loads(plim.run("cache", "list", "programs", "--json").stdout)["programs"]
    ok(listed["files"] > 0 and listed["bytes"] > 0, f"cache list shows them: {listed}")
    plim.run("cache", "clear", "programs")
    p.start("", "full", r"compiled \d+ program", keep=True)


def lost_while_serving(p):
    p.clear()
    with p.serve(f"lose={EXECUTE}:20") as s:
        threads = [server.background(p.text, s) for _ in range(6)]
        for t in threads: t.join()
        ok(all(isinstance(t.result, str) for t in threads) and p.text(s) == p.wanted, "a device lost while requests run: all are answered")
        log = s.log()
        ok("rung full: device lost after stage ready" in log and "rung cpu: on the CPU" in log, f"the log says why: {log.splitlines()[-3:]}")
        ok(s.stop() == 0 and open(p.report).read().startswith("live 0 misuses 0 "), "nothing is left of the plug-in's objects")


def keeps_to_budget(p):
    """XLA's CUDA plug-in is told the budget's share of the card, and keeps what it has taken: a smaller budget is refused by name."""
    cuda, driver = f"{p.folder}/fake_cuda_plugin.so", f"{p.folder}/driver"
    shutil.copy(PLUGIN, cuda)
    os.makedirs(driver)
    os.symlink(PLUGIN, f"{driver}/libcuda.so.1")
    known = "known=preallocate+memory_fraction,pool=1"
    for budget, card, want in ((256, driver, "0.25"), (64, driver, "0.0625"), (0, driver, "0.95"), (256, "", "0.95")):
        os.environ["LD_LIBRARY_PATH"] = card
        flags = ("--budget", budget << 20) if budget else ()
        control = f"{p.folder}/control.sock"
        with p.serve(known, *flags, "--control", control, plugin=cuda) as s:
            less = plim.run("ctl", control, "budget", 48 << 20)
            ok(less.returncode != 0 and "keeps the memory that it has taken" in less.stderr and "48.0 MiB" in less.stderr, f"a smaller budget: {less.stderr.strip()}")
            ok(isinstance(p.text(s), str) and s.stop() == 0, f"a budget of {budget} MiB serves")
        told = open(p.report).read()
        ok(f"options preallocate=0 memory_fraction={want} " in told, f"a card of {'1 GiB' if card else 'unknown size'}, a budget of {budget} MiB: {told.strip()}")
    del os.environ["LD_LIBRARY_PATH"]


def bad_plugins(p):
    def run(device, orders=""):
        return subprocess.run([plim.PLIMSOLL, "serve", p.model, "--port", "0", "-q", "--device", device], capture_output=True, text=True, timeout=60, env=dict(os.environ, FAKE_PJRT=orders))
    with open(f"{p.folder}/text.so", "w") as f: f.write("not a library\n")
    for words, r in (("there is no such PJRT plug-in", run("pjrt:/nowhere/plugin.so")), ("no shared library", run(f"pjrt:{p.folder}/text.so")),
                     ("lacks PJRT_Client_Compile", run(f"pjrt:{PLUGIN}", f"lack={COMPILE}")), ("version 3.81", run(f"pjrt:{PLUGIN}", "major=3")),
                     ("finds no device", run(f"pjrt:{PLUGIN}", "devices=0")), ("there is no device 4", run(f"pjrt:{PLUGIN}:4")),
                     ("no such device", run("pjrt:"))):
        last = r.stderr.splitlines()[-1] if r.stderr else ""
        ok(r.returncode == 2 and words in last and r.stderr.count("plimsoll: ") == 1, f"exit {r.returncode}: {last}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        p = Place(folder)
        at_start(p)
        by_memory(p)
        plans_reported(p)
        remembered(p)
        reused(p)
        lost_while_serving(p)
        keeps_to_budget(p)
        bad_plugins(p)
    plim.done()


main()
