#!/usr/bin/env python3
"""A server among bad clients and on a bad day: clients that vanish or do not read, idle and trickling connections, nonsense,
a full queue, an engine that fails, signals. Nothing hangs, nothing is left over, others are served."""
# run-tests: timeout=600
import concurrent.futures
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
from plim import ok
import server
from server import Server, background

server.need_http()
MANY = 8 if plim.SANITIZED else 32


def post_bytes(path, body, extra=""):
    body = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def open_stream(s, ask, receive=None):
    return server.open_connection(s, "/v1/completions", ask, receive)


def reset(c):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()


def loading(m):
    s = Server(m, engine="load=4000")  # for four requests on a busy machine
    code, headers, text = s.request("POST", "/v1/completions", {"prompt": "x"})
    ok(code == 503 and headers["Retry-After"] and json.loads(text)["error"]["code"] == "loading", f"503 while loading {text.strip()}")
    ok(s.get("/health") == (503, '{"status":"loading"}\n') and s.get("/metrics")[0] == 200 and s.get("/hold")[0] == 200, "health says so, metrics work")
    with s: ok(s.get("/health")[0] == 200, "and 200 when it is ready")
    s = Server(m, engine="load=4000")
    ok(s.get("/health")[0] == 503, "one that loads")
    s.process.send_signal(signal.SIGTERM)
    ok(s.process.wait(60) == 0 and s.log().splitlines()[-1] == "stopped", "SIGTERM ends it as if it were ready")
    s.stop()
    code = Server(m, engine="refuse=2")
    code.process.wait(60)
    ok(code.stop() == 3 and "buffer allocation before stage weights_mapped" in code.log() and "host" in code.log(), f"an engine that does not fit: exit 3, {code.log()[-200:]}")


def full_queue(m):
    with Server(m, "--parallel", 1, "--queue", 3, "--max-context", 100000, engine="delay=3") as s:
        ask = {"prompt": "abc", "max_tokens": 30, "temperature": 0}
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            got = list(pool.map(lambda _: s.request("POST", "/v1/completions", ask), range(40)))
        good = [json.loads(t)["choices"][0]["text"] for c, h, t in got if c == 200]
        full = [(h, json.loads(t)) for c, h, t in got if c == 429]
        ok(len(good) + len(full) == 40 and good and full and set(good) == {"abc" * 10}, f"overload: {len(good)} answered, {len(full)} told to come later")
        ok(all(1 <= int(h["Retry-After"]) <= 60 and e["error"]["type"] == "overloaded_error" for h, e in full), "429 has Retry-After")
        ok(s.wait_for(s.idle) and s.metric("num_requests_waiting") == 0, "the queue is empty afterwards")
        code, r = s.post("/v1/completions", dict(ask, n=5))
        ok(code == 422 and r["error"]["param"] == "n", "more choices than there can be requests")
        held = open_stream(s, dict(ask, max_tokens=20000))  # a minute, if nobody hangs up
        ok(s.wait_for(lambda: s.metric("num_requests_running") == 1), "one request runs")
        code, headers, text = s.request("POST", "/v1/completions", dict(ask, n=4))
        ok(code == 429 and s.wait_for(lambda: s.metric("num_requests_waiting") == 0), "choices are taken all or none")
        reset(held)
        ok(s.wait_for(s.idle), "nothing left")


def vanish(m):
    with Server(m, "--parallel", 8, "--queue", 1000, "--max-context", 100000, engine="delay=1") as s:
        before = s.metric("request_success_total", finished_reason="abort")
        long = {"prompt": "abc", "max_tokens": 10000, "temperature": 0}
        clients = [open_stream(s, dict(long, stream=i % 2 == 0)) for i in range(MANY)]
        ok(s.wait_for(lambda: s.metric("num_requests_running") == 8 and s.metric("num_requests_waiting") == MANY - 8), "requests run and wait")
        for i, c in enumerate(clients):
            if i % 4 == 0: c.recv(100)
            if i % 3 == 0: reset(c)
            else: c.close()
        ok(s.wait_for(s.idle), f"{MANY} clients vanished, mid-stream or waiting: their blocks are free")
        ok(s.wait_for(lambda: s.metric("request_success_total", finished_reason="abort") == before + MANY), "each was counted")
        ok(s.post("/v1/completions", {"prompt": "ab", "max_tokens": 2, "temperature": 0})[1]["choices"][0]["text"] == "ab", "others are served")


