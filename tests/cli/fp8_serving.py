#!/usr/bin/env python3
"""fp8 weights for serving: bytes as planned, the tokens of the same numbers in fp32, a folder's own e4m3 bits are kept."""
import array
import json
import os
import random
import struct
import sys
import tempfile

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import llama_folder
import plim
from plim import ok

SIZES = {**llama_folder.SIZES, "hidden_size": 64, "intermediate_size": 160, "tie_word_embeddings": False}


def number(code):
    e, m = code >> 3 & 15, code & 7
    size = (8 + m) * 2.0 ** (e - 10) if e else m * 2.0 ** -9
    return -size if code & 128 else size


def save(folder, config, tensors):
    """tensors: name -> (type, shape, bytes)."""
    os.makedirs(folder)
    with open(f"{folder}/config.json", "w") as f: json.dump(config, f)
    header, at = {}, 0
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values(): f.write(raw)
    return folder


def floats(values):
    return array.array("f", values).tobytes()


def make(folder):
    """The same numbers twice: in fp32, and as e4m3 with a scale for each row. Every row has a number of the largest binade, so that quantising finds the scale again."""
    draw = random.Random(3)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "torch_dtype": "float32", **SIZES}
    wide, narrow = {}, {}
    for name, shape in llama_folder.shapes(SIZES):
        if len(shape) == 1 or "embed" in name or "lm_head" in name:
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            raw = floats([draw.gauss(0, 1) for _ in range(count)] if len(shape) > 1 else [1.0] * count)
            wide[name] = narrow[name] = ("F32", shape, raw)
            continue
        codes, values, scales = bytearray(), [], []
        for _ in range(shape[0]):
            scale = 2.0 ** -draw.choice((10, 11, 12))
            row = [draw.randrange(0x70) | draw.choice((0, 128)) for _ in range(shape[1])]
            row[draw.randrange(shape[1])] = 0x7c  # 384
            codes += bytes(row)
            values += [number(c) * scale for c in row]
            scales.append(scale)
        wide[name] = ("F32", shape, floats(values))
        narrow[name] = ("F8_E4M3", shape, bytes(codes))
        narrow[name + "_scale"] = ("F32", [shape[0], 1], floats(scales))
    kept = {**config, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}}
    return save(f"{folder}/wide", config, wide), save(f"{folder}/narrow", kept, narrow)


def generated(model, *args):
    told = plim.run("generate", model, "-p", "The ship", "-n", 24, "-t", 0, "--json", "--device", "cpu", "--tokenizer", "bytes", *args)
    if not ok(told.returncode == 0, f"{model} {args}: generated {told.stderr.strip()}"): sys.exit(plim.done())
    return json.loads(told.stdout)


def weights(folder):
    wide, narrow = make(folder)
    shapes = [s for _, s in llama_folder.shapes(SIZES)]
    products = [s for s in shapes[1:-1] if len(s) == 2]
    total = sum(r * c + 4 * r for r, c in products) + 4 * (2 * SIZES["vocab_size"] * 64 + sum(s[0] for s in shapes if len(s) == 1))
    exact, made, kept = generated(wide), generated(wide, "--weights", "fp8"), generated(narrow, "--weights", "fp8")
    for name, got in (("quantised on loading", made), ("kept", kept)):
        memory = got["memory"]
        ok(memory["parameter_bytes"] == total, f"{name}: {memory['parameter_bytes']} bytes of parameters, {total} expected")
        ok(memory["ledger_peak"] == memory["planned_total"], f"{name}: planned {memory['planned_total']} = ledger {memory['ledger_peak']}")
        ok(got["tokens"] == exact["tokens"], f"{name}: the tokens of fp32 {got['tokens']} {exact['tokens']}")
    said = json.loads(plim.run("plan", "--serve", narrow, "--json", "--device", "cpu", "--budget", "64MiB", "--max-context", 32, "--weights", "fp8").stdout)["plan"]
    ok(said["parameters"] == total, f"plan --serve says {said['parameters']}")
    return narrow


def refusals(model):
    with open(f"{model}/model.safetensors", "r+b") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        at = json.loads(f.read(size))["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0]
        f.seek(8 + size + at + 70)
        f.write(b"\xff")
    told = plim.run("generate", model, "-p", "a", "-n", 1, "--device", "cpu", "--tokenizer", "bytes", "--weights", "fp8")
    ok(told.returncode != 0 and "element 70 of 'model.layers.1.mlp.up_proj.weight' is NaN" in told.stderr, f"a NaN among the codes: {told.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    refusals(weights(folder))
sys.exit(plim.done())
