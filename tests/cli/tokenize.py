#!/usr/bin/env python3
"""plimsoll tokenize: the same bytes for any number of threads, after any number of kills, from any packaging; trained on."""
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def read(path):
    with open(path, "rb") as f: return f.read()


def tokenize(folder, name, *args):
    out = f"{folder}/{name}"
    return plim.run("tokenize", *args, "-o", out), out


def lines(n):
    random.seed(3)
    return [json.dumps({"id": i, "text": " ".join(random.choices(plim.CORPUS.split(), k=random.randint(1, 300)))}) for i in range(n)]


def same_bytes(folder):
    source = f"{folder}/a.jsonl"
    text = "\n".join(lines(3000)) + "\n"
    open(source, "w").write(text)
    with gzip.open(source + ".gz", "wt") as f: f.write(text)
    result, one = tokenize(folder, "one.tok", source, "--threads", 1, "-q")
    plim.ok(result.returncode == 0 and not result.stderr and not result.stdout, f"one thread {result.stderr.strip()}")
    for name, args in (("two threads", [source, "--threads", 2]), ("five threads", [source, "--threads", 5]), ("gzip", [source + ".gz"])):
        result, out = tokenize(folder, "other.tok", *args)
        plim.ok(result.returncode == 0 and read(out) == read(one), f"{name}: the same bytes {result.stderr.strip()[-80:]}")
    plim.ok(not [n for n in os.listdir(folder) if ".part" in n], "nothing is left over")
    crlf = f"{folder}/crlf.jsonl"
    open(crlf, "wb").write(b"\xef\xbb\xbf" + text.strip().replace("\n", "\r\n\r\n").encode())
    result, out = tokenize(folder, "crlf.tok", crlf)
    plim.ok(read(out) == read(one), "byte order mark, CRLF, empty lines and no last newline change nothing")
    return one


