#!/usr/bin/env python3
"""overload.py [--seconds N] [--clients N] [--model FOLDER] [FLAG...] - more requests than a server takes, for a while.

Mixed requests from many clients, some of which leave; every one must be answered with 200, 400, 422 or 429, texts must be right,
and the process must stay inside what it said it may take. Prints what came of them and how long they took. Without --model the
fake engine echoes prompts, so that every text can be checked; FLAGs are those of plimsoll serve."""
# run-tests: timeout=300, not=tsan
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import collections
import http.client
import json
import random
import tempfile
import threading
import time

import plim
from plim import ok
import server


class Client(threading.Thread):
    """Asks until the time is up; what it saw is in codes, times and wrong."""

    def __init__(self, s, seed, until, exact, context):
        super().__init__()
        self.s, self.rng, self.until, self.exact, self.context = s, random.Random(seed), until, exact, context
        self.codes, self.times, self.wrong, self.left = collections.Counter(), [], [], 0

    def run(self):
        while time.time() < self.until:
            try:
                self.once()
            except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
                self.wrong.append(repr(e))

    def once(self):
        prompt = "".join(self.rng.choice("abcdefgh ") for _ in range(self.rng.randrange(1, 60)))
        ask = {"prompt": prompt, "max_tokens": self.rng.randrange(1, 80), "temperature": 0, "stream": self.rng.random() < 0.5}
        kind = self.rng.random()
        if kind < 0.05: ask["max_tokens"] = self.context * 2
        if kind > 0.95: ask["temperature"] = "hot"
        if 0.05 < kind < 0.15:  # leaves before the end
            c = server.open_connection(self.s, "/v1/completions", ask)
            c.recv(self.rng.randrange(1, 400))
            c.close()
            self.left += 1
            return
        begin = time.time()
        code, headers, text = self.s.request("POST", "/v1/completions", json.dumps(ask))
        self.codes[code] += 1
        if code == 200:
            self.times.append(time.time() - begin)
            self.check(ask, text)
        elif code == 429:
            if not headers.get("Retry-After"): self.wrong.append("429 without Retry-After")
            time.sleep(self.rng.random() * 0.02)
        elif code != (400 if kind < 0.05 else 422 if kind > 0.95 else 200):
            self.wrong.append(f"{code}: {text[:200]}")

    def check(self, ask, text):
        if ask["stream"]:
            events = [e[6:] for e in text.split("\n\n") if e]
            if events[-1] != "[DONE]": self.wrong.append("a stream without its end")
            got = "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])
        else:
            got = json.loads(text)["choices"][0]["text"]
        want = (ask["prompt"] * (ask["max_tokens"] // len(ask["prompt"]) + 1))[:ask["max_tokens"]]
        if self.exact and got != want: self.wrong.append(f"{got!r} for {want!r}")


def resident(process):
    with open(f"/proc/{process.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if plim.SANITIZED else 5)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--model")
    args, flags = parser.parse_known_args()
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or server.model(f"{folder}/m")
        program = plim.PLIMSOLL if args.model else server.FAKE
        flags = flags or ["--parallel", "4", "--queue", "4"]
        with server.Server(model, *flags, engine="delay=1", program=program) as s:
            context = json.loads(s.get("/hold")[1])["plan"]["context"]
            first, most = resident(s.process), s.metric("server_bytes_most")
            clients = [Client(s, i, time.time() + args.seconds, not args.model, context) for i in range(args.clients)]
            for c in clients: c.start()
            peak = first
            while any(c.is_alive() for c in clients):
                peak = max(peak, resident(s.process))
                time.sleep(0.05)
            codes = sum((c.codes for c in clients), collections.Counter())
            times = sorted(t for c in clients for t in c.times)
            wrong = [w for c in clients for w in c.wrong]
            ok(not wrong, f"every request is answered and right: {dict(codes)}, {sum(c.left for c in clients)} left; {wrong[:3]}")
            ok(codes[200] > 0 and codes[429] > 0, "some are answered, some are told to come later")
            at = lambda q: times[min(int(q * len(times)), len(times) - 1)] * 1000
            print(f"# {len(times)} answered, latency ms: p50 {at(0.5):.1f}, p95 {at(0.95):.1f}, p99 {at(0.99):.1f}, most {at(1):.1f}")
            ok(plim.SANITIZED or peak - first <= most, f"memory grew by {(peak - first) / 1e6:.1f} MB of {most / 1e6:.1f} MB allowed")
            ok(s.wait_for(s.idle), "nothing is left over")
            ok(s.stop() == 0, "and it stops")
    plim.done()


main()
