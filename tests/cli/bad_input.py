#!/usr/bin/env python3
"""Every bad input: exit 2, exactly one line on stderr that names what, where and what to do, and nothing written."""
import json
import math
import os
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def listing(folder):
    """Every file with size and time, to see that nothing was touched."""
    return sorted((os.path.join(root, name), os.stat(os.path.join(root, name)).st_mtime_ns)
                  for root, folders, files in os.walk(folder) for name in files + folders)


def refused(name, args, words, folder, code=2):
    """Run and judge; words must all be in the one line."""
    before = listing(folder)
    result = plim.run(*args)
    line = result.stderr
    missing = [w for w in words if w not in line]
    same = listing(folder) == before
    quiet = not [e for e in plim.events(result.stdout) if e.get("event") not in ("plan", "refused")]
    plim.ok(result.returncode == code and line.count("\n") == 1 and line.startswith("plimsoll: ") and not missing and same and quiet,
            f"{name}: {line.strip()}" + (f" LACKS {missing}" if missing else "") + ("" if same else " WROTE SOMETHING")
            + (f" EXIT {result.returncode}" if result.returncode != code else "") + ("" if quiet else " SAID " + result.stdout))


def header_of(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(size)), f.read()


def write(path, header, data, size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text) if size is None else size) + text + data)


def config_cases(folder, path):
    text = open(path).read()

    def with_line(old, new):
        changed = os.path.join(folder, "bad.yaml")
        assert old in text, old
        open(changed, "w").write(text.replace(old, new))
        return changed

    table = [
        ("an unknown key", "  batch_size: 4", "  batchsize: 4", ["batchsize", "did you mean", "training.batch_size"]),
        ("an unknown section", "training:", "trainin:", ["trainin", "did you mean"]),
        ("a wrong type", "  batch_size: 4", "  batch_size: four", ["training.batch_size", "whole number", "four"]),
        ("a list where a number belongs", "  steps: 4", "  steps: [4]", ["training.steps"]),
        ("a number out of range", "  max_length: 64", "  max_length: 1", ["data.max_length"]),
        ("a word that is not a choice", "  mixed_precision: fp32", "  mixed_precision: bf8", ["training.mixed_precision", "bf16"]),
        ("heads that do not divide the width", "  num_attention_heads: 4", "  num_attention_heads: 5", ["num_attention_heads", "hidden_size"]),
        ("kv heads that do not divide the heads", "  num_key_value_heads: 2", "  num_key_value_heads: 3", ["num_key_value_heads"]),
        ("an architecture nobody knows", "architecture: llama", "architecture: lama", ["model.architecture", "did you mean 'llama'"]),
        ("a vocabulary too small for bytes", "  vocab_size: 256", "  vocab_size: 100", ["model.vocab_size", "256"]),
        ("no model at all", "  architecture: llama", "  rope_theta: 10000", ["model.path"]),
        ("an optimizer that is not there", "  seed: 7", "  optimizer: lion", ["training.optimizer", "adamw"]),
        ("experts of a model that has none", "  hidden_size: 64", "  hidden_size: 64\n  num_experts: 4", ["num_experts", "mixtral"]),
        ("a duplicate key", "  steps: 4", "  steps: 4\n  steps: 5", ["steps"]),
        ("text that is not YAML", "training:", "training: {", []),
        ("a data file that is missing", "corpus.txt", "nowhere.txt", ["data.train", "nowhere.txt"]),
    ]
    for name, old, new, words in table:
        bad = with_line(old, new)
        refused(name, ["train", bad], ["bad.yaml", *words], folder)
    refused("the same from plan", ["plan", with_line("  batch_size: 4", "  batchsize: 4")], ["bad.yaml", "batchsize"], folder)
    refused("the same from eval", ["eval", with_line("  batch_size: 4", "  batchsize: 4")], ["bad.yaml", "batchsize"], folder)
    open(f"{folder}/empty.txt", "w").close()
    refused("an empty data file", ["train", with_line("corpus.txt", "empty.txt")], ["bad.yaml", "data.train", "empty.txt", "empty"], folder)
    refused("a config that is missing", ["train", f"{folder}/none.yaml"], ["none.yaml"], folder)
    refused("a config that is a folder", ["train", folder], [folder], folder)
    refused("an empty output folder", ["train", path, "--set", "output.dir="], ["output.dir"], folder)
    refused("an endless output folder", ["train", path, "--set", "output.dir=" + "x" * 500], ["output.dir"], folder)
    refused("--set with an unknown key", ["train", path, "--set", "training.stepps=3"], ["--set", "training.steps"], folder)
    refused("--set without a value", ["train", path, "--set", "training.steps"], ["training.steps"], folder)


