#!/usr/bin/env python3
"""plimsoll serve with a real model: the text that generate writes, inside a budget, whoever else asks."""
# run-tests: timeout=300
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import concurrent.futures
import json
import tempfile

import plim
from plim import ok
import server

server.need_http()
PROMPTS = ["The heavy ship", "The old", "A", "before the watch turned. The small cutter took"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = plim.job(folder, training__steps=40, training__learning_rate="3e-3")
        trained = plim.run("train", path, "-q")
        if not ok(trained.returncode == 0, f"trained {trained.stderr.strip()}"): plim.done()
        wanted = [plim.run("generate", f"{folder}/run", "-p", p, "-n", 24, "-t", 0, "-q").stdout.rstrip("\n") for p in PROMPTS]
        with server.Server(f"{folder}/run", "--budget", "256MiB", "--max-context", 256, program=plim.PLIMSOLL) as s:
            ask = lambda p: s.post("/v1/completions", {"prompt": p, "max_tokens": 24, "temperature": 0})[1]["choices"][0]["text"].rstrip("\n")
            ok([ask(p) for p in PROMPTS] == wanted, f"one after the other: the text of generate {wanted[0]!r}")
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                ok(list(pool.map(ask, PROMPTS * 4)) == wanted * 4, "many at once: the same text")
            seeded = {"prompt": "The", "max_tokens": 24, "seed": 3, "temperature": 0.9}
            one, two = s.post("/generate", seeded)[1]["generated_text"], "".join(e["choices"][0]["text"] for e in s.stream("/v1/completions", seeded)[:-1])
            ok(one == two, f"drawn with a seed: the same from every endpoint {one!r}")
            hold = json.loads(s.get("/hold")[1])
            ok(hold["budget"] == 256 << 20 and 0 < hold["used"] <= hold["budget"] and hold["process"] <= hold["budget"], f"inside the budget {hold['used']} {hold['process']}")
            hot = {"prompt": "The", "max_tokens": 24, "temperature": 2, "top_p": 0}
            ok(len({s.post("/generate", dict(hot, seed=i))[1]["generated_text"] for i in range(4)} | {s.post("/generate", dict(hot, temperature=0))[1]["generated_text"]}) == 1, "top_p 0: the likeliest alone")
            code, r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 100000})
            ok(code == 400 and r["error"]["code"] == "context_length_exceeded", "a request that never fits is told so")
            code, r = s.post("/v1/completions", {"prompt": "x" * 256, "max_tokens": 0, "echo": True, "logprobs": 0})
            ok(code == 200 and len(r["choices"][0]["logprobs"]["tokens"]) == r["usage"]["prompt_tokens"] == 256 and r["choices"][0]["finish_reason"] == "length",
               f"a prompt as long as the context, scored: {str(r)[:200]}")
            ok(s.stop() == 0, "stopped")
        with server.Server(f"{folder}/run", "--budget", "256MiB", "--max-context", 256, "--parallel", 4, program=plim.PLIMSOLL) as s:
            with concurrent.futures.ThreadPoolExecutor(20) as pool:
                codes = list(pool.map(lambda _: s.post("/generate", {"prompt": "x" * 100, "max_tokens": 150, "ignore_eos": True, "repetition_penalty": 1.2})[0], range(20)))
            ok(codes == [200] * 20, f"4 run and 16 wait, each as long as can be: {codes}")
            ok(s.post("/v1/completions", {"prompt": "x", "n": 16, "max_tokens": 230, "ignore_eos": True})[0] == 200, "16 choices on an idle server")
            absolute = s.raw(f"GET http://127.0.0.1:{s.port}/health HTTP/1.1\r\nHost: 127.0.0.1:{s.port}\r\nConnection: close\r\n\r\n".encode())
            ok(b"200 OK" in absolute, "a path with its host before it")
        small = plim.run("serve", f"{folder}/run", "--budget", "1MiB", "--port", 0, "--device", "cpu")
        ok(small.returncode == 3 and small.stderr.count("plimsoll: ") == 1, f"a budget that nothing fits: exit {small.returncode} {small.stderr.splitlines()[-1]}")
    plim.done()


main()
