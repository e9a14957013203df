#!/usr/bin/env python3
"""plimsoll embed: a vector for each line, whatever its neighbours, inside the budget, and one line for what is wrong."""
import gzip
import json
import math
import os
import random
import re
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
from tiny_bert import GOLDEN, make_model


def read_npy(path):
    with open(path, "rb") as f: data = f.read()
    plim.ok(data[:8] == b"\x93NUMPY\x01\x00" and len(data[10:]) >= 118, "a NumPy header")
    shape = re.search(rb"'shape': \((\d+), (\d+)\)", data[:128])
    rows, width = int(shape[1]), int(shape[2])
    numbers = struct.unpack(f"<{rows * width}f", data[128:])
    return [list(numbers[i * width:(i + 1) * width]) for i in range(rows)]


def embed(*args, check=True):
    result = plim.run("embed", *args, "--device", "cpu")
    if check: plim.ok(result.returncode == 0, f"embed {args}: {result.stderr.strip()}")
    return result


def vectors(*args):
    return [json.loads(line)["embedding"] for line in embed(*args, "-q").stdout.splitlines()]


def apart(a, b):
    return max(abs(x - y) for v, w in zip(a, b, strict=True) for x, y in zip(v, w, strict=True))


def refused(words, *args, code=2):
    result = embed(*args, check=False)
    plim.ok(result.returncode == code and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words)
            and not result.stdout, f"refused {args[1:]}: {result.stderr.strip()}")
    return result.stderr


