#!/usr/bin/env python3
"""overload.py [--minutes N] [--clients N] [--model FOLDER] [FLAG...] - ten times as many clients as a server's queue takes, then bad ones.

Mixed requests of all text endpoints, some of which cannot be, from clients some of which leave: every one is answered with 200, 400, 404, 422
or 429, every answer is the one that was given before the storm, and the process, read from outside, stays below the budget. With --minutes 1
or more, whoever is taken also waits no longer than those before it take; a few seconds on a busy machine cannot tell. Then clients that vanish, read slowly or not at all, show wrong keys or send garbage: nothing is left
over, and answers are the same as ever. Prints what came of them and how long they took. FLAGs are those of plimsoll serve."""
# run-tests: timeout=300, not=tsan
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import collections
import http.client
import json
import random
import resource
import socket
import struct
import tempfile
import threading
import time

import plim
from plim import ok
import server

KEY = {"Authorization": "Bearer key-for-tests"}
WRONG = [("/v1/completions", {"prompt": "x", "max_tokens": 1 << 20}, 400), ("/v1/completions", {"prompt": "x", "temperature": "hot"}, 422), ("/generate", b"{", 400),
         ("/v1/completions", {"prompt": "x", "model": "another"}, 404), ("/generate", {"prompt": "x", "max_tokns": 3}, 422), ("/v1/nothing", {}, 404)]


def asks(rng, count):
    """Requests that have one answer."""
    found = []
    for i in range(count):
        prompt = "".join(rng.choice("abcdefgh The ship") for _ in range(rng.randrange(1, 120)))
        ask = {"prompt": prompt, "max_tokens": rng.randrange(1, 60), "temperature": rng.choice([0, 0, 0.8]), "seed": i, "ignore_eos": True}
        path = rng.choice(["/v1/completions", "/v1/completions", "/generate"])
        if path == "/v1/completions" and i % 4 == 0: ask["logprobs"] = 3
        if path == "/v1/completions" and i % 5 == 0: ask["n"] = 2
        found.append((path, ask))
    return found


def texts(path, stream, body):
    """The answers in a body, by choice."""
    if not stream:
        r = json.loads(body)
        return [r["generated_text"]] if path == "/generate" else [c["text"] for c in r["choices"]]
    events = [e[6:] for e in body.split("\n\n") if e]
    if path == "/generate": return [json.loads(events[-1])["generated_text"]]
    if events[-1] != "[DONE]": raise ValueError("a stream without its end")
    found = collections.defaultdict(str)
    for e in events[:-1]:
        for c in json.loads(e)["choices"]: found[c["index"]] += c["text"]
    return [found[i] for i in sorted(found)]


class Client(threading.Thread):
    """Asks until the time is up; what it saw is in codes, times and wrong."""

    def __init__(self, s, seed, until, known):
        super().__init__()
        self.s, self.rng, self.until, self.known = s, random.Random(seed), until, known
        self.codes, self.times, self.wrong, self.left = collections.Counter(), [], [], 0

    def run(self):
        while time.time() < self.until:
            try:
                self.once()
            except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
                self.wrong.append(repr(e))

    def once(self):
        kind = self.rng.random()
        if kind < 0.1: return self.bad(*self.rng.choice(WRONG))
        path, ask, wanted = self.rng.choice(self.known)
        stream = self.rng.random() < 0.5
        if kind > 0.95: return self.leave(path, ask)
        begin = time.time()
        code, headers, body = self.s.request("POST", path, json.dumps(dict(ask, stream=stream)), KEY)
        self.codes[code] += 1
        if code == 200:
            self.times.append(time.time() - begin)
            got = texts(path, stream, body)
            if got != wanted: self.wrong.append(f"{got!r} for {wanted!r}")
        elif code == 429:
            if not headers.get("Retry-After"): self.wrong.append("429 without Retry-After")
            time.sleep(self.rng.random() * 0.05)
        else:
            self.wrong.append(f"{code}: {body[:200]}")

    def bad(self, path, ask, expected):
        code, headers, body = self.s.request("POST", path, ask if isinstance(ask, bytes) else json.dumps(ask), KEY)
        self.codes[code] += 1
        if code != expected or not json.loads(body)["error"]["message"]: self.wrong.append(f"{code} for {expected}: {body[:200]}")

    def leave(self, path, ask):
        c = connect(self.s, path, dict(ask, stream=True))
        c.recv(self.rng.randrange(1, 400))
        c.close()
        self.left += 1


def connect(s, path, ask, receive=None):
    return server.open_connection(s, path, ask, receive, "Authorization: Bearer key-for-tests\r\n")


def storm(s, clients, seconds, known, room):
    begin, peak = time.time(), 0
    clients = [Client(s, i, begin + seconds, known) for i in range(clients)]
    for c in clients: c.start()
    while any(c.is_alive() for c in clients):
        peak = max(peak, server.resident(s.process)[0])
        time.sleep(0.05)
    took = time.time() - begin
    codes, times = sum((c.codes for c in clients), collections.Counter()), sorted(t for c in clients for t in c.times)
    wrong = [w for c in clients for w in c.wrong]
    ok(not wrong, f"{len(clients)} clients for {took:.0f} s: every request is answered and right: {dict(sorted(codes.items()))}, {sum(c.left for c in clients)} left; {wrong[:3]}")
    ok(codes[200] > 0 and codes[429] > 0, "some are answered, some are told to come later")
    at = lambda q: times[min(int(q * len(times)), len(times) - 1)]
    print(f"# {len(times)} answered, {len(times) / took:.1f}/s; latency s: p50 {at(0.5):.3f}, p95 {at(0.95):.3f}, p99 {at(0.99):.3f}, most {at(1):.3f}")
    turn = took / len(times)  # what one answer takes of the server, on average
    if seconds >= 60: ok(at(0.99) <= 5 * room * turn + 1, f"who is taken waits for those before it alone: p99 {at(0.99):.2f} s, {room} x {turn * 1000:.1f} ms")
    return peak