def told_at_once(folder, path):
    """Everything that is wrong with keys is told, a line for each, and what is suggested is what was meant."""
    text = open(path).read()
    bad = os.path.join(folder, "bad.yaml")
    with open(bad, "w") as f: f.write(text.replace("  batch_size: 4", "  batch_size: four\n  lr: 1").replace("  max_length: 64", "  max_length: 64\n  fild: x"))
    told = plim.run("train", bad, "--set", "training.nothing=1")
    lines = told.stderr.splitlines()
    plim.ok(told.returncode == 2 and len(lines) == 3 and all(any(w in line for line in lines) for w in ("data.field", "'four'", "training.learning_rate")), f"three keys: {lines}")
    told = plim.run("train", path, "--set", "training.lr=1", "--set", "model.layers=2")
    plim.ok(told.returncode == 2 and told.stderr.count("\n") == 2 and "model.num_layers" in told.stderr, f"two --set: {told.stderr.strip()}")
    for key, meant in (("lr", "training.learning_rate"), ("training.wd", "training.weight_decay"), ("training.bs", "training.batch_size"), ("training.epoch", "training.epochs"),
                       ("training.grad_accum", "training.gradient_accumulation_steps"), ("data.seq_len", "data.max_length"), ("model.n_layer", "model.num_layers"),
                       ("optimizer.learning_rate", "training.learning_rate"), ("data.path", "data.train"), ("training.warmup", "training.warmup_steps")):
        refused(f"suggests {meant}", ["plan", path, "--set", f"{key}=1"], [f"'{key}'", f"did you mean '{meant}'"], folder)
    told = plim.run("plan", path, "--set", "training.qq=1")
    plim.ok("did you mean" not in told.stderr, f"and nothing for what is like no key: {told.stderr.strip()}")
    refused("--model of train", ["train", path, "--model", "x"], ["--model", "--set model.path="], folder)
    refused("--model of serve", ["serve", "--model", "x"], ["--model", "argument", "serve [OPTION...] MODEL"], folder)
    refused("--lr of train", ["train", path, "--lr", "1"], ["--lr", "--set training.learning_rate="], folder)
    with open(bad, "w") as f: f.write("model: {architecture: llama, hidden_size: 64}\ndata: {train: [x.txt]}\n")
    refused("sizes that are missing", ["plan", bad], ["model.vocab_size", "model.num_layers", "model.num_attention_heads", "are missing"], folder)
    os.symlink(path, f"{folder}/a")  # a name that is part of any sentence
    told = plim.run("plan", "a", "--set", "model.num_attention_heads=3", cwd=folder)
    plim.ok(told.returncode == 2 and told.stderr.startswith("plimsoll: a: "), f"a job with a short name is named: {told.stderr.strip()}")
    os.remove(f"{folder}/a")
    many = plim.run("plan", path, "-q", "--set", "model.architecture=mixtral", "--set", "model.num_attention_heads=4")
    plim.ok(many.returncode == 0, f"key heads that are absent are as many as query heads: {many.stderr.strip()}")
    for name in ("llama", "gemma2", "gemma3"):
        refused(f"{name} that transformers refuses", ["plan", path, "--set", f"model.architecture={name}", "--set", "model.hidden_size=64", "--set", "model.num_attention_heads=6",
                                                      "--set", "model.num_key_value_heads=2", "--set", "model.head_dim=16"], ["num_attention_heads", "transformers"], folder)


def variable_cases(folder, path):
    for name, value in (("PLIMSOLL_CPU", "sse9"), ("PLIMSOLL_CALIBRATE", "x"), ("PLIMSOLL_PATIENCE", "-1"), ("PLIMSOLL_PATIENCE", "soon"), ("PLIMSOLL_LANE", "off"),
                        ("PLIMSOLL_PORT", "99999"), ("DISCORD_WEBHOOK", "http://x"), ("SLACK_WEBHOOK", "https://"), ("PLIMSOLL_WEBHOOK", "ftp://x")):
        told = plim.run("plan", path, "-q", env={name: value})
        plim.ok(told.returncode == 2 and told.stderr.count("\n") == 1 and name in told.stderr and "expected" in told.stderr, f"{name}={value}: {told.stderr.strip()}")
    for name, value in (("PLIMSOLL_CPU", ""), ("PLIMSOLL_CPU", "plain"), ("PLIMSOLL_PATIENCE", "20"), ("DISCORD_WEBHOOK", "http://127.0.0.1:1/x")):
        told = plim.run("plan", path, "-q", env={name: value})
        plim.ok(told.returncode == 0, f"{name}={value} is fine: {told.stderr.strip()}")