def slow_readers(m):
    with Server(m, "--timeout", 1, "--parallel", 4, "--max-context", 4000000, engine="") as s:
        ask = {"prompt": "abc", "temperature": 0, "stream": True, "logprobs": 20}
        clients = [open_stream(s, dict(ask, max_tokens=n), 4096) for n in (30000, 30000, 90000)]
        ok(s.post("/v1/completions", {"prompt": "ab", "max_tokens": 2, "temperature": 0})[0] == 200, "three clients do not read; others are served")
        ok(s.wait_for(lambda: s.metric("http_requests_active") == 1 and s.idle(), 60), "after a while they are hung up on")
        ok(s.metric("generation_tokens_total") < 145000, f"a request that ran ahead of its client was cancelled: {s.metric('generation_tokens_total'):.0f} tokens")
        for c in clients:
            text = b""
            try:
                while piece := c.recv(1 << 20): text += piece
            except OSError: pass
            ok(text and not text.endswith(b"0\r\n\r\n"), f"what they got is cut off and looks so ({len(text)} bytes)")
            c.close()
    with Server(m, "--timeout", 20) as s:
        c = open_stream(s, {"prompt": "abc", "temperature": 0, "stream": True, "logprobs": 20, "max_tokens": 400}, 4096)
        time.sleep(0.3)
        text = b""
        while not text.endswith(b"0\r\n\r\n"): text += c.recv(2048)
        ok(text.count(b'"finish_reason":"length"') == 1 and b"[DONE]" in text, f"a client that reads late and in small pieces gets all {len(text)} bytes")
        c.close()


def idle(m):
    with Server(m, "--max-connections", 64) as s:
        clients = []
        for i in range(200):
            clients.append(socket.create_connection(("127.0.0.1", s.port)))
            if i % 3 == 0: clients[-1].sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\n")
        ok(s.post("/v1/completions", {"prompt": "ab", "max_tokens": 2})[0] == 200, "200 idle connections do not shut others out")
        ok(s.wait_for(lambda: s.metric("http_connections") <= 34), f"half of the connections at most are idle: {s.metric('http_connections')}")
        for c in clients: c.close()
        ok(s.wait_for(lambda: s.metric("http_connections") == 1), "and all are gone when their clients are")
    with Server(m, "--timeout", 1) as s:
        c = socket.create_connection(("127.0.0.1", s.port))
        c.settimeout(30)
        closed = False
        for byte in b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n" + b"x" * 400:
            try:
                c.sendall(bytes([byte]))
                c.setblocking(False)
                try:
                    if c.recv(100) == b"": closed = True
                except BlockingIOError: pass
                c.setblocking(True)
            except OSError: closed = True
            if closed: break
            time.sleep(0.02)
        c.close()
        ok(closed, "a request that trickles in is hung up on")