def vanish(s, known, count):
    longest = max(known, key=lambda k: k[1]["max_tokens"])[1]
    for i in range(0, count, 10):
        gone = [connect(s, "/v1/completions", dict(longest, n=1, stream=True)) for _ in range(10)]
        for k, c in enumerate(gone):
            if k % 2: c.recv(60)
            if k % 3 == 0: c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.close()
    ok(s.wait_for(lambda: server.is_idle(s, KEY)), f"{count} clients vanished mid-stream: nothing of theirs is left")


def slow(s, known, count):
    clients = [connect(s, path, dict(ask, n=1, stream=True), 2048) for path, ask, _ in known[:count]]
    time.sleep(0.2)
    whole = 0
    for c in clients:
        got = b""
        while not got.endswith(b"0\r\n\r\n") and (piece := c.recv(512)): got += piece
        whole += b" 429 " in got or b"[DONE]" in got or b"generated_text" in got
        c.close()
    ok(whole == count, f"{whole} slow readers have all of their answer")


def idle(s, count):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most == resource.RLIM_INFINITY or most > 4096: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, most))
    clients = [socket.create_connection(("127.0.0.1", s.port), timeout=30) for _ in range(min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 64))]
    for c in clients[::3]:
        try:
            c.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\n")
        except OSError: pass  # hung up on already
    ok(s.request("GET", "/health")[0] == 200, f"beside {len(clients)} idle connections others are served")
    for c in clients: c.close()


def garbage(s, count, seed=3):
    """Requests that were damaged, and bytes that never were one."""
    rng, strange = random.Random(seed), []
    whole = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-for-tests\r\nConnection: close\r\nContent-Length: 40\r\n\r\n" + b'{"prompt": "abc", "max_tokens": 2, "n":1}'
    for i in range(count):
        data = bytearray(whole if i % 4 else rng.randbytes(rng.randrange(1, 300)))
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(data) + 1)
            data[at:at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        try:
            with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:
                c.sendall(data)
                c.shutdown(socket.SHUT_WR)
                got = c.recv(4096)
        except ConnectionError:
            continue
        if got and not (got.startswith(b"HTTP/1.") and got.split()[1][:1] in b"1245"): strange.append(got[:60])
    ok(not strange and s.request("GET", "/health")[0] == 200, f"{count} pieces of garbage: refused or hung up on {strange[:2]}")


def keys(s, count):
    rng = random.Random(5)
    tries = [None, "", "Bearer", "Bearer ", "Basic key-for-tests", "Bearer key-for-test", "Bearer key-for-tests2"] + ["Bearer " + "".join(rng.choice("abkey-") for _ in range(rng.randrange(200))) for _ in range(count)]
    codes = {s.request("POST", "/v1/completions", '{"prompt": "x"}', {"Authorization": t} if t is not None else {})[0] for t in tries}
    ok(codes == {401}, f"{len(tries)} wrong keys: {codes}")


def answers(s, known):
    return [(path, ask, texts(path, False, s.request("POST", path, json.dumps(ask), KEY)[2])) for path, ask, *_ in known]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=4 / 60)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--model")
    args, flags = parser.parse_known_args()
    server.need_http()
    few = plim.SANITIZED
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or f"{folder}/run"
        if not args.model: ok(plim.run("train", plim.job(folder, training__steps=6, training__learning_rate="3e-3"), "-q").returncode == 0, "trained")
        with open(f"{folder}/keys", "w") as f: f.write("key-for-tests\n")
        flags = flags or ["--budget", "64MiB", "--parallel", 4, "--queue", 4, "--max-context", 256, "--max-body", "64KiB", "--max-connections", 128]
        with server.Server(model, *flags, "--api-key-file", f"{folder}/keys", "--threads", 2, program=plim.PLIMSOLL) as s:
            plan = json.loads(s.request("GET", "/hold", None, KEY)[2])["plan"]
            known = answers(s, asks(random.Random(1), 24))
            peak = storm(s, args.clients or 10 * plan["queue"], 60 * args.minutes, known, plan["parallel"] + plan["queue"])
            vanish(s, known, 20 if few else 100)
            slow(s, known, 4)
            idle(s, 200 if few else 1000)
            garbage(s, 60 if few else int(300 + 3000 * args.minutes))
            keys(s, 20 if few else 100)
            ok(s.wait_for(lambda: server.is_idle(s, KEY)), "nothing is left over")
            ok(answers(s, known) == known, "and answers are the same as before")
            hold, most = json.loads(s.request("GET", "/hold", None, KEY)[2]), max(peak, server.resident(s.process)[1])
            if not few: ok(hold["used"] == plan["total"] and most <= (hold["budget"] or most), f"memory at most {most / 1e6:.1f} MB, planned {plan['total'] / 1e6:.1f} MB, the line {hold['budget'] / 1e6:.1f} MB; {hold['preemptions']} preemptions")
            code = s.stop()
            ok(code == 0 and "Sanitizer" not in s.log(), f"it stops: {code}")
    plim.done()


main()
