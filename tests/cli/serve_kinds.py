#!/usr/bin/env python3
"""plimsoll serve with models that are no decoders: an encoder makes the vectors of embed behind /v1/embeddings, a T5 writes the text of
generate; both inside their plan, with the same refusals, and each says what it cannot do."""
# run-tests: timeout=300
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import base64
import concurrent.futures
import json
import socket
import struct
import tempfile
import threading

import plim
from plim import ok
import server
import tiny_bert

server.need_http()
TEXTS = ["The ship left.", "a", "", "barrels past the light before the tide turned", "Überall: déjà vu"]
NEAR = 1e-5  # as in embed.py: where bf16 is faster fp32 is multiplied in two parts, but not in products of few rows


def apart(a, b):
    return max(abs(x - y) for v, w in zip(a, b, strict=True) for x, y in zip(v, w, strict=True))


def vectors(s, ask, **more):
    code, r = s.post("/v1/embeddings", {"input": ask, **more})
    return [d["embedding"] for d in r["data"]] if code == 200 else r


def refused(s, path, ask, code, param, word):
    got, r = s.post(path, ask)
    e = r.get("error", {})
    ok(got == code and e["param"] == param and word in e["message"], f"{path} {str(ask)[:60]}: {got} {e.get('message')}")


def inside(s, budget):
    hold = json.loads(s.get("/hold")[1])
    ok(hold["used"] == hold["plan"]["total"] <= budget and hold["process"] <= budget, f"planned {hold['plan']['total']} = ledger {hold['used']}, process {hold['process']}")
    return hold


def planned(model, hold, *flags):
    """plan --serve says what serve has committed, also as text, and for a card that is not here."""
    p = json.loads(plim.run("plan", "--serve", model, "--json", "--device", "cpu", *flags).stdout)["plan"]
    near = abs(p["total"] - hold["plan"]["total"])
    ok(near <= 512 << 10 and all(p[k] == hold["plan"][k] for k in ("context", "parallel", "parameters")), f"planned before {p['total']}, serving {hold['plan']['total']}")
    text = plim.run("plan", "--serve", model, "--device", "rtx-4090")
    ok(text.returncode == 0 and "serving on rtx-4090" in text.stdout and "tokens" in text.stdout, f"on a card: {text.stdout[:80]!r} {text.stderr}")
    small = plim.run("plan", "--serve", model, "--device", "cpu", "--budget", "12MiB")
    ok(small.returncode == 3 and "missing" in small.stderr, f"too small: {small.stderr.strip()}")


def order(path, message):
    """The reply of a control socket."""
    with socket.socket(socket.AF_UNIX) as c:
        c.settimeout(30)
        c.connect(path)
        c.sendall(json.dumps(message).encode() + b"\n")
        return json.loads(c.makefile().readline())


