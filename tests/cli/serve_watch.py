#!/usr/bin/env python3
"""A server tells of its memory as a run does: a line when it is ready, every so many seconds, and whenever the status changes, then with what
might be done; -q leaves only the warnings."""
# run-tests: timeout=120
import contextlib
import os
import re
import sys
import tempfile

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import llama_folder
import machine
import plim
from plim import ok
import server

server.need_http()
GIB = 1 << 30
LINE = re.compile(r"^(warning: )?\[Step (\d+)\] Memory: ([\d.]+)/4\.0 GB \((\d+)%\), Status: (\w+) - running \d+, waiting \d+$", re.M)


def status_of(s): return [found[4] for found in LINE.findall(s.log())]


with tempfile.TemporaryDirectory() as folder, contextlib.closing(machine.Machine(4 * GIB, GIB)) as box:
    m = llama_folder.make(f"{folder}/m")
    os.environ["PLIMSOLL_MACHINE"] = box.root
    for flags, quiet in (((), False), (("-q",), True)):
        box.others = GIB
        with server.Server(m, "--monitor-every", 0, *flags, program=plim.PLIMSOLL) as s:
            if not quiet: ok(s.wait_for(lambda: status_of(s) == ["normal"]), f"one line at the start: {LINE.findall(s.log())}")
            s.post("/v1/completions", {"prompt": "x", "max_tokens": 4})
            box.others = 4 * GIB * 96 // 100
            ok(s.wait_for(lambda: status_of(s)[-1:] == ["critical"]), f"others take the memory: {LINE.findall(s.log())[-1:]}")
            ok(s.wait_for(lambda: "warning: other processes take the memory" in s.log()) and "training." not in s.log(), "with what might be done, for a server")
            box.others = GIB
            if not quiet: ok(s.wait_for(lambda: status_of(s) == ["normal", "critical", "normal"]) and int(LINE.findall(s.log())[-1][1]) > 0, f"and when it is over: {LINE.findall(s.log())[-1:]}")
            ok(s.stop() == 0 and ("normal" in status_of(s)) != quiet, "stopped")
    with server.Server(m, "--monitor-every", 1, program=plim.PLIMSOLL) as s:
        ok(s.wait_for(lambda: status_of(s).count("normal") >= 3), "every second, while nothing is to do")
bad = plim.run("serve", m, "--monitor-every", "-1")
ok(bad.returncode != 0 and bad.stderr.count("\n") == 1 and "--monitor-every" in bad.stderr, f"{bad.stderr.strip()}")
plim.done()