def nonsense(m):
    with Server(m, "--max-body", 4096, "--timeout", 2) as s:
        cases = {b"\x00\x01\x02garbage\r\n\r\n": b"", b"GET\r\n\r\n": b"4", b"GET /health HTTP/9.9\r\n\r\n": b"", b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n": b"4",
                 b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n": b"4", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100000 + b"\r\n\r\n": b"431",
                 b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n": b"4", b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nZZ\r\n": b"4",
                 b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + b"1000\r\n" + b"x" * 4096 + b"\r\n" + b"1000\r\n" + b"x" * 4096 + b"\r\n0\r\n\r\n": b"413",
                 b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\nConnection: close\r\n\r\n" + b"x" * 5000: b"413",
                 b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc": b""}
        for data, status in cases.items():
            got = s.raw(data, 30)
            line = got.split(b"\r\n")[0]
            ok(not got or (line.startswith(b"HTTP/1.1 ") and line.split()[1].startswith(status)), f"{data[:40]!r}: {line!r}")
        rng = random.Random(7)
        seed = json.dumps({"prompt": "abc", "max_tokens": 3, "temperature": 0.5, "stop": ["b"], "n": 1, "stream": False}).encode()
        codes = set()
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        for _ in range(100 if plim.SANITIZED else 400):
            body = bytearray(seed)
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(body))
                body[at:at + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(3)))
            c.request("POST", rng.choice(["/v1/completions", "/generate", "/v1/chat/completions", "/tokenize", "/detokenize"]), bytes(body))
            r = c.getresponse()
            json.loads(r.read())
            codes.add(r.status)
        c.close()
        ok(codes <= {200, 400, 404, 422}, f"damaged bodies on one connection: {sorted(codes)}")
        pipelined = post_bytes("/generate", {"prompt": "a", "max_tokens": 1, "temperature": 0}) * 3 + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ok(s.raw(pipelined).count(b"HTTP/1.1 200") == 4, "requests sent at once are answered one after the other")
        old = s.raw(post_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 3, "temperature": 0, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        ok(b"data: [DONE]" in old and b"chunked" not in old, "HTTP/1.0 streams until the connection closes")
        ok(s.wait_for(s.idle) and s.process.poll() is None, "the server is well")


def drain(m):
    with Server(m, engine="delay=30") as s:
        ask = {"prompt": "abcde", "max_tokens": 100, "temperature": 0}  # 3 s: all of the following is asked meanwhile
        whole, streamed = background(s.post, "/v1/completions", ask), background(s.stream, "/v1/completions", ask)
        ok(s.wait_for(lambda: s.metric("num_requests_running") == 2), "two requests run")
        s.process.send_signal(signal.SIGTERM)
        ok(s.wait_for(lambda: s.get("/health")[0] == 503), "SIGTERM: health says 503")
        code, r = s.post("/v1/completions", ask)
        ok(code == 503 and r["error"]["code"] == "shutting_down", "new requests are refused")
        whole.join(), streamed.join()
        ok(whole.result[1]["choices"][0]["text"] == "abcde" * 20 == "".join(e["choices"][0]["text"] for e in streamed.result[:-1]), "those there are answered")
        s.process.wait(60) # a second signal would end it at once
        ok(s.stop() == 0 and s.log().splitlines()[-1] == "stopped", "exit 0")
    with Server(m) as s:
        request = post_bytes("/generate", {"prompt": "a", "max_tokens": 1, "temperature": 0})
        halves = [socket.create_connection(("127.0.0.1", s.port), timeout=60) for _ in range(2)]
        halves[0].sendall(request[:-3])  # the other has said nothing yet
        ok(s.wait_for(lambda: s.metric("http_connections") >= 3), "a request is on its way")
        s.process.send_signal(signal.SIGTERM)
        ok(s.wait_for(lambda: "stopping" in s.log()), "SIGTERM with nothing under way")
        halves[0].sendall(request[-3:])
        halves[1].sendall(request)
        told = [c.recv(4096) for c in halves]
        ok(all(b"503" in t and b"shutting_down" in t for t in told), "what was on its way is answered with 503")
        s.process.wait(60)
        ok(s.stop() == 0, "exit 0")
    with Server(m, "--drain", 1, "--timeout", 60, "--max-context", 100000, engine="") as s:
        c = open_stream(s, {"prompt": "abcde", "max_tokens": 90000, "temperature": 0, "logprobs": 2, "stream": False}, 4096)
        ok(s.wait_for(lambda: s.metric("generation_tokens_total") >= 90000 and s.idle(), 300), "an answer that nobody reads")
        s.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        s.process.wait(120)
        ok(time.monotonic() - began < 30, f"does not hold up the end: {time.monotonic() - began:.1f} s")
        c.close()
    with Server(m, "--drain", 1, "--max-context", 100000, engine="delay=5") as s:
        c = open_stream(s, {"prompt": "abcde", "max_tokens": 90000, "temperature": 0, "stream": True})
        ok(s.wait_for(lambda: s.metric("num_requests_running") == 1), "a long request runs")
        ok(s.stop() == 0 and "1 requests were not answered in time" in s.log(), "the drain has an end")
        c.close()


def bad_engine(m):
    with Server(m, engine="fail=3,delay=1") as s: # the warm-up is the first
        ask = {"prompt": "abcde", "max_tokens": 10, "temperature": 0}
        ok(s.post("/v1/completions", ask)[0] == 200, "a request that works")
        code, r = s.post("/v1/completions", ask)
        ok(code == 500 and "failed it" in r["error"]["message"] and r["error"]["type"] == "server_error", f"one that the engine failed: {r}")
        ok(s.post("/v1/completions", ask)[0] == 200, "the next works")
    with Server(m, engine="fail=2,delay=1") as s:
        c = open_stream(s, dict(ask, stream=True))
        got = b""
        while piece := c.recv(65536): got += piece
        c.close()
        ok(b'"error"' in got and b"[DONE]" not in got and not got.endswith(b"0\r\n\r\n"), "a stream that fails says so and is cut off")
    with Server(m, engine="step_fail=20,delay=1") as s:
        code, r = s.post("/v1/completions", dict(ask, max_tokens=40))
        ok(code == 200 and r["choices"][0]["text"] == "abcde" * 8, "a step that fails once is tried again")
        s.stop()
        ok("failed: a step failed: the fake device was lost" in s.log(), "and logged; the device still answers, so it is not lost")
    s = Server(m, engine="dead=30,delay=1")
    with s:
        answer = background(s.post, "/v1/completions", dict(ask, max_tokens=100))
        code = s.process.wait(60)
        answer.join()
        ok(code == 2 and s.log().count("a step failed: the fake device is dead") == 3, f"a device that stays dead ends the server: exit {code}")
        ok(answer.result[0] == 500 and "dead" in answer.result[1]["error"]["message"], f"who waited is told why: {answer.result}")


def too_large(m):
    with Server(m, "--parallel", 8, "--max-context", 100000, engine="") as s:
        code, r = s.post("/v1/completions", {"prompt": "abc", "max_tokens": 90000, "n": 8, "logprobs": 20})
        ok(code == 400 and r["error"]["code"] == "answer_too_large", f"an answer beyond what is there for answers, on an idle server: {r}")
        ok(s.post("/v1/completions", {"prompt": "abc", "max_tokens": 90000, "temperature": 0})[0] == 200, "the longest one that is promised")


def memory(m):
    if plim.SANITIZED: return plim.skip("sanitizers have memory of their own")
    with Server(m, "--parallel", 8, "--queue", 100, "--max-body", 65536) as s:
        ask = {"prompt": "x" * 200, "max_tokens": 200}
        first, most = s.metric("process_resident_bytes"), s.metric("server_bytes_most")
        with concurrent.futures.ThreadPoolExecutor(32) as pool: list(pool.map(lambda _: s.request("POST", "/v1/completions", ask), range(400)))
        grown = s.metric("process_resident_bytes") - first
        ok(grown < most, f"400 requests: grown by {grown / 1e6:.1f} MB of {most / 1e6:.1f} MB that are allowed")


def main():
    if plim.SANITIZED: # all of the endpoints, too
        r = subprocess.run([sys.executable, os.path.join(plim.SRC_DIR, "tests", "cli", "serve.py")], capture_output=True, text=True)
        ok(r.returncode == 0, "tests/cli/serve.py: " + "\n".join(l for l in (r.stdout + r.stderr).splitlines() if not l.startswith(("ok", "1..")))[-3000:])
    with tempfile.TemporaryDirectory() as folder:
        m = server.model(f"{folder}/m")
        for part in (loading, full_queue, vanish, slow_readers, idle, nonsense, drain, bad_engine, too_large, memory): part(m)
    plim.done()


main()