def moves(s, path, what, ask, wanted):
    """The line moves while requests run: all are answered as before, inside it; one that holds nothing is refused."""
    plan = json.loads(s.get("/hold")[1])["plan"]
    stop, got = threading.Event(), []
    def work(i):
        while not stop.is_set(): got.append(ask(i) == wanted(i))
    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for w in workers: w.start()
    try:
        for less in (what(plan) // 2, what(plan) * 3 // 4, 0):
            before = len(got)
            r = order(path, {"do": "budget", "bytes": plan["total"] - less})
            ok(r["ok"] and r.get("applied") and r["used"] <= plan["total"] - less and (less == 0) == (r["used"] == plan["total"]), f"{less} bytes less: {r}")
            ok(plim.SANITIZED or r.get("process", 0) <= plan["total"] - less, f"and the process follows: {r.get('process')}")
            s.wait_for(lambda: len(got) > before + 12, 10)
    finally:
        stop.set()
        for w in workers: w.join()
    ok(len(got) > 24 and all(got), f"{len(got)} answers meanwhile, all as before")
    r = order(path, {"do": "budget", "bytes": 1 << 20})
    ok(not r["ok"] and "need" in r["error"], f"a line that holds nothing: {r['error']}")


def encoder(folder):
    tiny_bert.make_model(f"{folder}/bert")
    with open(f"{folder}/texts", "w") as f: f.write("\n".join(TEXTS) + "\n")
    told = plim.run("embed", f"{folder}/bert", f"{folder}/texts", "--device", "cpu", "-q").stdout
    wanted = [json.loads(line)["embedding"] for line in told.splitlines()]
    control = f"{folder}/bert.sock"
    with server.Server(f"{folder}/bert", "--budget", "96MiB", "--max-connections", 64, "--control", control, program=plim.PLIMSOLL) as s:
        ok(s.metric("prompt_tokens_total") == 0, "the warm-up is nobody's: nothing is counted yet")
        code, r = s.post("/v1/embeddings", {"input": TEXTS, "model": "bert"})
        ok(code == 200 and r["object"] == "list" and r["model"] == "bert" and [d["index"] for d in r["data"]] == list(range(5))
           and apart([d["embedding"] for d in r["data"]], wanted) < NEAR, "a list of texts: the vectors of embed")
        tokens = [s.post("/tokenize", {"prompt": t})[1]["tokens"] for t in TEXTS]
        ok(r["usage"]["prompt_tokens"] == r["usage"]["total_tokens"] == sum(map(len, tokens)) == s.metric("prompt_tokens_total"),
           "usage counts their tokens, marks included")
        ok(apart(vectors(s, TEXTS[0]), wanted[:1]) < NEAR, "one text")
        ok(apart(vectors(s, tokens[1]), wanted[1:2]) < NEAR and apart(vectors(s, tokens), wanted) < NEAR, "tokens, and lists of them")
        raw = [struct.unpack(f"<{len(wanted[0])}f", base64.b64decode(v)) for v in vectors(s, TEXTS, encoding_format="base64")]
        ok(apart(raw, wanted) < NEAR, "in base64")
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            many = list(pool.map(lambda i: vectors(s, TEXTS[i % 5]), range(100)))
        ok(all(apart(v, [wanted[i % 5]]) < NEAR for i, v in enumerate(many)), "a hundred at once")
        ok(len(vectors(s, TEXTS * 40)) == 200, "two hundred texts in one request")
        for path, ask in (("/v1/completions", {"prompt": "x"}), ("/generate", {"prompt": "x"}), ("/v1/chat/completions", {"messages": []})):
            refused(s, path, ask, 501, None, "/v1/embeddings")
        refused(s, "/v1/embeddings", {}, 422, "input", "missing")
        refused(s, "/v1/embeddings", {"input": []}, 422, "input", "1 to")
        refused(s, "/v1/embeddings", {"input": [1 << 30]}, 422, "input", "vocabulary")
        refused(s, "/v1/embeddings", {"input": 5}, 422, "input", "a text or a list")
        refused(s, "/v1/embeddings", {"input": "x", "encoding_format": "hex"}, 422, "encoding_format", "base64")
        refused(s, "/v1/embeddings", {"input": "x", "dimensions": 7}, 422, "dimensions", "not supported")
        refused(s, "/v1/embeddings", {"input": "word " * 500}, 400, "input", "48 tokens")
        refused(s, "/v1/embeddings", {"input": ["x"] * 2100}, 422, "input", "2048")
        ok(s.metric("prompt_tokens_total") > 0 and s.metric("request_success_total", finished_reason="stop") > 300, "they are counted")
        planned(f"{folder}/bert", inside(s, 96 << 20), "--budget", "96MiB", "--max-connections", 64)
        moves(s, control, lambda plan: plan["arena"] - plan["parameters"], lambda i: apart(vectors(s, TEXTS * 8), wanted * 8) < NEAR, lambda i: True)
        ok(s.wait_for(s.idle) and s.stop() == 0, "stopped")
    small = plim.run("serve", f"{folder}/bert", "--budget", "12MiB", "--port", 0, "--device", "cpu")
    ok(small.returncode == 3 and "missing" in small.stderr and "connections" in small.stderr and "tokenizing" in small.stderr, f"a budget that it does not fit: {small.stderr.splitlines()[-1]}")


def t5(folder):
    path = plim.job(folder, **plim.T5, data__train=f"[{plim.pairs(folder)}]", training__steps=30, training__learning_rate="3e-3", output__dir=f"{folder}/t5")
    trained = plim.run("train", path, "-q")
    if not ok(trained.returncode == 0, f"trained {trained.stderr.strip()}"): return
    prompts = [plim.CORPUS[13 * i:13 * i + 1 + 7 * i % 50] for i in range(6)]
    told = plim.run("generate", f"{folder}/t5", "--device", "cpu", "-n", 20, "-t", 0, "-q", "--json", *[w for p in prompts for w in ("-p", p)])
    wanted = [a["text"] for a in json.loads(told.stdout)["answers"]]
    control = f"{folder}/t5.sock"
    flags = ("--budget", "96MiB", "--max-context", 64, "--parallel", 4, "--max-connections", 64, "--control", control)
    with server.Server(f"{folder}/t5", *flags, program=plim.PLIMSOLL) as s:
        ask = lambda p, **more: {"prompt": p, "max_tokens": 20, "temperature": 0, **more}
        text = lambda p: s.post("/v1/completions", ask(p))[1]["choices"][0]["text"]
        ok([text(p) for p in prompts] == wanted, f"one after the other: the text of generate {wanted[0]!r}")
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            ok(list(pool.map(text, prompts * 5)) == wanted * 5, "many at once: the same text")
        streamed = ["".join(e["choices"][0]["text"] for e in s.stream("/v1/completions", ask(p))[:-1]) for p in prompts]
        ok(streamed == wanted, "streamed: the same text")
        ok(s.post("/generate", ask(prompts[0]))[1]["generated_text"] == wanted[0], "from /generate too")
        one, two = (s.post("/v1/completions", ask(prompts[1], temperature=0.9, seed=5))[1]["choices"][0]["text"] for _ in range(2))
        ok(one == two, f"drawn with a seed: the same text {one!r}")
        r = s.post("/v1/completions", ask(prompts[0], logprobs=3))[1]["choices"][0]
        likely = r["logprobs"]["token_logprobs"]
        ok(likely and all(x == max(t.values()) for x, t in zip(likely, r["logprobs"]["top_logprobs"])), "likelihoods of greedy tokens are the largest")
        stop = wanted[0][3:5]
        ok(s.post("/v1/completions", ask(prompts[0], stop=stop))[1]["choices"][0]["text"] == wanted[0][:wanted[0].index(stop)], f"stops at {stop!r}")
        refused(s, "/v1/completions", ask("x" * 65), 400, "max_tokens", "prompt of 64 tokens")
        refused(s, "/v1/completions", ask("x", max_tokens=65), 400, "max_tokens", "answer of 64")
        refused(s, "/v1/completions", ask("x", echo=True, logprobs=1), 501, None, "t5")
        refused(s, "/v1/embeddings", {"input": "x"}, 501, None, "no embeddings")
        refused(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, 501, None, "template")
        gone = [server.open_connection(s, "/v1/completions", ask(p, max_tokens=64, ignore_eos=True, stream=True)) for p in prompts]
        for c in gone: c.close()
        ok(s.wait_for(s.idle), "clients that go leave nothing behind")
        planned(f"{folder}/t5", inside(s, 96 << 20), *flags[:-2])
        moves(s, control, lambda plan: plan["pool"], lambda i: text(prompts[i]), lambda i: wanted[i])
        waits = [server.background(s.post, "/v1/completions", ask(p, max_tokens=60, ignore_eos=True)) for p in prompts]
        # a request counts as there when the server knows it: one that is still on its way may be hung up on
        known = lambda: s.metric("num_requests_running") + s.metric("num_requests_waiting") + sum(not t.is_alive() for t in waits)
        ok(s.wait_for(lambda: known() >= len(waits)), "requests run")
        code = s.stop()
        for t in waits: t.join()
        ok(code == 0 and all(t.result[0] in (200, 429, 503) for t in waits), f"SIGTERM answers what is there: {[t.result[0] for t in waits]}")
    small = plim.run("serve", f"{folder}/t5", "--budget", "1MiB", "--port", 0, "--device", "cpu")
    ok(small.returncode == 3 and "sources" in small.stderr, f"a budget that it does not fit: {small.stderr.splitlines()[-1]}")


with tempfile.TemporaryDirectory() as folder:
    encoder(folder)
    t5(folder)
plim.done()
