#!/usr/bin/env python3
"""The library, as a program of others meets it: the C examples that people copy, compiled against an installed tree with the shared and
the static library, answer as the commands do."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder
import plim
from tiny_bert import make_model
from tiny_labels import make_labels_model

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples", "c")
NAMES = ("train", "plan", "serve", "embed", "classify", "tokenize")
TEXTS = ["The quick brown fox", "", "a", "Ada lived in London, and 東京 is far away from there, as naïve ships know " * 4]


def pkg_config(prefix, *flags):
    path = os.path.join(prefix, "lib", "pkgconfig")
    for folder, _, files in os.walk(prefix):
        if "plimsoll.pc" in files: path = folder
    out = subprocess.run(["pkg-config", *flags, "plimsoll"], env={**os.environ, "PKG_CONFIG_PATH": path}, capture_output=True, text=True)
    plim.ok(out.returncode == 0, f"pkg-config {flags} {out.stderr.strip()}")
    return out.stdout.split()


def compile_examples(prefix, out, archive):
    """The examples as the comment at their head says; with the archive in the place of the shared library."""
    flags = pkg_config(prefix, "--cflags", "--libs", *(["--static"] if archive else []))
    folder = next(flag[2:] for flag in flags if flag.startswith("-L"))
    if archive: flags = [os.path.join(folder, "libplimsoll.a") if flag == "-lplimsoll" else flag for flag in flags]
    os.makedirs(out)
    for name in NAMES:
        command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"{EXAMPLES}/{name}.c", "-o", f"{out}/{name}", *flags]
        if not archive: command.append(f"-Wl,-rpath,{folder}")
        result = subprocess.run(command, capture_output=True, text=True)
        plim.ok(result.returncode == 0, f"{'archive' if archive else 'shared'}: {name}.c {result.stderr.strip()[:500]}")


def example(out, name, *args, code=0):
    result = subprocess.run([f"{out}/{name}", *map(str, args)], capture_output=True, text=True, timeout=120)
    plim.ok(result.returncode == code and (code or not result.stderr or name == "serve"), f"{name}: {result.stderr.strip()}")
    return result


def check_train(out, folder):
    """train.c: the losses of plimsoll train, at most 60 lines; plan.c: the plan of a card that is not here, and one that does not fit."""
    job = plim.job(folder)
    told = plim.run("train", job, "--budget", "64MiB", "--overwrite", "--json")
    losses = [f"{json.loads(line)['loss']:.4f}" for line in told.stdout.splitlines() if '"event":"step"' in line]
    got = example(out, "train", job, "64MiB")
    heard = [line.split("loss ")[1].split(",")[0] for line in got.stdout.splitlines() if "loss" in line]
    plim.ok(heard == losses and len(heard) == 4 and "saved " in got.stdout, f"train: {heard} {losses}")
    for name in ("train", "serve"):
        with open(f"{EXAMPLES}/{name}.c") as f: lines = len(f.readlines())
        plim.ok(lines <= 60, f"{name}.c has {lines} lines, at most 60")
    bad = example(out, "train", f"{folder}/nowhere.yaml", code=1)
    plim.ok(bad.stderr.count("\n") == 1, f"no such job: {bad.stderr.strip()}")
    plim.ok("fits: " in example(out, "plan", job, "rtx-4090").stdout, "plan: for a card that is not here")
    small = example(out, "plan", plim.job(folder, budget="100KiB"), code=2)
    plim.ok(small.stdout.startswith("does not fit") and "100 KiB" in small.stderr, f"plan: too small a budget {small.stdout} {small.stderr}")


def check_serve(out, model):
    told = plim.run("generate", model, "-p", "Once", "-n", 64, "-t", 0, "--device", "cpu", "--raw", "--json", "-q")
    got = example(out, "serve", model, "64MiB", "Once")
    plim.ok(got.stdout == json.loads(told.stdout)["text"] + "\n", "serve streams what generate prints")
    planned, budget = (int(word) for word in got.stderr.split() if word.isdigit() and len(word) > 5)
    plim.ok(0 < planned <= budget == 64 << 20, f"inside the budget: {got.stderr.strip()}")
    small = example(out, "serve", model, "100KiB", "Once", code=1)
    plim.ok(small.stderr.count("\n") == 1 and "KiB" in small.stderr, f"a budget too small: {small.stderr.strip()}")
    example(out, "serve", model + "/nowhere", "64MiB", "Once", code=1)


def check_embed(out, folder, model):
    with open(f"{folder}/texts.txt", "w", encoding="utf-8") as f: f.write("\n".join(TEXTS) + "\n")
    told = plim.run("embed", model, f"{folder}/texts.txt", "--device", "cpu", "-q")
    bits = lambda numbers: struct.pack(f"<{len(numbers)}f", *numbers)
    rows = [bits(list(map(float, line.split()))) for line in example(out, "embed", model, *TEXTS).stdout.splitlines()]
    plim.ok(rows == [bits(json.loads(line)["embedding"]) for line in told.stdout.splitlines()], "embed gives the bits of plimsoll embed")


def check_classify(out, folder, tokens, texts):
    for model, aggregation, flags in ((tokens, "simple", ("--aggregation", "simple")), (tokens, "none", ()), (texts, "none", ("--top-k", 0))):
        told = plim.run("classify", model, f"{folder}/texts.txt", "--device", "cpu", "-q", "--truncate", *flags)
        wanted = [answer.get("entities", answer.get("labels")) for answer in map(json.loads, told.stdout.splitlines())]
        got = json.loads(example(out, "classify", model, aggregation, *TEXTS).stdout)
        plim.ok(got == wanted and len(got) == len(TEXTS), f"classify {aggregation} gives the answers of plimsoll classify")
    wrong = example(out, "classify", texts, "simple", "a text", code=1).stderr
    plim.ok("options.aggregation" in wrong and wrong.count("\n") == 1, f"an option for the other kind: {wrong.strip()}")


def check_tokenize(out, model):
    lines = example(out, "tokenize", model, "The quick brown fox").stdout.splitlines()
    ids, again = list(map(int, lines[0].split())), lines[1]
    plim.ok(again == "the quick brown fox" and len(ids) > 4, f"tokenize: {ids} {again}")
    plain = example(out, "tokenize", "bytes", "fox").stdout.splitlines()
    plim.ok(plain == ["102 111 120", "fox"], f"bytes: {plain}")


if not shutil.which("pkg-config"): print("no pkg-config here"), sys.exit(77)
if not os.path.exists(os.path.join(os.environ["BUILD_DIR"], "libplimsoll.so")): print("this build has no shared library"), sys.exit(77)
with tempfile.TemporaryDirectory() as work:
    installed = subprocess.run(["cmake", "--install", os.environ["BUILD_DIR"], "--prefix", f"{work}/usr"], capture_output=True, text=True)
    plim.ok(installed.returncode == 0, f"cmake --install {installed.stderr.strip()[-300:]}")
    llama = llama_folder.make(f"{work}/llama")
    make_model(f"{work}/bert")
    for kind in ("bert-tokens", "bert-texts"): make_labels_model(f"{work}/{kind}", kind)
    for kind in ("shared", "archive"):
        compile_examples(f"{work}/usr", f"{work}/{kind}", kind == "archive")
        check_train(f"{work}/{kind}", work)
        check_serve(f"{work}/{kind}", llama)
        check_embed(f"{work}/{kind}", work, f"{work}/bert")
        check_classify(f"{work}/{kind}", work, f"{work}/bert-tokens", f"{work}/bert-texts")
        check_tokenize(f"{work}/{kind}", f"{work}/bert")
plim.done()
