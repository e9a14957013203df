#!/usr/bin/env python3
# run-tests: timeout=300, not=tsan
"""The page of plimsoll watch as an HTTP server: what it gives, that it is bound to the loopback, and that neither 10,000 requests nor long heads, odd paths, foreign
names or clients that never read make it grow, or make the run wait."""
import json
import os
import re
import socket
import sys
import tempfile

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import plim
from plim import ok
import server
import watching

REQUESTS = 500 if plim.SANITIZED else 10000


def gives(p, run):
    status, headers, text = p.request("GET", "/")
    ok(status == 200 and "text/html" in headers["Content-Type"] and "frame-ancestors 'none'" in headers["Content-Security-Policy"], "/ is the page")
    ok(not re.search(r"https?://|@import|url\(", text + p.get("/map.js")[1]), "which asks nobody else for anything")
    watching.wait_for(lambda: json.loads(p.get("/state")[1]).get("status"))  # a busy run may take longer than a page waits
    state = json.loads(p.get("/state")[1])
    ok(state["live"] is True and state["run"] == "run" and state["status"]["ok"] is True and state["status"]["monitor"]["gauges"], "/state tells that it is live, and what the run answers")
    log, piece = b"", b"x"
    while piece and len(log) < state["log"]["bytes"]: piece = p.request("GET", f"/log/{len(log)}")[2].encode(); log += piece
    ok(log and open(run.log, "rb").read().startswith(log), f"/log/OFFSET is the log: {len(log)} bytes")
    ok(p.request("GET", "/log/999999999999")[::2] == (200, ""), "beyond its end there is nothing yet")
    plan, piece = b"", b"x"
    while piece and len(plan) < state["plan"]["bytes"]: piece = p.request("GET", f"/plan/{len(plan)}")[2].encode(); plan += piece
    ok(json.loads(plan)["format"] == "plimsoll-snapshot", f"/plan/OFFSET is the snapshot: {len(plan)} bytes")


def prometheus(p):
    status, headers, text = p.request("GET", "/metrics")
    ok(status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), "/metrics")
    wrong = [line for line in text.splitlines() if not re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+\{run=\"run\"(,\w+=\"[^\"]*\")*\} -?[0-9.e+-]+", line)]
    ok(not wrong, f"every line is Prometheus' {wrong[:2]}")
    ok(p.metric("plimsoll_train_up") == 1 and p.metric("plimsoll_train_loss") > 0 and p.metric("plimsoll_train_memory_line_bytes", memory="budget", line="critical") > p.metric("plimsoll_train_memory_used_bytes", memory="budget") > 0, "step, loss, memory and its lines")


def refuses(p):
    for path in ("/../../etc/passwd", "/log/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/log/-1", "/log/1e9", "/log/", "/log", "/plan/0/../../x", "/log/99999999999999999999", "//etc/passwd", "/state/", "/control.sock", "/log.jsonl", "/" + "a" * 3000):
        answer = p.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        ok(answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")) and b"root:" not in answer, f"{path[:40]}: {answer[:24]!r}")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"): ok(p.request(method, "/state", "{}" if method != "OPTIONS" else None)[0] == 405, f"{method}: 405")
    ok(p.request("GET", "/state", headers={"Host": "evil.example"})[0] == 403 and p.request("GET", "/state", headers={"Host": "localhost:1"})[0] == 200, "a foreign name is refused")
    long = p.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100000 + b"\r\n\r\n")
    ok(not long or long.startswith((b"HTTP/1.1 431", b"HTTP/1.1 413", b"HTTP/1.1 400", b"HTTP/1.0 431")), f"a head of 100 kB: {long[:24]!r}")
    many = p.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"H%d: x\r\n" % i for i in range(5000)) + b"\r\n")
    ok(not many.startswith(b"HTTP/1.1 200"), f"5,000 headers: {many[:24]!r}")
    ok(p.raw(b"\x00\xff\x16\x03\x01garbage\r\n\r\n", timeout=20)[:12] != b"HTTP/1.1 200", "no HTTP at all")
    ok(p.get("/state")[0] == 200, "and it still answers")


def bound(p):
    """Of the machine's other addresses none is listened at."""
    tables = "".join(open(f"/proc/net/{t}").read() for t in ("tcp", "tcp6"))
    at = [line.split()[1] for line in tables.splitlines() if line.split()[3:4] == ["0A"] and line.split()[1].endswith(f":{p.port:04X}")]
    ok(at == [f"0100007F:{p.port:04X}"], f"it listens at the loopback alone: {at}")


def many(p, run):
    before, steps = server.resident(p.process)[0], run.steps()
    good = 0
    for i in range(REQUESTS // 50):  # fifty on a connection, without waiting for an answer
        paths = ("/state", "/metrics", "/plan/0", "/nothing")
        ask = "".join(f"GET {paths[k % 4]} HTTP/1.1\r\nHost: localhost\r\n{'Connection: close' if k == 49 else 'X: y'}\r\n\r\n" for k in range(50))
        answers = p.raw(ask.encode())
        good += answers.count(b"HTTP/1.1 200") + answers.count(b"HTTP/1.1 404")
    ok(good == REQUESTS, f"{REQUESTS} requests, {good} answers")
    mute = []
    for _ in range(200):  # more than it takes; none of them reads what it asked for
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(5)
        try:
            s.connect(("127.0.0.1", p.port))
            for _ in range(4): s.sendall(b"GET /log/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        except OSError:
            pass
        mute.append(s)
    ok(watching.wait_for(lambda: run.steps() > steps + 5), "the run goes on")
    grown = server.resident(p.process)[1] - before
    ok(plim.SANITIZED or grown < 48 << 20, f"200 clients that never read: {grown >> 20} MiB more")
    for s in mute: s.close()
    ok(watching.wait_for(lambda: p.get("/state")[0] == 200), "afterwards it answers as before")


def main():
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        with watching.Run(folder) as run:
            with watching.Page(run.folder) as p:
                ok(p.port > 0, f"the address is the first line: {p.url}")
                gives(p, run)
                prometheus(p)
                refuses(p)
                bound(p)
                many(p, run)
                taken = plim.run("watch", run.folder, "--web", "--port", p.port)
                ok(taken.returncode == 2 and taken.stderr.count("\n") == 1 and str(p.port) in taken.stderr, f"a port that is taken: {taken.stderr.strip()}")
                run.stop()
                ok(watching.wait_for(lambda: p.metric("plimsoll_train_up") == 0) and json.loads(p.get("/state")[1])["ended"], "when the run has ended the page says so, and stays")
                ok(p.stop() == 0, "a signal ends it with 0")
    plim.done()


main()