def control_cases(folder, path):
    """What a file or a flag holds is shown in one line that a terminal does not obey."""
    text = open(path).read()

    def shown(name, args, words, hidden="\n\x1b\r\t\x07\x7f\x85\x9b\u2028"):
        refused(name, args, words, folder)
        line = plim.run(*args).stderr.rstrip("\n")
        plim.ok(not set(hidden) & set(line), f"and nothing of it is raw: {line!r}")

    bad = os.path.join(folder, "bad.yaml")
    with open(bad, "w") as f: f.write(text.replace("  steps: 4", '  steps: 4\n  "x\\ny\\e[31m\\N\\L\\u009b": 1'))
    shown("a key of controls", ["train", bad], ["bad.yaml", r"x\ny\x1b[31m\u0085\u2028\u009b"])
    for key, value, words in (("training.lr_scheduler", "a\nb\x1b[31m", [r"a\nb\x1b[31m"]), ("training.batch_size", "4\n\x7f", [r"4\n\x7f"]),
                              ("training.device", "cpu\r\x07", [r"cpu\r\x07"]), ("data.train", f"{folder}/no\nne\t.txt", [r"no\nne\t.txt"]),
                              ("data.train", f"{folder}/größe 船\x1b.txt", ["größe 船", r"\x1b.txt"])):
        shown(f"{key} of controls", ["train", path, "--set", f"{key}={value}"], words)
    shown("a file's name", ["train", f"{folder}/no\nfile\x1b[0m"], [r"no\nfile\x1b[0m"])
    shown("a command", ["tra\nin\x1b"], [r"tra\nin\x1b"])
    refused("a name that is no UTF-8", ["train", os.fsdecode(b"/none/\xff\xc3\xb6")], [r"/none/\xffö"], folder)
    long = plim.run("train", f"{folder}/" + "船" * 500)
    plim.ok("\\x" not in long.stderr and long.stderr.count("\n") == 1, f"a text that is cut is cut between characters: {long.stderr.strip()[-40:]}")


def budget_cases(folder, path):
    refused("a budget of 12Gb", ["train", path, "--budget", "12Gb"], ["--budget", "12Gb", "GB"], folder)
    refused("a budget of 12Gb in the config", ["train", path, "--set", "budget=12Gb"], ["budget", "12Gb", "GB"], folder)
    refused("a budget of words", ["plan", path, "--budget", "lots"], ["--budget", "lots"], folder)
    refused("a budget below the program", ["train", path, "--budget", "500KiB"], ["budget", "program itself", "plimsoll plan"], folder, code=3)
    refused("the same from plan", ["plan", path, "--budget", "500KiB"], ["budget", "program itself"], folder, code=3)
    below, _ = plim.plan(path, "--budget", "500KiB")
    plim.ok(below and not below["fits"] and below["remedies"], "a budget below the program: plan --json has the plan and remedies")
    program = plim.plan(path)[0]["by_class"]["overhead"]
    wide = ["--set", "model.vocab_size=8192", "--set", "model.hidden_size=256"]  # 4 MiB of embedding
    refused("a budget that holds little but the program", ["train", path, *wide, "--budget", program + (2 << 20)], ["job.yaml", "missing", "plimsoll plan"], folder, code=3)
    refused("a budget-at without a step", ["train", path, "--budget-at", "40MiB"], ["--budget-at", "STEP=BYTES"], folder)