with tempfile.TemporaryDirectory() as folder:
    model, text = f"{folder}/model", f"{folder}/lines.txt"
    make_model(model)
    rng = random.Random(5)
    words = "the quick brown fox jumps over lazy dogs and Straße 東京 naïve don't 42 ships".split()
    lines = [" ".join(rng.choices(words, k=rng.choice([1, 2, 3, 7, 20, 60]))) for _ in range(60)] + ["", " ", "x"]
    with open(text, "w", encoding="utf-8") as f: f.write("\n".join(lines) + "\n")

    all_of_them = vectors(model, text)
    plim.ok(len(all_of_them) == len(lines) and all(len(v) == 24 for v in all_of_them), "a vector for each line, empty ones too")
    plim.ok(all(abs(sum(x * x for x in v) - 1) < 1e-5 for v in all_of_them), "of length 1")
    told = embed(model, text, "-o", f"{folder}/v.npy", "-v").stderr
    plim.ok("padding" in told and "lost their end" in told and "mean" in told, f"what was done is told: {told.strip()}")
    plim.ok([[struct.unpack("<f", struct.pack("<f", x))[0] for x in v] for v in all_of_them] == read_npy(f"{folder}/v.npy"), "NumPy and JSON have the same numbers")
    plim.ok(vectors(model, text, "--threads", 1) == all_of_them, "one thread gives the same bits")
    plim.ok(apart(vectors(model, text, "--exact"), all_of_them) < 5e-5, "--exact: the same but for rounding")
    plim.ok(apart(vectors(model, text, "--batch", 1), all_of_them) < 1e-5, "a line's vector is its own, whatever its neighbours")
    plain = vectors(model, text, "--no-normalize")
    plim.ok(apart([[x / math.sqrt(sum(y * y for y in v)) for x in v] for v in plain], all_of_them) < 1e-5, "--no-normalize")
    plim.ok(apart(vectors(model, text, "--pooling", "cls"), all_of_them) > 0.01, "--pooling cls is another vector")
    short = vectors(model, text, "--max-length", 8)
    plim.ok(apart(short[-1:], all_of_them[-1:]) < 1e-5 and apart(short, all_of_them) > 0.01, "--max-length cuts long lines only")

    with open(f"{folder}/lines.jsonl", "w") as f:
        f.writelines(json.dumps({"id": 1, "body": line}) + "\n" for line in lines)
    plim.ok(vectors(model, f"{folder}/lines.jsonl", "--field", "body") == all_of_them, "a field of JSON lines")
    with gzip.open(f"{folder}/lines.txt.gz", "wt", encoding="utf-8") as f: f.write("\r\n".join(lines))
    plim.ok(vectors(model, f"{folder}/lines.txt.gz") == all_of_them, "compressed, with CR LF, the last line without an end")
    piped = plim.subprocess.run([plim.PLIMSOLL, "embed", model, "-q", "--device", "cpu"], input="\n".join(lines), text=True, capture_output=True)
    plim.ok([json.loads(line)["embedding"] for line in piped.stdout.splitlines()] == all_of_them, "standard input")

    # --- what sentence-transformers says
    other = f"{folder}/sentence"
    shutil.copytree(model, other)
    os.makedirs(f"{other}/1_Pooling")
    kinds = ["Transformer", "Pooling", "Normalize"]

    def say(pooling, modules=3, length=None):
        with open(f"{other}/modules.json", "w") as f:
            json.dump([dict(idx=i, path=["", "1_Pooling", "2_Normalize"][i], type="sentence_transformers.models." + kinds[i]) for i in range(modules)], f)
        with open(f"{other}/1_Pooling/config.json", "w") as f: json.dump(pooling, f)
        with open(f"{other}/sentence_bert_config.json", "w") as f: json.dump(dict(max_seq_length=length, do_lower_case=False), f)

    say({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, modules=2, length=8)
    plim.ok(apart(vectors(other, text), vectors(model, text, "--no-normalize", "--max-length", 8)) == 0, "pooling, length and no normalisation from the folder")
    say({"pooling_mode": "cls"})
    plim.ok(apart(vectors(other, text), vectors(model, text, "--pooling", "cls")) == 0, "the newer spelling, and normalised")
    os.remove(f"{other}/sentence_bert_config.json")
    for most, length in ((6, 6), (1e30, 0)): # version 5 keeps it with the tokenizer
        with open(f"{other}/tokenizer_config.json", "w") as f: json.dump(dict(model_max_length=most), f)
        cut = ("--max-length", length) if length else ()
        plim.ok(apart(vectors(other, text), vectors(model, text, "--pooling", "cls", *cut)) == 0, f"a length of {most} beside the tokenizer")
    say({"pooling_mode_max_tokens": True})
    refused(["pooling_mode_max_tokens"], other, text)
    kinds[2] = "Dense"
    say({"pooling_mode": "mean"})
    refused(["Dense", "not supported"], other, text)

    # --- the budget
    words_of = refused(["missing", "budget"], model, text, "-b", "9MiB", code=3)
    need = int(re.search(r"\((\d+) bytes\) missing", words_of)[1]) + (9 << 20)
    plim.ok(vectors(model, text, "-b", need) and apart(vectors(model, text, "-b", need), all_of_them) < 1e-5,
            f"the stated minimum of {need} bytes is enough")

    # --- bad input
    refused(["given.txt"], model, f"{folder}/given.txt")
    refused(["lines.jsonl:1", "text"], model, f"{folder}/lines.jsonl")
    refused(["lines.txt:1", "byte"], model, text, "--field", "body")
    refused(["48 positions"], model, text, "--max-length", 49)
    refused(["special tokens"], model, text, "--max-length", 2)
    refused(["NumPy", "-o"], model, text, "--format", "npy")
    refused(["llama", "encoder"], f"{GOLDEN}/llama-tied", text, "-t", f"{model}/tokenizer.json")
    refused(["tokenizer.json"], f"{GOLDEN}/bert-pairs", text)
    refused(["tokens", "only 67"], f"{GOLDEN}/bert-pairs", text, "-t", f"{model}/tokenizer.json")
    refused(["max-line"], model, text, "--max-line", 70)
    wrote = plim.run("generate", model, "-p", "x", "--device", "cpu")
    plim.ok(wrote.returncode == 2 and "embed" in wrote.stderr, f"an encoder writes nothing: {wrote.stderr.strip()}")
    plim.ok(not [f for f in os.listdir(folder) if f.startswith("v.npy") and f != "v.npy"], "nothing half-written stays")
plim.done()
