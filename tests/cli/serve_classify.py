#!/usr/bin/env python3
"""POST /v1/classify: the answers of plimsoll classify, of tokens and of texts, inside the plan; what is asked wrongly is refused by name."""
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
from tiny_labels import make_labels_model

server.need_http()
BUDGET = 96 << 20
TEXTS = ["Ada Lovelace lived in London.", "x", "", "Überall: déjà vu 東京 🙂", "don't stop (42%)"]


def refused(s, ask, code, param, word, path="/v1/classify"):
    got, r = s.post(path, ask)
    e = r.get("error", {})
    ok(got == code and e["param"] == param and word in e["message"], f"{path} {str(ask)[:60]}: {got} {e.get('message')}")


def near(a, b):
    if isinstance(a, list): return len(a) == len(b) and all(map(near, a, b))
    return a.keys() == b.keys() and all(abs(a[k] - b[k]) < 1e-5 if k == "score" else a[k] == b[k] for k in a)


def told(folder, model, lines, *flags):
    """What the command says."""
    with open(f"{folder}/texts.jsonl", "w") as f: f.writelines(json.dumps(t if isinstance(t, dict) else {"text": t}) + "\n" for t in lines)
    return [json.loads(line) for line in plim.run("classify", model, f"{folder}/texts.jsonl", "--device", "cpu", "-q", *flags).stdout.splitlines()]


def inside(s):
    hold = json.loads(s.get("/hold")[1])
    peak = plim.read_status(s.process.pid, "VmHWM")
    ok(hold["used"] == hold["plan"]["total"] <= BUDGET and peak <= BUDGET, f"planned {hold['plan']['total']}, peak {peak}")


def tokens(folder):
    model = make_labels_model(f"{folder}/ner", "bert-tokens")
    with server.Server(model, "--budget", "96MiB", "--max-connections", 64, program=plim.PLIMSOLL) as s:
        for how in ("none", "simple", "first", "average", "max"):
            code, r = s.post("/v1/classify", {"input": TEXTS, "model": "ner", "aggregation_strategy": how})
            wanted = [a["entities"] for a in told(folder, model, TEXTS, "--aggregation", how)]
            ok(code == 200 and r["object"] == "list" and r["model"] == "ner" and [d["index"] for d in r["data"]] == list(range(5)) and near([d["entities"] for d in r["data"]], wanted), f"entities, {how}")
        count = sum(len(s.post("/tokenize", {"prompt": t})[1]["tokens"]) for t in TEXTS)
        ok(r["usage"] == {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}, "usage counts tokens, marks included")
        one = lambda text, **more: s.post("/v1/classify", {"input": text, **more})[1]["data"][0]["entities"]
        ok(near(one(TEXTS[0], ignore_labels=[]), told(folder, model, TEXTS[:1], "--ignore-label", "")[0]["entities"]), "one text, nothing ignored")
        ok(near(one({"text": TEXTS[3]}, ignore_labels=["O", "PER"], aggregation_strategy="simple"),
                told(folder, model, TEXTS[3:4], "--ignore-label", "O", "--ignore-label", "PER", "--aggregation", "simple")[0]["entities"]), "an object, two ignored")
        wanted = [a["entities"] for a in told(folder, model, TEXTS)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            many = list(pool.map(lambda i: one(TEXTS[i % 5]), range(100)))
        ok(all(near(a, wanted[i % 5]) for i, a in enumerate(many)), "a hundred at once")
        ok(len(s.post("/v1/classify", {"input": TEXTS * 18, "ignore_labels": []})[1]["data"]) == 90, "ninety texts in one request")
        inside(s)
        refused(s, {}, 422, "input", "missing")
        refused(s, {"input": []}, 422, "input", "1 to")
        refused(s, {"input": ["x"] * 2100}, 422, "input", "2048")
        refused(s, {"input": 5}, 422, "input", "text_pair")
        refused(s, {"input": [[1, 2]]}, 422, "input", "text_pair")
        refused(s, {"input": {"txt": "x"}}, 422, "input", "text_pair")
        refused(s, {"input": {"text": "x", "text_pair": "y"}}, 422, "input", "one text")
        refused(s, {"input": "x", "aggregation_strategy": "best"}, 422, "aggregation_strategy", "none, simple, first")
        refused(s, {"input": "x", "ignore_labels": "O"}, 422, "ignore_labels", "a list")
        refused(s, {"input": "x", "top_k": 2}, 422, "top_k", "whole texts")
        refused(s, {"input": "x", "function_to_apply": "softmax"}, 422, "function_to_apply", "whole texts")
        refused(s, {"input": "x", "stride": 5}, 422, "stride", "unknown parameter")
        refused(s, {"input": "x", "model": "other"}, 404, "model", "no model")
        refused(s, {"input": "word " * 500}, 400, "input", "context is 96")
        refused(s, {"input": "x"}, 501, None, "/v1/classify", "/v1/embeddings")
        refused(s, {"prompt": "x"}, 501, None, "/v1/classify", "/v1/completions")
        ok(s.metric("prompt_tokens_total") > 0 and s.metric("request_success_total", finished_reason="stop") > 200, "requests are counted")
        ok(s.stop() == 0, "stopped")


def texts(folder):
    pair = {"text": "A man is asleep.", "text_pair": "He sleeps."}
    for name in ("bert-texts", "roberta-several"):
        model = make_labels_model(f"{folder}/{name}", name)
        with server.Server(model, "--budget", "96MiB", "--max-connections", 64, program=plim.PLIMSOLL) as s:
            code, r = s.post("/v1/classify", {"input": [*TEXTS, pair], "top_k": 0})
            wanted = told(folder, model, [*TEXTS, pair], "--top-k", 0)
            ok(code == 200 and all(near(d["labels"], w["labels"]) for d, w in zip(r["data"], wanted, strict=True)), f"{name}: labels of texts and of a pair")
            ok(all(d["num_classes"] == len(d["probs"]) == len(d["labels"]) and d["label"] == d["labels"][0]["label"]
                   and sorted(d["probs"], reverse=True) == [e["score"] for e in d["labels"]] for d in r["data"]), "label, probs and num_classes as vLLM has them")
            data = s.post("/v1/classify", {"input": pair, "function_to_apply": "none"})[1]["data"][0]
            ok("labels" not in data and abs(max(data["probs"]) - told(folder, model, [pair], "--function", "none")[0]["score"]) < 1e-5, "logits of one pair")
            refused(s, {"input": "x", "aggregation_strategy": "first"}, 422, "aggregation_strategy", "of tokens")
            refused(s, {"input": "x", "function_to_apply": "relu"}, 422, "function_to_apply", "sigmoid")
            refused(s, {"input": "x", "top_k": -1}, 422, "top_k", "outside")
            inside(s)
            ok(s.stop() == 0, "stopped")


with tempfile.TemporaryDirectory() as folder:
    tokens(folder)
    texts(folder)
