#!/usr/bin/env python3
"""A server's line moves under load: no request fails, the same text comes, and the bytes seen from outside follow within a second.
Also what else the control socket takes, and refuses."""
# run-tests: timeout=300, not=asan, not=tsan
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import json
import socket
import stat
import tempfile
import threading
import time

import llama_folder
import plim
from plim import ok
import server

server.need_http()
LINE = 224 << 20


def ask(path, message, timeout=20):
    """The reply of a control socket."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(timeout)
        s.connect(path)
        s.sendall(json.dumps(message).encode() + b"\n")
        got = b""
        while not got.endswith(b"\n"):
            piece = s.recv(65536)
            if not piece: break
            got += piece
    return json.loads(got)


def rss(pid):
    with open(f"/proc/{pid}/statm") as f: return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Load:
    """Clients that ask the same few things again and again; every answer is compared."""

    def __init__(self, s, clients=6):
        self.s, self.stop, self.failures, self.answers = s, False, [], 0
        self.wanted = [self.one(i) for i in range(4)]
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(clients)]
        for t in self.threads: t.start()

    def one(self, i):
        code, r = self.s.post("/v1/completions", {"prompt": "The ship " * (4 + 5 * i), "max_tokens": 24, "temperature": 0, "ignore_eos": True})
        return r["choices"][0]["text"] if code == 200 else (code, r)

    def work(self, i):
        while not self.stop:
            got = self.one(i % 4)
            if got != self.wanted[i % 4]: self.failures.append(got)
            self.answers += 1

    def end(self):
        self.stop = True
        for t in self.threads: t.join()


def moves(s, path):
    load, used = Load(s), ask(path, {"do": "status"})["used"]
    held = rss(s.process.pid)
    for share in (60, 30, 100):
        bytes_, before, answers = LINE * share // 100, held, load.answers
        r = ask(path, {"do": "budget", "bytes": bytes_})
        told = time.time()
        ok(r["ok"] and r["applied"] and r["budget"] == bytes_ and 0 < r["used"] <= bytes_, f"{share} %: {r}")
        moved, used = r["used"] - used, r["used"]
        follows = lambda: (rss(s.process.pid) - before) / moved > 0.8 and rss(s.process.pid) <= bytes_
        while not follows() and time.time() < told + 1 + 4 * plim.SANITIZED: time.sleep(0.01)
        held = rss(s.process.pid)
        ok(plim.SANITIZED or follows(), f"{share} %: seen from outside {held} of {bytes_}, {(held - before) / moved:.2f} of the move, within {time.time() - told:.2f} s")
        s.wait_for(lambda: load.answers >= answers + 12)
    load.end()
    ok(not load.failures and load.answers > 30, f"{load.answers} answers under way meanwhile, none other than alone {load.failures[:1]}")
    ok(s.metric("budget_bytes") == LINE, "the line is where it was")


def refusals(s, path):
    r = ask(path, {"do": "budget", "bytes": 1 << 20})
    ok(not r["ok"] and "1.00 MiB" in r["error"] and "need" in r["error"], f"a line that holds nothing: {r}")
    ok(ask(path, {"do": "status"})["budget"] == LINE, "and the old one stays")
    for message in ({"do": "budget"}, {"do": "budget", "bytes": -1}, {"do": "budget", "bytes": "many"}, {"do": "checkpoint"}, {"no": 1}, [1]):
        r = ask(path, message)
        ok(not r["ok"] and r["error"] and "\n" not in r["error"], f"{message}: {r['error']}")


def status(s, path):
    r = ask(path, {"do": "status"})
    hold = json.loads(s.get("/hold")[1])
    ok(r["ok"] and r["status"] == "ok" and r["plan"] == hold["plan"] and r["blocks"] == hold["blocks"], f"status is what /hold says {r}")
    mode = os.stat(path).st_mode
    ok(stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, f"the socket is its owner's {oct(mode)}")


def stops(s, path):
    slow = server.background(s.post, "/v1/completions", {"prompt": "x", "max_tokens": 200, "temperature": 0, "ignore_eos": True})
    s.wait_for(lambda: json.loads(s.get("/hold")[1])["running"] == 1)
    r = ask(path, {"do": "stop"})
    slow.join()
    ok(r["ok"] and slow.result[0] == 200 and slow.result[1]["usage"]["completion_tokens"] == 200, f"stop answers what is under way first {r}")
    ok(s.process.wait(60) == 0 and not os.path.exists(path), "then it ends with 0, and the socket is gone")


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/m", hidden_size=128, head_dim=128, num_attention_heads=8, num_key_value_heads=8)
        path = f"{folder}/control.sock"
        flags = ("--budget", LINE, "--max-context", 256, "--parallel", 40, "--http-threads", 2, "--max-connections", 64)
        with server.Server(model, *flags, "--control", path, program=plim.PLIMSOLL) as s:
            status(s, path)
            moves(s, path)
            refusals(s, path)
            second = plim.run("serve", model, "--port", 0, "--device", "cpu", "--control", path)
            ok(second.returncode == 75 and "--control" in second.stderr, f"a second server at the same socket: {second.stderr.splitlines()[-1]}")
            stops(s, path)
            s.stop()
        os.environ["XDG_RUNTIME_DIR"] = folder
        with server.Server(model, *flags, program=plim.PLIMSOLL) as s:
            path = f"{folder}/plimsoll/serve-{s.port}.sock"
            ok(ask(path, {"do": "status"})["ok"] and stat.S_IMODE(os.stat(f"{folder}/plimsoll").st_mode) == 0o700, "the default socket")
            ok(s.stop() == 0 and not os.path.exists(path), "is gone after SIGTERM")
        del os.environ["XDG_RUNTIME_DIR"]
        with server.Server(model, *flags, program=plim.PLIMSOLL) as s:
            ok("no control socket: XDG_RUNTIME_DIR" in s.log(), "without a place for one the log says so")
    plim.done()


main()
