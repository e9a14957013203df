#!/usr/bin/env python3
"""Quantised Hugging Face folders: served, evaluated, exported and trained from; bytes as planned; what is wrong with one is said in a line."""
import json
import os
import re
import shutil
import struct
import sys
import tempfile

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import plim
from plim import ok

GOLDEN = os.path.join(os.environ.get("SRC_DIR", "."), "tests", "golden", "quantised")
WIDENED = {"int8": "bitsandbytes", "awq": "awq", "gptq": "gptq", "gptq-act": "gptq", "fp8": "fp8", "ct-pack": "compressed-tensors", "ct-nvfp4": "compressed-tensors"}
LINEAR, REST = 36864, 256 * 64 + 3 * 64  # elements of the layer's matrices and of the others


def generate(model, *args):
    return plim.run("generate", model, "-p", "The ship", "-n", 4, "-t", 0, "--json", "--device", "cpu", "--tokenizer", "bytes", *args)


def planned(model, *args):
    return json.loads(plim.run("plan", "--serve", model, "--json", "--device", "cpu", "--budget", "64MiB", "--max-context", 32, *args).stdout)["plan"]


def job(folder, model, **keys):
    made = ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")
    return plim.job(folder, model__path=model, **{f"model__{k}": None for k in made}, **keys)


def evaluated(folder, model):
    told = plim.run("eval", job(folder, model), "--json", "-q")
    return json.loads(told.stdout)["loss"] if told.returncode == 0 else told.stderr