def kills(folder, one):
    """kill -9 at random moments until it is through; the journal has it go on, and the bytes are the same."""
    big = f"{folder}/big.jsonl"
    text = "\n".join(lines(3000)) + "\n"
    with open(big, "w") as f:
        for _ in range(8): f.write(text)
    _, want = tokenize(folder, "want.tok", big, "-q")
    out, rounds, resumed, longest = f"{folder}/killed.tok", 0, 0, 0.05
    random.seed(5)
    while not os.path.exists(out) and rounds < 60:
        rounds += 1
        resumed += os.path.exists(out + ".part.journal")
        if rounds > 6 and not resumed: longest *= 2  # a slow machine has not begun by then
        process = subprocess.Popen([plim.PLIMSOLL, "tokenize", big, "-o", out, "--threads", str(random.randint(1, 3)), "-q"], stdin=subprocess.DEVNULL)
        try:
            process.wait(timeout=random.uniform(0.001, longest) if rounds < 12 or not resumed else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    plim.ok(os.path.exists(out) and resumed >= 1, f"through after {rounds} starts, {resumed} of them with a journal")
    plim.ok(os.path.exists(out) and read(out) == read(want), "the bytes of a run that was left alone")
    out = f"{folder}/stopped.tok"
    process = subprocess.Popen([plim.PLIMSOLL, "tokenize", big, "-o", out, "--threads", "1", "-q"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not os.path.exists(out + ".part.journal") and process.poll() is None: time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    stopped = process.returncode == 130 and err.count("\n") == 1
    plim.ok(stopped or process.returncode == 0, f"SIGTERM: exit {process.returncode} {err.strip()}")
    if stopped:
        result, _ = tokenize(folder, "stopped.tok", one)
        plim.ok(result.returncode == 2, f"parts of other data are not continued: {result.stderr.strip()}")
        result, _ = tokenize(folder, "stopped.tok", big, "-q")
        plim.ok(result.returncode == 0 and read(out) == read(want), "SIGTERM, then the same command: the same bytes")


def begun(args, out):
    """A run that has begun its journal, stopped there; None when it was too quick."""
    process = subprocess.Popen([plim.PLIMSOLL, "tokenize", *args, "-o", out, "--threads", "1", "-q"], stdin=subprocess.DEVNULL)
    while not os.path.exists(out + ".part.journal") and process.poll() is None: time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.05)
    return process if process.poll() is None and not os.path.exists(out) else None


def places(folder):
    """The output beside, inside and in place of the input; parts of others."""
    home = f"{folder}/home"
    os.mkdir(home)
    source, out = f"{home}/big.txt", f"{home}/out.tok"
    with open(source, "w") as f:
        for _ in range(1000): f.write(plim.CORPUS)
    _, want = tokenize(folder, "places.tok", source, "-q")
    size = os.path.getsize(source)
    for name, text in (("big.txt", "input and output"), ("", "folder")):
        result, _ = tokenize(home, name, source, "-q")
        plim.ok(result.returncode == 2 and text in result.stderr and result.stderr.count("\n") == 1, f"refused: {result.stderr.strip()}")
    plim.ok(os.path.getsize(source) == size and os.listdir(home) == ["big.txt"], "the input is as it was, nothing beside it")
    process = begun([home], out)
    if process:
        for more in ([], ["--no-resume"]):
            result, _ = tokenize(home, "out.tok", home, "-q", *more)
            plim.ok(result.returncode == 2 and "another run" in result.stderr, f"one writer at a time: {result.stderr.strip()}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        journal = read(out + ".part.journal")
        result, _ = tokenize(home, "out.tok", home, "-q")
        plim.ok(result.returncode == 0 and read(out) == read(want), f"parts in the folder that is read are no data {result.stderr.strip()}")
        os.remove(out)
        with open(out + ".part.journal", "wb") as f: f.write(journal)
        result, _ = tokenize(home, "out.tok", home, "-q")
        plim.ok(result.returncode == 0 and read(out) == read(want), f"a journal without its parts is begun anew {result.stderr.strip()}")
    else:
        plim.skip("the machine was too quick to be stopped")


def trains(folder):
    """Rows from a token file are the rows of the text: the same losses."""
    path = plim.job(folder)
    plain = plim.losses(plim.run("train", path, "-q", "--no-checkpoint").stdout)
    tokenize(folder, "corpus.tok", f"{folder}/corpus.txt")
    tokens = plim.losses(plim.run("train", path, "-q", "--no-checkpoint", "--set", f"data.train={folder}/corpus.tok").stdout)
    plim.ok(plain and plain == tokens, "training on tokens: every loss is that of the text")
    pairs = f"{folder}/pairs.jsonl"
    with open(pairs, "w") as f:
        for i in range(200): f.write(json.dumps({"q": f"how many is {i}?", "a": f"it is {i * 7} barrels"}) + "\n")
    tokenize(folder, "pairs.tok", pairs, "--prompt-field", "q", "--response-field", "a")
    a = plim.run("train", path, "-q", "--no-checkpoint", "--set", f"data.train={folder}/pairs.tok", "--set", "data.packing=true")
    plim.ok(len(plim.losses(a.stdout)) == 4, f"training on masked samples {a.stderr.strip()}")
    tokens_seen = [e["tokens"] for e in plim.events(a.stdout) if e["event"] == "step"]
    plim.ok(all(0 < n < 8 * 64 * 0.8 for n in tokens_seen), f"only answers are counted: {tokens_seen}")


def old_checkpoint(folder):
    """Checkpoints from before the loader had a state: a number of rows is enough for plain text, and only for that."""
    path = plim.job(folder)
    whole = plim.losses(plim.run("train", path, "-q", "--steps", 6, "--no-checkpoint").stdout)
    plim.run("train", path, "-q", "--steps", 3)
    name = f"{folder}/run/checkpoint-00000003/trainer.json"
    saved = json.load(open(name))
    plim.ok(saved.pop("loader")["rows"] == saved["position"] == 24, "the state counts rows")
    del saved["format"]
    json.dump(saved, open(name, "w"))
    os.remove(f"{folder}/run/checkpoint-00000003/manifest.json")
    old = ["--resume", "--change", "manifest"]
    result = plim.run("train", path, "-q", "--steps", 6, *old, "--no-checkpoint")
    plim.ok(plim.losses(result.stdout) == {k: v for k, v in whole.items() if k > 3}, f"an old checkpoint of plain text goes on {result.stderr.strip()}")
    result = plim.run("train", path, "-q", "--steps", 6, *old, "--set", f"data.train={folder}/a.jsonl")
    plim.ok(result.returncode == 2 and "output.dir" in result.stderr and result.stderr.count("\n") == 1, f"of a stream it is refused: {result.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder_:
    one_ = same_bytes(folder_)
    kills(folder_, one_)
    places(folder_)
    trains(folder_)
    old_checkpoint(folder_)
plim.done()
