#!/usr/bin/env python3
"""train, eval, export, generate: the same model all the way."""
import json
import os
import re
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def evaluate(*args):
    result = plim.run("eval", *args, "-q", "--json")
    return (json.loads(result.stdout) if result.returncode == 0 else {"loss": result.stderr}), result


def generate(*args):
    result = plim.run("generate", "--device", "cpu", *args, "-q", "--json")
    return (json.loads(result.stdout) if result.returncode == 0 else {"text": result.stderr, "tokens": None}), result


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def types_of(folder):
    found = set()
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            found |= {t["dtype"] for key, t in header(os.path.join(folder, name)).items() if key != "__metadata__"}
    return found


def without_low_bits(path):
    """Tensors of an fp32 file that bf16 holds as well, all of their elements."""
    found, tensors = [], header(path)
    with open(path, "rb") as f:
        start = 8 + struct.unpack("<Q", f.read(8))[0]
        for name, t in tensors.items():
            if name == "__metadata__": continue
            f.seek(start + t["data_offsets"][0])
            words = memoryview(f.read(t["data_offsets"][1] - t["data_offsets"][0])).cast("H")
            if not any(words[::2]): found.append(name)
    return found


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__mixed_precision="bf16", training__steps=12, training__learning_rate="5e-3",
                    data__validation=f"[{folder}/corpus.txt]", training__eval_rows=6, output__dir=f"{folder}/run")
    early = plim.run("eval", path, "-q")
    plim.ok(early.returncode == 2 and early.stderr.count("\n") == 1 and "output.dir" in early.stderr,
            f"eval before training: {early.stderr.strip()}")
    trained = plim.run("train", path, "-q")
    told = [e for e in plim.events(trained.stdout) if e["event"] == "eval"]
    plim.ok(trained.returncode == 0 and told, f"trained {trained.stderr.strip()}")
    checkpoint = f"{folder}/run/checkpoint-00000012"

    # --- eval
    first, _ = evaluate(path, "--rows", 6)
    plim.ok(first["loss"] == told[-1]["loss"], f"eval gives the loss training gave: {first['loss']} = {told[-1]['loss']}")
    plim.ok(first["tokens"] == told[-1]["tokens"] and first["model"] == checkpoint, "over the same tokens and weights")
    whole, _ = evaluate(path)
    plim.ok(whole["rows"] > 6 and whole["tokens"] > first["tokens"], "all rows when none are named")
    memory = whole["memory"]
    plim.ok(memory["ledger_peak"] == memory["planned_total"], "eval: ledger = plan")
    small, _ = evaluate(path, "--budget", memory["planned_total"] - memory["arena_bytes"] // 2)
    plim.ok(small["batch"] < whole["batch"] and small["loss"] == whole["loss"], "a smaller budget: fewer rows at a time, same loss")
    refused, result = evaluate(path, "--budget", "5MiB")  # less than the program itself: no smaller loader helps
    plim.ok(result.returncode == 3 and result.stderr.count("\n") == 1 and "missing" in result.stderr,
            f"eval that does not fit exits 3: {result.stderr.strip()}")

    # --- export
    for dtype, stored in (("f32", "F32"), ("bf16", "BF16"), ("f16", "F16")):
        out = f"{folder}/{dtype}"
        result = plim.run("export", f"{folder}/run", "-o", out, "--dtype", dtype)
        plim.ok(result.returncode == 0 and types_of(out) == {stored}, f"export --dtype {dtype} {result.stderr.strip()}")
        plim.ok(header(f"{out}/model.safetensors")["__metadata__"] == {"format": "pt"}, f"{dtype}: as transformers wants it")
    rounded = without_low_bits(f"{folder}/f32/model.safetensors")
    plim.ok(not rounded and any("self_attn.q_proj" in k for k in header(f"{folder}/f32/model.safetensors")),
            f"in f32 every tensor has its master's bits {rounded}")
    config = json.load(open(f"{folder}/f32/config.json"))
    plim.ok(config["architectures"] == ["LlamaForCausalLM"] and config["torch_dtype"] == "float32"
            and config["hidden_size"] == 64, "config.json says what it is")
    again, _ = evaluate(path, "--rows", 6, "--model", f"{folder}/bf16")
    plim.ok(again["loss"] == first["loss"], "the export in the compute type has the same loss")
    loaded, _ = evaluate(path, "--rows", 6, "--set", "output.dir=" + f"{folder}/none", "--set", "model.architecture=",
                         "--set", f"model.path={folder}/bf16")
    plim.ok(loaded["loss"] == first["loss"] and loaded["model"] == f"{folder}/bf16", f"also through model.path: {loaded['loss']}")
    wide, _ = evaluate(path, "--rows", 6, "--model", f"{folder}/f32", "--set", "training.mixed_precision=fp32")
    plim.ok(isinstance(wide["loss"], float) and abs(wide["loss"] - first["loss"]) < 0.02, f"fp32 is close: {wide['loss']}")

    narrow = plim.run("export", f"{folder}/f32", "-o", f"{folder}/back", "--dtype", "bf16", "-q")
    plim.ok(narrow.returncode == 0 and not narrow.stderr, "any Hugging Face folder can be exported; --quiet is quiet")
    shards = plim.run("export", checkpoint, "-o", f"{folder}/shards", "--shard-size", "100KB")
    index = json.load(open(f"{folder}/shards/model.safetensors.index.json"))
    plim.ok(shards.returncode == 0 and len(set(index["weight_map"].values())) > 1
            and not os.path.exists(f"{folder}/shards/model.safetensors"), "--shard-size makes shards and an index")
    split, _ = evaluate(path, "--rows", 6, "--model", f"{folder}/shards")
    plim.ok(split["loss"] == first["loss"], "which load the same")

    before = sorted((n, os.path.getmtime(f"{folder}/f32/{n}")) for n in os.listdir(f"{folder}/f32"))
    refused = plim.run("export", f"{folder}/run", "-o", f"{folder}/f32")
    after = sorted((n, os.path.getmtime(f"{folder}/f32/{n}")) for n in os.listdir(f"{folder}/f32"))
    plim.ok(refused.returncode == 2 and "--force" in refused.stderr and before == after,
            f"a folder that holds something is left alone: {refused.stderr.strip()}")
    open(f"{folder}/f32/README.md", "w").write("mine\n")
    forced = plim.run("export", f"{folder}/run", "-o", f"{folder}/f32", "--force", "--dtype", "f16")
    plim.ok(forced.returncode == 0 and types_of(f"{folder}/f32") == {"F16"}
            and os.path.exists(f"{folder}/f32/README.md"), "--force writes into it and leaves other files")
    failed = plim.run("export", f"{folder}/run", "-o", f"{folder}/never", env={"PLIMSOLL_FAULT": "write:2"})
    plim.ok(failed.returncode == 2 and failed.stderr.count("\n") == 1
            and not [n for n in os.listdir(folder) if n.startswith("never")],
            f"a failed write leaves nothing behind: {failed.stderr.strip()}")

    # --- generate
    long_prompt = plim.CORPUS[:75]
    one, _ = generate(checkpoint, "-p", long_prompt, "-n", 40, "--seed", 3)
    two, _ = generate(f"{folder}/run", "-p", long_prompt, "-n", 40, "--seed", 3)
    three, _ = generate(path, "-p", long_prompt, "-n", 40, "--seed", 4)
    plim.ok(one["tokens"] and one["tokens"] == two["tokens"], "the same seed gives the same tokens, however the model is named")
    plim.ok(three["tokens"] != one["tokens"], "another seed gives others")
    plim.ok(one["generated_tokens"] == 40 and one["stop"] == "length" and one["prompt_tokens"] == 75, "as many as asked for")
    plim.ok(one["memory"]["ledger_peak"] == one["memory"]["planned_total"] and one["memory"]["positions"] == 114,
            "generate: ledger = plan, and the cache holds what is needed")
    greedy, _ = generate(checkpoint, "-p", long_prompt, "-n", 40, "-t", 0)
    room = greedy["memory"]["planned_total"]
    tight, result = generate(checkpoint, "-p", long_prompt, "-n", 40, "-t", 0, "-b", room - 20000)
    plim.ok(tight["tokens"] == greedy["tokens"], f"the prompt in smaller pieces gives the same text {result.stderr.strip()}")
    top, _ = generate(checkpoint, "-p", long_prompt, "-n", 40, "--top-k", 1)
    plim.ok(top["tokens"] == greedy["tokens"], "top-k 1 is greedy")
    top, _ = generate(checkpoint, "-p", long_prompt, "-n", 40, "--top-p", "0.000001")
    plim.ok(top["tokens"] == greedy["tokens"], "so is a tiny top-p")
    single, _ = generate(checkpoint, "-p", long_prompt, "-n", 40, "-t", 0, "--threads", 1)
    plim.ok(single["tokens"] == greedy["tokens"], "the number of threads does not matter")
    text = plim.run("generate", "--device", "cpu", checkpoint, "-p", long_prompt, "-n", 40, "--seed", 3, "-q")
    plim.ok(text.stdout.rstrip("\n") == one["text"].rstrip("\n") and not text.stderr, "the text on stdout is the JSON's")
    told = plim.run("generate", "--device", "cpu", checkpoint, "-p", long_prompt, "-n", 4, "--echo")
    plim.ok(told.stdout.startswith(long_prompt) and "tokens/s" in told.stderr, "--echo, and a summary on stderr")

    few = plim.run("generate", "--device", "cpu", checkpoint, "-p", "x", "-n", 200, "-b", "100KiB")
    room = 100 * 1024 + int(re.search(r"\((\d+) bytes\) missing", few.stderr)[1])  # holds 200 positions and the reserve of a process
    for name, args, code, word in [
        ("a budget too small", ["-p", "x", "-n", 2000, "-b", room - (512 << 10)], 3, "missing"),
        ("a budget below the program", ["-p", "x", "-b", "100KiB"], 3, "raise the budget"),
        ("a budget of nothing", ["-p", "x", "-b", "0"], 2, "--budget"),
        ("no prompt", [], 2, "--prompt"),
        ("an empty prompt", ["-p", ""], 2, "--prompt"),
        ("no tokens", ["-p", "x", "-n", "0"], 2, "--max-tokens"),
        ("a negative temperature", ["-p", "x", "-t", "-1"], 2, "temperature"),
        ("a share above 1", ["-p", "x", "--top-p", "1.5"], 2, "top-p"),
        ("a prompt beyond the positions", ["-p", "x" * 3000], 2, "positions"),
    ]:
        result = plim.run("generate", "--device", "cpu", checkpoint, *args)
        plim.ok(result.returncode == code and result.stderr.count("\n") == 1 and word in result.stderr and not result.stdout,
                f"{name}: exit {code}: {result.stderr.strip()}")
    nowhere = plim.run("generate", "--device", "cpu", folder, "-p", "x")
    plim.ok(nowhere.returncode == 2 and nowhere.stderr.count("\n") == 1, f"no model there: {nowhere.stderr.strip()}")
    shutil.copytree(f"{folder}/bf16", f"{folder}/cut")
    size = os.path.getsize(f"{folder}/cut/model.safetensors")
    os.truncate(f"{folder}/cut/model.safetensors", size - 1000)
    cut = plim.run("generate", "--device", "cpu", f"{folder}/cut", "-p", "x")
    plim.ok(cut.returncode == 2 and cut.stderr.count("\n") == 1 and "model.safetensors" in cut.stderr,
            f"a truncated file: {cut.stderr.strip()}")
plim.done()
