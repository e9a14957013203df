#!/usr/bin/env python3
"""many.py [--clients N] - as many clients at once as a card serves: all of them run, streamed or not, and each gets its own answer.

The engine is the fake one, so that only the server is tested: its connections, the files they are, the memory for answers, and threads that
write to thousands of clients."""
# run-tests: timeout=300, not=tsan
import argparse
import json
import os
import resource
import selectors
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
from plim import ok
import server

TOKENS = 24


def text_of(body, streams):
    """The text of an answer; None while it is not whole."""
    head, _, rest = body.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"): return f"no answer: {head[:80]!r}" if head else None
    if streams:
        if b"data: [DONE]" not in rest: return None
        events = [line[6:] for line in rest.decode().splitlines() if line.startswith("data: {")]
        return "".join(json.loads(e)["choices"][0]["text"] for e in events)
    try:
        return json.loads(rest)["choices"][0]["text"]
    except ValueError:
        return None


def ask_all(s, count):
    """Texts of all answers. None of them begins before all have asked."""
    choose, got, texts = selectors.DefaultSelector(), {}, {}
    for i in range(count):
        ask = {"prompt": f"{i:04d} is who I am.", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": i % 2 == 0}
        c = server.open_connection(s, "/v1/completions", ask)
        c.setblocking(False)
        choose.register(c, selectors.EVENT_READ, i)
        got[i] = b""
    while len(texts) < count:
        found = choose.select(timeout=60)
        if not found: return texts
        for key, _ in found:
            i = key.data
            piece = key.fileobj.recv(1 << 16)
            got[i] += piece
            text = text_of(got[i], i % 2 == 0)
            if text is None and piece: continue
            texts[i] = text
            choose.unregister(key.fileobj)
            key.fileobj.close()
    return texts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=256 if plim.SANITIZED else 2048)
    count = parser.parse_args().clients
    server.need_http()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < 2 * count + 256:
        print(f"only {most} open files are allowed")
        sys.exit(77)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count + 256, most))
    with tempfile.TemporaryDirectory() as folder:
        with server.Server(server.model(f"{folder}/m"), "--parallel", count, engine=f"gather={count}") as s:
            texts = ask_all(s, count)
            prompts = [f"{i:04d} is who I am." for i in range(count)]
            wrong = [i for i in range(count) if texts.get(i) != (prompts[i] * 2)[:TOKENS]]
            ok(not wrong, f"{count} clients at once, half of them streamed to: each has its answer {[(i, texts.get(i)) for i in wrong[:2]]}")
            ok(s.wait_for(lambda: server.is_idle(s)), "nothing is left over")
            code = s.stop()
            ok(code == 0 and "Sanitizer" not in s.log(), f"it stops: {code}")
    plim.done()


main()