def file_cases(folder, path):
    good = f"{folder}/good"
    plim.run("train", path, "-q", "--steps", 1, "--set", f"output.dir={folder}/seed")
    made = plim.run("export", f"{folder}/seed", "-o", good, "--dtype", "f32")
    if not plim.ok(made.returncode == 0, f"a good model to spoil {made.stderr.strip()}"): return
    header, data = header_of(f"{good}/model.safetensors")
    norm = "model.norm.weight"

    def spoiled(name, change_header=None, change_file=None, words=()):
        bad = f"{folder}/bad"
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        file = f"{bad}/model.safetensors"
        if change_header:
            copy = json.loads(json.dumps(header))
            change_header(copy)
            write(file, copy, data)
        if change_file: change_file(file, bad)
        for command in (["train", path, "--set", "model.architecture=", "--set", f"model.path={bad}"],):
            refused(name, command, ["bad", *words], folder)

    def edit(name, **fields):
        return lambda h: h[name].update(fields)

    def beyond(h):
        begin, end = h[norm]["data_offsets"]
        h[norm].update(shape=[10**6], data_offsets=[begin, begin + 4 * 10**6])

    def overlap(h):
        begin, end = h[norm]["data_offsets"]
        h[norm].update(data_offsets=[begin - 64, end - 64])

    def config(key, value):
        def change(file, bad):
            c = json.load(open(f"{bad}/config.json"))
            c[key] = value
            if value is None: del c[key]
            json.dump(c, open(f"{bad}/config.json", "w"))
        return change

    loads = ["plan", path, "--set", "model.architecture=", "--set", f"model.path={good}"]
    told = plim.run(*loads, "-q")
    plim.ok(told.returncode == 0, f"keys beside model.path that say what its config.json says {told.stderr.strip()}")
    for key, value in (("vocab_size", 300), ("hidden_size", 128), ("intermediate_size", 64), ("num_layers", 2), ("num_hidden_layers", 2),
                       ("num_attention_heads", 2), ("num_key_value_heads", 1), ("head_dim", 32), ("max_position_embeddings", 99),
                       ("sliding_window", 7), ("rms_norm_eps", 0.25), ("rope_theta", 5000), ("initializer_range", 0.5),
                       ("tie_word_embeddings", "false"), ("attention_type", "sliding_window")):
        shown = "num_layers" if key == "num_hidden_layers" else key
        for command in ("plan", "train"):
            refused(f"model.{key} beside model.path", [command, *loads[1:], "--set", f"model.{key}={value}"],
                    [f"model.{shown}", "good/config.json"], folder)

    spoiled("an offset beyond the file", beyond, words=[norm])
    spoiled("tensors that overlap", overlap, words=["model.safetensors"])
    spoiled("a negative offset", edit(norm, data_offsets=[-4, 252]), words=[norm])
    spoiled("an offset that is text", edit(norm, data_offsets=["0", "4"]), words=[norm])
    spoiled("a shape that does not match its bytes", edit(norm, shape=[65]), words=[norm])
    spoiled("a shape that overflows", edit(norm, shape=[2**62, 2**62]), words=[norm])
    spoiled("a dtype nobody knows", edit(norm, dtype="F33"), words=[norm, "F33"])
    spoiled("a dtype that cannot be a weight", edit(norm, dtype="I32"), words=[norm, "I32"])
    def not_a_number(file, _):
        begin = header[norm]["data_offsets"][0] + 4 * 3
        write(file, header, data[:begin] + struct.pack("<f", math.nan) + data[begin + 4:])

    def infinite(file, _):
        begin = header[norm]["data_offsets"][0] + 4 * 3
        write(file, header, data[:begin] + struct.pack("<f", -math.inf) + data[begin + 4:])

    spoiled("a weight that is infinite", change_file=infinite, words=[norm, "element 3 is infinite"])
    spoiled("a weight that is NaN", change_file=not_a_number, words=[norm, "element 3 is NaN"])
    spoiled("a missing tensor", lambda h: h.update({"model.norm.other": h.pop(norm)}), words=[norm])
    spoiled("a truncated file", change_file=lambda f, _: os.truncate(f, os.path.getsize(f) - 100), words=["model.safetensors"])
    spoiled("a file cut in its header", change_file=lambda f, _: os.truncate(f, 100), words=["model.safetensors"])
    spoiled("an empty file", change_file=lambda f, _: os.truncate(f, 0), words=["model.safetensors"])
    spoiled("a header of 2^60 bytes", change_file=lambda f, _: write(f, header, data, 2**60), words=["model.safetensors"])
    spoiled("a header of 90 MB that is not there", change_file=lambda f, _: write(f, header, data, 90 * 10**6), words=["model.safetensors"])
    spoiled("a header that is not JSON", change_file=lambda f, _: write(f, b"{" * 500, data), words=["model.safetensors"])
    spoiled("a file that is not there", change_file=lambda f, _: os.remove(f), words=["safetensors"])
    spoiled("another width in config.json", change_file=config("hidden_size", 128), words=["config.json"])
    spoiled("heads that do not divide in config.json", change_file=config("num_attention_heads", 7), words=["config.json", "num_attention_heads"])
    spoiled("an activation we do not have", change_file=config("hidden_act", "relu"), words=["config.json", "hidden_act"])
    spoiled("no vocabulary in config.json", change_file=config("vocab_size", None), words=["config.json", "vocab_size"])
    spoiled("config.json that is no JSON", change_file=lambda _, b: open(f"{b}/config.json", "w").write("{,}"), words=["config.json"])
    spoiled("no config.json", change_file=lambda _, b: os.remove(f"{b}/config.json"), words=["config.json"])


with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_)
    config_cases(folder_, path_)
    told_at_once(folder_, path_)
    variable_cases(folder_, path_)
    control_cases(folder_, path_)
    budget_cases(folder_, path_)
    file_cases(folder_, path_)
plim.done()
