#!/usr/bin/env python3
"""plimsoll classify: the answers of transformers' pipelines (tests/golden/make_classify.py), inside the budget, and one line for what is wrong."""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
from tiny_bert import make_model
from tiny_labels import GOLDEN, MODELS, make_labels_model

EXPECTED = os.environ.get("CLASSIFY_EXPECTED", f"{GOLDEN}/classify/expected.json")
SEED = int(os.environ.get("CLASSIFY_SEED", "7"))


def classify(*args, check=True, **more):
    result = plim.run("classify", *args, "--device", "cpu", **more)
    if check: plim.ok(result.returncode == 0, f"classify {args}: {result.stderr.strip()}")
    return result


def answers(*args):
    return [json.loads(line) for line in classify(*args, "-q").stdout.splitlines()]


def plain(answer):
    """As a pipeline has it."""
    return answer.get("entities", answer.get("labels", answer))


def differs(got, wanted):
    if isinstance(wanted, list):
        return len(got) != len(wanted) or any(differs(a, b) for a, b in zip(got, wanted))
    return got.keys() != wanted.keys() or any(abs(got[k] - v) > 3e-5 if k == "score" else got[k] != v for k, v in wanted.items())


def refused(words, *args, code=2):
    result = classify(*args, check=False)
    plim.ok(result.returncode == code and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words),
            f"refused {args[1:]}: {result.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    models = {name: make_labels_model(f"{folder}/{name}", name, SEED) for name in MODELS}
    with open(EXPECTED, encoding="utf-8") as f: cases = json.load(f)
    file, wrong, count = f"{folder}/texts.jsonl", 0, 0
    for case in cases:
        with open(file, "w", encoding="utf-8") as f:
            for text in case["texts"]: f.write(json.dumps({"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}) + "\n")
        got = [plain(a) for a in answers(models[case["model"]], file, "--exact", *case["options"])]
        for text, a, b in zip(case["texts"], got, case["answers"], strict=True):
            count += 1
            if not differs(a, b): continue
            wrong += 1
            if wrong < 6: print(f"# {case['model']} {case['options']} {text!r}:\n#   got    {a}\n#   wanted {b}")
    plim.ok(not wrong, f"{count} answers are those of the pipelines ({wrong} differ)")

    # --- files, windows and neighbours change nothing
    ner, texts = models["bert-tokens"], models["roberta-texts"]
    rng = random.Random(3)
    words = "Ada London the quick brown fox Straße 東京 naïve don't 42 ships".split()
    lines = [" ".join(rng.choices(words, k=rng.choice([1, 2, 3, 7, 12]))) for _ in range(700)] + ["", " ", "x"]
    plain_file = f"{folder}/lines.txt"
    with open(plain_file, "w", encoding="utf-8") as f: f.write("\n".join(lines) + "\n")
    for model, *more in ((ner, "--aggregation", "first"), (texts, "--top-k", "0")):
        all_of_them = answers(model, plain_file, *more)
        plim.ok(len(all_of_them) == len(lines), "a line for each line, empty ones too")
        plim.ok(answers(model, plain_file, "--threads", "1", *more) == all_of_them, "one thread gives the same bits")
        alone = answers(model, plain_file, "--batch", "1", *more)
        plim.ok(not any(differs(plain(a), plain(b)) for a, b in zip(alone, all_of_them)), "an answer is a text's own, whatever its neighbours")
        classify(model, plain_file, "-q", "-o", f"{folder}/out.jsonl", *more)
        with open(f"{folder}/out.jsonl") as f: plim.ok([json.loads(line) for line in f] == all_of_them, "-o FILE")
        piped = plim.subprocess.run([plim.PLIMSOLL, "classify", model, "-q", "--device", "cpu", *more], input="\n".join(lines), text=True, capture_output=True)
        plim.ok([json.loads(line) for line in piped.stdout.splitlines()] == all_of_them, "standard input")
    with open(f"{folder}/some.txt", "w") as f: f.write("\n".join(lines[:5]))
    rows = [line.split("\t") for line in classify(ner, f"{folder}/some.txt", "-q", "--format", "tsv").stdout.splitlines()]
    wanted = [(i + 1, e) for i, a in enumerate(answers(ner, f"{folder}/some.txt")) for e in a["entities"]]
    plim.ok([(int(r[0]), int(r[1]), int(r[2]), r[3], json.loads(r[5])) for r in rows] == [(i, e["start"], e["end"], e["entity"], e["word"]) for i, e in wanted], "tsv of tokens")
    rows = [line.split("\t") for line in classify(texts, f"{folder}/some.txt", "-q", "--format", "tsv").stdout.splitlines()]
    plim.ok([(int(r[0]), r[1]) for r in rows] == [(i + 1, a["label"]) for i, a in enumerate(answers(texts, f"{folder}/some.txt"))], "tsv of texts")
    plim.ok("vectors" not in classify(ner, plain_file, "-v", "-o", f"{folder}/x").stderr, "what was done is told")
    plim.ok(len(json.loads(plim.run("embed", ner, f"{folder}/some.txt", "-q").stdout.splitlines()[0])["embedding"]) == 16, "embed still makes vectors of it")
    inspected = json.loads(plim.run("inspect", texts, "--json").stdout)[0]
    plim.ok(inspected["task"] == "labels of texts" and inspected["labels"] == ["NEGATIVE", "NEUTRAL", "POSITIVE"], f"inspect: {inspected.get('task')}")

    # --- inside the budget: other processes read what this one took
    for model in (ner, texts):
        small = classify(model, plain_file, "--budget", "12MiB", check=False)
        plim.ok(small.returncode == 3 and "missing" in small.stderr, f"too small: {small.stderr.strip()}")
    with open(f"{folder}/long.txt", "w") as f: f.write("\n".join([("Ada Lovelace of London " * 1300)[:60000], *lines[:40], "x " * 8000]))
    for model, *more in ((ner, "--aggregation", "simple", "--stride", "40"), (ner, "--truncate"), (texts, "--truncate")):
        told = classify(model, f"{folder}/long.txt", "--budget", "24MiB", "-v", "-o", f"{folder}/x", *more).stderr
        peak = float(told.split("process ")[1].split(" MiB at its peak")[0])
        plim.ok(peak <= 24, f"24 MiB: {told.splitlines()[-1]}")

    # --- bad input
    long, pair = f"{folder}/too_long.txt", f"{folder}/pair.jsonl"
    with open(long, "w") as f: f.write("fine\n" + "word " * 200 + "\n")
    with open(pair, "w") as f: f.write('{"text": "a", "text_pair": "b"}\n')
    make_model(f"{folder}/plain")
    refused(["too_long.txt:2", "the model takes 96", "--truncate or --stride"], ner, long)
    refused(["too_long.txt:2", "--truncate"], texts, long)
    refused(["pair.jsonl:1", "one text"], ner, pair)
    refused(["no labels", "token_labels"], f"{folder}/plain", plain_file)
    refused(["--top-k", "whole texts"], ner, plain_file, "--top-k", 2)
    refused(["--function", "whole texts"], ner, plain_file, "--function", "sigmoid")
    refused(["--aggregation", "of tokens"], texts, plain_file, "--aggregation", "first")
    refused(["--stride", "--aggregation"], ner, plain_file, "--stride", 3)
    refused(["--stride", "-1"], ner, plain_file, "--stride", -1, "--aggregation", "max")
    refused(["too_long.txt:2", "half"], ner, long, "--stride", 60, "--aggregation", "max")
    refused(["--top-k", "-1"], texts, plain_file, "--top-k", -1)
    refused(["aggregation", "best"], ner, plain_file, "--aggregation", "best")
    refused(["--max-length", "positions"], ner, plain_file, "--max-length", 1000)
    refused(["give a model folder"])
    with open(f"{folder}/bad.jsonl", "w") as f: f.write('{"text": "a"}\n{"text": 5}\n')
    refused(["bad.jsonl:2", "a number, not text"], texts, f"{folder}/bad.jsonl")
    with open(f"{folder}/latin.txt", "wb") as f: f.write(b"fine\ncaf\xe9\n")
    refused(["latin.txt:2", "not UTF-8"], ner, f"{folder}/latin.txt")
    with open(f"{texts}/config.json") as f: config = json.load(f)
    with open(f"{texts}/config.json", "w") as f: json.dump({**config, "problem_type": "guess"}, f)
    refused(["problem_type", "guess"], texts, plain_file)
    with open(f"{folder}/job.yaml", "w") as f: f.write(f"model: {{path: {models['bert-texts']}}}\ndata: {{train: {plain_file}}}\ntraining: {{max_steps: 1}}\n")
    job = plim.run("train", f"{folder}/job.yaml")
    plim.ok(job.returncode == 2 and "labels whole texts" in job.stderr, f"training such a model: {job.stderr.strip()}")
