#!/usr/bin/env python3
"""Weights in blocks of 8 or 4 bits for models that are no decoders: an encoder's vectors stay near, a T5 writes nearly the same text, and
embed, generate, serve and plan --serve agree about the bytes."""
# run-tests: timeout=300
import json
import math
import os
import sys
import tempfile

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import plim
from plim import ok
import server
import tiny_bert

server.need_http()
TEXTS = ["The ship left.", "a", "barrels past the light before the tide turned", "Überall: déjà vu"]
BERT = dict(hidden_size=96, intermediate_size=160, num_attention_heads=3)
FLAGS = ("--budget", "96MiB", "--max-connections", 64, "--max-context", 48)
KINDS = ("as-is", "q8", "q4")


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def served(model, kind, ask, total):
    """A server's answers; what it holds is what was planned, and what plan --serve says it takes."""
    flags = (*FLAGS, "--weights", kind)
    said = json.loads(plim.run("plan", "--serve", model, "--json", "--device", "cpu", *flags).stdout)["plan"]
    with server.Server(model, *flags, program=plim.PLIMSOLL) as s:
        got, hold = ask(s), json.loads(s.get("/hold")[1])
        plan = hold["plan"]
        ok(hold["used"] == plan["total"] and (plim.SANITIZED or hold["process"] <= plan["total"]), f"{kind}: planned {plan['total']} = ledger {hold['used']}, process {hold['process']}")
        ok(said["parameters"] == plan["parameters"] and total <= plan["parameters"] < total + 4096, f"plan --serve says {said['parameters']} bytes of parameters, serve has {plan['parameters']}, numbers and blocks are {total}")
    return got


def in_blocks(rows, bits):
    return rows * {8: 34, 4: 18}[bits] // 32


def encoder(folder):
    model, file = f"{folder}/bert", f"{folder}/texts"
    tiny_bert.make_model(model, **BERT)
    with open(file, "w") as f: f.write("\n".join(TEXTS) + "\n")
    with open(f"{model}/config.json") as f: sizes = json.load(f)
    shapes = [s for _, s in tiny_bert.shapes(sizes["vocab_size"], sizes)]
    everything = sum(math.prod(s) for s in shapes)
    table = math.prod(shapes[0])
    products = sum(math.prod(s) for s in shapes[3:] if len(s) == 2)
    # a part of panels of 16 lines: the table's last panel is padded
    padded = -sizes["vocab_size"] % 16 * sizes["hidden_size"]
    small = 4 * (everything - table - products) + in_blocks(table + padded, 8)
    total = {"as-is": 4 * everything, "q8": small + in_blocks(products, 8), "q4": small + in_blocks(products, 4)}
    vectors = {}
    for kind, least in zip(KINDS, (1, 0.999, 0.94)):
        told = plim.run("embed", model, file, "--device", "cpu", "-q", "--weights", kind)
        vectors[kind] = [json.loads(line)["embedding"] for line in told.stdout.splitlines()] if told.returncode == 0 else []
        near = [cosine(a, b) for a, b in zip(vectors[kind], vectors["as-is"])]
        ok(len(near) == len(TEXTS) and min(near) >= least - 1e-6, f"embed {kind}: cosines {[round(c, 5) for c in near]} {told.stderr.strip()}")
        got = served(model, kind, lambda s: s.post("/v1/embeddings", {"input": TEXTS})[1], total[kind])
        ok("data" in got and all(cosine(d["embedding"], v) > 1 - 1e-6 for d, v in zip(got["data"], vectors[kind])), f"serve {kind}: the vectors of embed")
    bad = plim.run("embed", model, file, "--weights", "q5")
    ok(bad.returncode != 0 and bad.stderr.count("\n") == 1 and "q8" in bad.stderr, f"another kind: {bad.stderr.strip()}")


def t5(folder):
    path = plim.job(folder, **plim.T5, data__train=f"[{plim.pairs(folder)}]", training__steps=150, training__learning_rate="4e-3", output__dir=f"{folder}/t5")
    trained = plim.run("train", path, "-q")
    if not ok(trained.returncode == 0, f"trained {trained.stderr.strip()}"): return
    prompts = [plim.CORPUS[13 * i:13 * i + 1 + 7 * i % 40] for i in range(6)]
    texts, sizes = {}, {}
    for kind, same in zip(KINDS, (1, 0.5, 0.1)):
        args = ("generate", f"{folder}/t5", "--device", "cpu", "-n", 20, "-t", 0, "-q", "--json", "--weights", kind, *[w for p in prompts for w in ("-p", p)])
        told = plim.run(*args)
        if not ok(told.returncode == 0, f"generate {kind} {told.stderr.strip()}"): continue
        r = json.loads(told.stdout)
        texts[kind], sizes[kind] = [a["text"] for a in r["answers"]], r["memory"]["parameter_bytes"]
        ok(r["memory"]["ledger_peak"] == r["memory"]["planned_total"], f"{kind}: the ledger has what was planned")
        equal = sum(len(os.path.commonprefix(two)) for two in zip(texts[kind], texts["as-is"])) / sum(map(len, texts["as-is"]))
        ok(equal >= same, f"{kind}: {equal:.2f} of the texts, from their beginning, as before: {texts[kind][3]!r}")
        text = lambda s: [s.post("/v1/completions", {"prompt": p, "max_tokens": 20, "temperature": 0})[1]["choices"][0]["text"] for p in prompts]
        ok(served(f"{folder}/t5", kind, text, sizes[kind]) == texts[kind], f"serve {kind}: the text of generate")
        beams = plim.run(*args[:3], "cpu", "-n", 8, "--beams", 3, "-q", "--weights", kind, "-p", prompts[2])
        ok(beams.returncode == 0, f"{kind}: with beams {beams.stdout.strip()!r} {beams.stderr.strip()}")
    # products in blocks; norms, and tables of distances, as they were
    ok(sizes["q8"] < sizes["as-is"] * 0.3 and sizes["q4"] < sizes["q8"] * 0.75, f"and what is held is smaller: {sizes}")


with tempfile.TemporaryDirectory() as folder:
    encoder(folder)
    t5(folder)
plim.done()