def works(folder):
    for name in ("nf4", "nf4-double", "fp4", *WIDENED):
        model = f"{GOLDEN}/{name}"
        told = generate(model)
        if not ok(told.returncode == 0, f"{name}: generated {told.stderr.strip()}"): continue
        memory = json.loads(told.stdout)["memory"]
        ok(memory["ledger_peak"] == memory["planned_total"] and memory["parameter_bytes"] == planned(model)["parameters"], f"{name}: {memory['parameter_bytes']} bytes of parameters, as planned")
        lines = [line for line in told.stderr.splitlines() if "widened" in line]
        said = len(lines) == 1 and WIDENED.get(name, "?") in lines[0] and re.search(r"7 of 11.*72.0 KiB instead of", lines[0])
        ok(bool(said) == (name in WIDENED), f"{name}: {lines}")
        if name in ("nf4", "fp4"): ok(memory["parameter_bytes"] == LINEAR // 64 * 36 + 2 * REST, f"{name}: kept in its bits")
    smaller = json.loads(generate(f"{GOLDEN}/awq", "--weights", "q4").stdout)["memory"]["parameter_bytes"]
    ok(smaller == LINEAR // 32 * 18 + 256 * 64 // 32 * 34 + 2 * 3 * 64, f"what is widened may be quantised again: {smaller}")


def other_commands(folder):
    for name in ("nf4", "gptq-act", "ct-nvfp4"):
        told = plim.run("export", f"{GOLDEN}/{name}", "-o", f"{folder}/{name}", "--dtype", "f32", "-q")
        ok(told.returncode == 0 and not json.load(open(f"{folder}/{name}/config.json")).get("quantization_config"), f"{name}: exported {told.stderr.strip()}")
        loss = evaluated(folder, f"{GOLDEN}/{name}")
        ok(isinstance(loss, float) and loss == evaluated(folder, f"{folder}/{name}"), f"{name}: eval has the exported folder's loss, {loss}")
    told = plim.run("train", job(folder, f"{GOLDEN}/awq", training__steps=2))
    ok(told.returncode == 0 and "widened" in told.stderr + told.stdout, f"trained from: {told.stderr.strip()[-300:]}")


def frozen_base(folder):
    """An adapter on blocks has the losses of one on the numbers that they stand for, also resumed and with the base on disk."""
    def losses(model, *args, steps=4):
        told = plim.run("train", job(folder, model, adapter__type="lora", adapter__r=4, training__steps=steps), "--overwrite", *args)
        return [e["loss"] for e in plim.events(told.stdout) if e["event"] == "step"] or told.stderr
    nf4, numbers = f"{GOLDEN}/nf4", f"{folder}/nf4"
    want = losses(numbers)
    ok(len(want) == 4 and losses(nf4) == want, f"NF4 folder: {want}")
    ok(losses(numbers, "--set", "model.weights=nf4") == want and losses(numbers, "--base", "nf4") == want, "numbers become NF4 on loading")
    ok(losses(nf4, "--set", "training.param_tier=disk") == want, "read from disk for each step")
    ok(losses(nf4, "--set", "training.recompute=full") == want, "with recomputation")
    for kind in ("q8", "q4", "fp4"): ok(len(losses(numbers, "--set", f"model.weights={kind}")) == 4, f"{kind}")
    for kind in ("rslora", "dora"): ok(len(losses(nf4, "--set", f"adapter.type={kind}")) == 4, f"{kind}")
    first = losses(nf4, steps=2)
    path = job(folder, nf4, adapter__type="lora", adapter__r=4, training__steps=4)
    told = plim.run("train", path, "--resume")
    ok(first + [e["loss"] for e in plim.events(told.stdout) if e["event"] == "step"] == want, f"resumed {told.stderr.strip()}")
    used = generate(f"{folder}/run")
    ok(used.returncode == 0 and "widened" in used.stderr, f"the adapter is merged into the base's numbers {used.stderr.strip()}")
    given = generate(nf4, "--adapter", f"{folder}/run/checkpoint-00000004")
    ok(given.returncode == 0 and json.loads(given.stdout)["tokens"] == json.loads(used.stdout)["tokens"], f"--adapter gives the same {given.stderr.strip()}")
    merged = plim.run("export", f"{folder}/run", "-o", f"{folder}/merged", "--merge", "--dtype", "f32", "-q")
    loss = evaluated(folder, f"{folder}/merged")
    ok(merged.returncode == 0 and isinstance(loss, float) and loss == evaluated(folder, f"{folder}/run/checkpoint-00000004"), f"export --merge has its loss, {loss} {merged.stderr.strip()}")
    scored = plim.run("eval", job(folder, numbers, adapter__type="lora", adapter__r=4, model__weights="nf4"), "--json", "-q")
    ok(scored.returncode == 0, f"eval of an adapter on a base in blocks {scored.stderr.strip()}")
    other = plim.run("train", path, "--resume", "--set", "model.weights=fp4", "--steps", 6)
    ok(other.returncode != 0 and "model.weights" in other.stderr, f"resumed on another base: {other.stderr.strip()}")
    def parameters(model): return json.loads(plim.run("plan", job(folder, model, adapter__type="lora", adapter__r=4), "--json").stdout)["by_class"]["param"]
    ok(parameters(numbers) - parameters(nf4) == LINEAR * 4 - LINEAR // 64 * 36, "the plan has the base in its blocks")
    told = plim.run("train", job(folder, nf4, model__weights="q4"))
    ok(told.returncode != 0 and told.stderr.count("\n") == 1 and "adapter.type" in told.stderr, f"a model that is trained: {told.stderr.strip()}")


# --- what is wrong with a folder --------------------------------------------------------------------------------------------

def read(folder):
    with open(f"{folder}/model.safetensors", "rb") as f: data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), bytearray(data[8 + size:])


def spoilt(folder, name, change):
    """A copy of a golden folder; change(header, data, config) alters it."""
    copy = f"{folder}/spoilt"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(f"{GOLDEN}/{name}", copy)
    header, data = read(copy)
    with open(f"{copy}/config.json") as f: config = json.load(f)
    change(header, data, config)
    text = json.dumps(header).encode()
    with open(f"{copy}/model.safetensors", "wb") as f: f.write(struct.pack("<Q", len(text)) + text + data)
    with open(f"{copy}/config.json", "w") as f: json.dump(config, f)
    return copy


def reshaped(tensor, shape):
    def change(header, data, config): header[tensor]["shape"] = shape
    return change


def renamed(tensor):
    def change(header, data, config): header["unused"] = header.pop(tensor)
    return change


def filled(tensor, number):
    def change(header, data, config):
        at = header[tensor]["data_offsets"][0]
        data[at:at + len(number)] = number
    return change


def said(**keys):
    def change(header, data, config): config["quantization_config"] |= keys
    return change


def refused(folder):
    q = "model.layers.0.self_attn.q_proj"
    cases = [("awq", reshaped(f"{q}.scales", [64, 2]), ["q_proj.scales", "[64,2]", "[2,64]"]),
             ("gptq", reshaped(f"{q}.qzeros", [8, 2]), ["q_proj.qzeros", "[8,2]", "[2,8]"]),
             ("gptq", filled(f"{q}.g_idx", struct.pack("<i", 7)), ["q_proj.g_idx", "group 7 of 2"]),
             ("fp8", reshaped(f"{q}.weight_scale_inv", [1, 4]), ["q_proj.weight_scale_inv", "[1,4]", "[2,2]"]),
             ("ct-pack", reshaped(f"{q}.weight_scale", [2, 64]), ["q_proj.weight_scale", "[2,64]"]),
             ("ct-nvfp4", reshaped(f"{q}.weight_scale", [128, 2]), ["q_proj.weight_scale", "[128,2]", "[64,4]"]),
             ("nf4", reshaped(f"{q}.weight.absmax", [8, 8]), None),
             ("awq", filled(f"{q}.scales", struct.pack("<H", 0x7E00)), ["q_proj.scales", "scale 0", "NaN"]),
             ("nf4", filled(f"{q}.weight.absmax", struct.pack("<f", float("nan"))), ["q_proj.weight", "NaN"]),
             ("fp8", filled(f"{q}.weight_scale_inv", struct.pack("<f", float("inf"))), ["q_proj.weight_scale_inv", "infinite"]),
             ("nf4-double", filled(f"{q}.weight.nested_absmax", struct.pack("<f", float("nan"))), ["q_proj.weight.nested_absmax", "NaN"]),
             ("awq", renamed(f"{q}.qzeros"), ["'model.layers.0.self_attn.q_proj.qzeros' is missing"]),
             ("fp8", renamed(f"{q}.weight_scale_inv"), ["q_proj.weight_scale_inv' is missing"]),
             ("nf4", renamed(f"{q}.weight.absmax"), ["q_proj.weight.absmax' is missing"]),
             ("gptq", renamed(f"{q}.qweight"), ["q_proj.weight' missing"]),
             ("awq", said(quant_method="hqq"), ["'hqq' is not read", "bitsandbytes, awq"]),
             ("awq", said(version="gemv"), ["'gemv' is not read"]),
             ("gptq", said(bits=5), ["bits", "5 is not read"]),
             ("gptq", said(checkpoint_format="marlin"), ["'marlin' is not read"]),
             ("ct-pack", said(format="marlin-24"), ["'marlin-24' is not read"]),
             ("ct-pack", said(sparsity_config={"format": "sparse-24-bitmask"}), ["sparsity_config", "not read"])]
    for name, change, words in cases:
        told = generate(spoilt(folder, name, change), "-q")
        line = told.stderr.strip()
        if words is None: ok(told.returncode == 0, f"{name}: another shape of as many magnitudes is read {line}")
        else: ok(told.returncode != 0 and "\n" not in line and all(w in line for w in words), f"{name} refused: {line}")


with tempfile.TemporaryDirectory() as folder:
    works(folder)
    other_commands(folder)
    frozen_base(folder)
    refused(folder)
plim.done()
