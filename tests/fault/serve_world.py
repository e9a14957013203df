#!/usr/bin/env python3
"""A server against the world around it: signals, a log that nobody reads, few open files, silent connections at its control socket, requests that a proxy
would read differently, names that are none of ours, keys at every endpoint, bodies that are too many together."""
# run-tests: timeout=300
import errno
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import plim
from plim import ok
import server
from server import Server

server.need_http()
ASK = {"prompt": "abc", "max_tokens": 2, "temperature": 0}


def post_bytes(path, ask, more=""):
    body = json.dumps(ask).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


# --- signals and files ----------------------------------------------------------------------------------------

def is_running(port):
    """Has the server taken a request?"""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("GET", "/hold")
        return json.loads(c.getresponse().read())["running"] > 0
    finally:
        c.close()


def signals(m):
    env = dict(os.environ, PLIMSOLL_FAKE_ENGINE="delay=5")
    process = subprocess.Popen([server.FAKE, "serve", m, "--port", "0", "--device", "cpu", "--verbose"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    port = int(process.stdout.readline().rsplit(":", 1)[1])
    for line in process.stderr:
        if "ready after" in line: break
    process.stderr.close()  # the log has no reader from here on
    c = socket.create_connection(("127.0.0.1", port), timeout=30)
    c.sendall(post_bytes("/v1/completions", dict(ASK, max_tokens=400), "Connection: close\r\n"))
    until = time.time() + 60
    while not is_running(port) and time.time() < until: time.sleep(0.01)
    process.send_signal(signal.SIGTERM)  # logs a line
    got = b""
    try:
        while piece := c.recv(65536): got += piece
    except OSError: pass
    process.stdout.close()
    code = process.wait(60)
    ok(code == 0 and b" 200 " in got[:20], f"a log that nobody reads ends nothing: exit {code}, {got[:20]!r}")
    with Server(m) as s:
        s.process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        ok(s.process.poll() is None and s.post("/v1/completions", ASK)[0] == 200, "SIGUSR1 is not for servers")


def start_with_files(m, soft, hard):
    """A server that may have so many open files."""
    command = ["sh", "-c", f"ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\"", "sh", server.FAKE, "serve", m, "--port", "0", "--device", "cpu"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files(m):
    if plim.SANITIZED: return plim.skip("sanitizers have files of their own")
    p = start_with_files(m, 20, 20)
    told = p.communicate(timeout=60)
    ok(p.returncode == 1 or p.returncode == 2, f"20 files are too few: exit {p.returncode}")
    ok("limit of 20 open files" in told[1] and "ulimit -n" in told[1] and not told[0], f"and said before anybody is told the address: {told[1].strip()[-150:]}")
    for soft, hard, warned in ((20, 1500, False), (100, 100, True)):
        p = start_with_files(m, soft, hard)
        port = int(p.stdout.readline().rsplit(":", 1)[1])
        lines = ""
        for line in p.stderr:
            lines += line
            if "ready after" in line: break
        idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(150)]
        c = socket.create_connection(("127.0.0.1", port), timeout=30)
        c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        got = c.recv(100)
        ok(b" 200 " in got, f"{soft} of {hard} files and 150 idle connections: health answers {got[:15]!r}")
        ok(("open files" in lines) == warned, f"fewer connections are said: {warned}")
        for i in idle: i.close()
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=60)


def knock(path):
    """A connection to a control socket. Its queue is short: where it is full the next one waits a moment."""
    until = time.time() + 60
    while True:
        c = socket.socket(socket.AF_UNIX)
        c.settimeout(60)
        try:
            c.connect(path)
            return c
        except OSError as e:
            c.close()
            if e.errno != errno.EAGAIN or time.time() > until: raise
        time.sleep(0.01)


def control(m, folder):
    path = f"{folder}/control.sock"
    with Server(m, "--control", path) as s:
        silent = []
        for _ in range(17): silent.append(knock(path))
        with knock(path) as c:
            c.sendall(b'{"do":"status"}\n')
            try:
                got = c.recv(100)
            except OSError as e: got = repr(e).encode()
        ok(got.startswith(b'{"ok":true'), f"17 silent clients do not shut the control socket: {got[:30]!r}")
        for c in silent: c.close()


def stop_under_load(m):
    """Whoever was let in before the end is answered, if only with 503."""
    with Server(m, engine="delay=2") as s:
        stop, silent, answers = threading.Event(), [], []
        def work():
            while not stop.is_set():
                try:
                    c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
                except OSError:
                    return
                try:
                    c.sendall(post_bytes("/v1/completions", dict(ASK, max_tokens=8), "Connection: close\r\n"))
                    got = c.recv(65536)
                except OSError as e:
                    got = b""
                (answers if got.startswith(b"HTTP/1.1 ") else silent).append(got)
                c.close()
        clients = [threading.Thread(target=work) for _ in range(24)]
        for c in clients: c.start()
        s.wait_for(lambda: len(answers) > 100)
        s.process.send_signal(signal.SIGTERM)
        code = s.process.wait(60)
        stop.set()
        for c in clients: c.join()
        ok(code == 0 and not silent, f"SIGTERM under load: {len(answers)} answers, {len(silent)} connections closed without a byte")


# --- requests that two would read differently -----------------------------------------------------------------

def smuggling(m):
    inner = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = json.dumps(ASK)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    n = len(body)
    chunk = f"{n:x}\r\n{body}\r\n0\r\n\r\n"
    cases = {
        "two lengths": head + f"Content-Length: {n}\r\nContent-Length: 4\r\n\r\n" + body,
        "two equal lengths": head + f"Content-Length: {n}\r\nContent-Length: {n}\r\n\r\n" + body,
        "a list of lengths": head + f"Content-Length: {n}, {n}\r\n\r\n" + body,
        "a length with a sign": head + f"Content-Length: +{n}\r\n\r\n" + body,
        "length and chunks": head + f"Content-Length: {n}\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
        "chunks and length": head + f"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunk,
        "two codings": head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunk,
        "an unknown coding": head + "Transfer-Encoding: xchunked\r\n\r\n" + chunk,
        "a list of codings": head + "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk,
        "a blank before the colon": head + f"Content-Length : {n}\r\n\r\n" + body,
        "a blank before the coding's colon": head + "Transfer-Encoding : chunked\r\n\r\n" + chunk,
        "two hosts": head + f"Host: evil.com\r\nContent-Length: {n}\r\n\r\n" + body,
        "a NUL in the path": "GET /health%00x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a line end in the path": "GET /health%0d%0aX HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "half an escape": "GET /health%4 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    with Server(m, "--timeout", 10) as s:
        for name, request in cases.items():
            got = s.raw((request + inner).encode(), 20)
            ok(got.startswith(b"HTTP/1.1 400 ") and b"HTTP/1.1 200" not in got and b"close" in got, f"{name}: refused, and nothing behind it is read: {got.split(bytes([13]))[0]!r}")
        for name, framing in (("a chunked body", chunk), ("chunks without carriage returns", chunk.replace("\r", ""))):
            got = s.raw((head + "Transfer-Encoding: chunked\r\n\r\n" + framing + inner).encode(), 20)
            ok(got.count(b"HTTP/1.1") == 1 and b"Connection: close" in got, f"{name}: one answer, and the connection ends: {got.split(bytes([13]))[0]!r}")
        ok(s.post("/v1/completions", ASK)[0] == 200, "an honest request is answered")


def names(m):
    with Server(m) as s:
        get = lambda host: s.raw(f"GET /hold HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()).split(b" ")[1]
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"): ok(get(host) == b"200", f"Host {host} is ours")
        for host in ("[evil.com]", "localhost:1@evil.com", "evil.com", "127.0.0.1.evil.com", "[::1].evil.com", "localhost.evil.com", "[::1", "1.2.3", "127.0.0.1:80:80", "[127.0.0.1]", "localhost:x"):
            ok(get(host) == b"403", f"Host {host} is none of ours: {get(host)}")


# --- keys and bodies ------------------------------------------------------------------------------------------

def keys(m, folder):
    """Every row of the server's table of endpoints, as it stands in its source."""
    with open(os.path.join(plim.SRC_DIR, "src", "serve", "server.c")) as f: table = re.findall(r'^ *\{"(GET|POST)", "([^"]+)", api_\w+', f.read(), re.M)
    with open(f"{folder}/keys", "w") as f: f.write("a-secret-of-ours\n")
    os.chmod(f"{folder}/keys", 0o600)
    ok(len(table) >= 11, f"{len(table)} endpoints")
    with Server(m, "--api-key-file", f"{folder}/keys") as s:
        for method, path in table:
            body = b"{}" if method == "POST" else None
            codes = [s.request(method, path, body, h)[0] for h in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer a-secret-of-ours"})]
            wanted = path not in ("/health", "/")
            ok((codes[0] == codes[1] == 401) == wanted and codes[2] != 401, f"{method} {path}: {codes}, a key is {'needed' if wanted else 'not needed'}")


def bodies(m):
    """The cap on all bodies together, with requests that are not whole."""
    with Server(m, "--max-body", "8MiB", "--timeout", 30) as s:
        head, part = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\nConnection: close\r\n\r\n", b"x" * 7900000
        clients = []
        for _ in range(8):
            c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
            c.sendall(head + part)
            clients.append(c)
        def last(c):
            c.sendall(b"x" * 100000)
            return c.recv(100)
        got = [server.background(last, c) for c in clients]
        for t in got: t.join()
        codes = [t.result.split(b" ")[1] for t in got]
        ok(codes.count(b"503") >= 1 and codes.count(b"400") >= 1 and set(codes) <= {b"503", b"400"}, f"64 MB of bodies where 32 MiB are taken: {codes}")
        for c in clients: c.close()
        ok(s.post("/v1/completions", ASK)[0] == 200, "and there is room again")


def paths(folder):
    m = server.model(f"{folder}/hidden-folder", "{{ raise_exception('no system message') }}")
    with Server(m) as s:
        code, r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        text = r["error"]["message"]
        ok(code == 422 and "no system message" in text and "hidden-folder" not in text and "/" not in text, f"a template's error does not say where the model lies: {text}")
    r = plim.run("serve", m, "--port", 0, "--device", "cpu", "--scratch", f"{folder}/absent")
    ok(r.returncode == 2 and "--scratch" in r.stderr and "no such folder" in r.stderr and not r.stdout, f"a scratch folder that is not there: {r.stderr.strip()}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        m = server.model(f"{folder}/m")
        signals(m), files(m), control(m, folder), stop_under_load(m)
        smuggling(m), names(m)
        keys(m, folder), bodies(m), paths(folder)
    plim.done()


main()
