#!/usr/bin/env python3
"""--weights: blocks of 8 and 4 bits made at load, GGUF files with several block types multiplied as they are, and files that lie."""
import array
import json
import os
import random
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gguf_file
import plim

BYTES = {"F32": (1, 4), "Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}
SCALES = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
HIDDEN, INNER, LAYERS, VOCAB = 256, 512, 2, 256
numbers = random.Random(1)


def blocks(kind, rows, columns):
    """Random blocks whose elements are about 1/16."""
    if kind == "F32": return array.array("f", [1.0] * (rows * columns)).tobytes()
    elements, size = BYTES[kind]
    scale = struct.pack("<e", {"Q8_0": 0.0008, "Q4_0": 0.012, "Q4_K": 0.0002, "Q5_K": 0.0001, "Q6_K": 0.00005}[kind])
    out = bytearray(numbers.randbytes(rows * columns // elements * size))
    for at in range(0, len(out), size):
        for place in SCALES[kind]: out[at + place:at + place + 2] = scale
    return bytes(out)


def model(kinds):
    """A LLaMA whose matrices have those types in turn, with its metadata."""
    meta = {"general.architecture": "llama", "llama.context_length": 128, "llama.embedding_length": HIDDEN, "llama.block_count": LAYERS,
            "llama.feed_forward_length": INNER, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": VOCAB}
    shapes = {"token_embd": (VOCAB, HIDDEN), "output": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_norm": (HIDDEN,), f"blk.{i}.ffn_norm": (HIDDEN,), f"blk.{i}.attn_q": (HIDDEN, HIDDEN),
                   f"blk.{i}.attn_k": (HIDDEN // 2, HIDDEN), f"blk.{i}.attn_v": (HIDDEN // 2, HIDDEN), f"blk.{i}.attn_output": (HIDDEN, HIDDEN),
                   f"blk.{i}.ffn_gate": (INNER, HIDDEN), f"blk.{i}.ffn_up": (INNER, HIDDEN), f"blk.{i}.ffn_down": (HIDDEN, INNER)}
    tensors, used = {}, 0
    for name, shape in shapes.items():
        kind = "F32" if len(shape) == 1 else kinds[used % len(kinds)]
        used += len(shape) == 2
        tensors[name + ".weight"] = (kind, list(shape), blocks(kind, shape[0], shape[1] if len(shape) == 2 else 1))
    return meta, tensors


def generate(path, *args, env=None):
    return plim.run("generate", path, "-p", "The ship", "-n", 12, "-t", 0, "--json", "-q", "--device", "cpu", "--tokenizer", "bytes", *args, env=env)


def refused(result, *words):
    line = result.stderr.strip()
    plim.ok(result.returncode == 2 and "\n" not in line and all(w in line for w in words), f"refused: {line}")


with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/mixed.gguf"
    meta, tensors = model(["Q6_K", "Q8_0", "Q4_K", "Q5_K", "Q4_0"])
    gguf_file.write(path, meta, tensors)
    found = json.loads(generate(path).stdout)
    in_file = sum(len(t[2]) for t in tensors.values() if t[0] != "F32")
    norms = sum(len(t[2]) // 2 for t in tensors.values() if t[0] == "F32")  # in bf16
    plim.ok(found["memory"]["parameter_bytes"] == in_file + norms, f"blocks are kept: {found['memory']} {in_file} + {norms}")
    plim.ok(found["memory"]["ledger_peak"] == found["memory"]["planned_total"], "the ledger has what was planned")
    for level in ("plain", "avx2", "neon"):
        again = json.loads(generate(path, env={**os.environ, "PLIMSOLL_CPU": level}).stdout)
        plim.ok(len(again["tokens"]) == len(found["tokens"]), f"{level}: {again['tokens']}")
    plim.ok(json.loads(generate(path, "--weights", "q4").stdout)["tokens"] == found["tokens"], "what is in blocks stays as it is")

    # Numbers become blocks while they are read, within the line that was planned.
    plim.run("export", path, "-o", f"{folder}/hf", "--dtype", "bf16", "-q")
    sizes = {}
    for kind in ("as-is", "q8", "q4"):
        result = json.loads(generate(f"{folder}/hf", "--weights", kind).stdout)
        sizes[kind] = result["memory"]["parameter_bytes"]
        plim.ok(result["memory"]["ledger_peak"] == result["memory"]["planned_total"], f"{kind}: the ledger has what was planned")
    rows = sum(t[1][0] * t[1][1] for t in tensors.values() if t[0] != "F32")
    ends = 2 * VOCAB * HIDDEN
    plim.ok(sizes["q8"] == rows * 34 // 32 + norms, f"q8 {sizes} {rows}")
    plim.ok(sizes["q4"] == (rows - ends) * 18 // 32 + ends * 34 // 32 + norms, f"q4 {sizes} {rows}")

    refused(generate(path, "--weights", "q5"), "--weights", "q8")
    refused(plim.run("serve", path, "--weights", "8"), "--weights", "q4")
    spoilt = dict(tensors)
    kind, shape, data = spoilt["blk.1.ffn_up.weight"]
    spoilt["blk.1.ffn_up.weight"] = (kind, shape, data[:BYTES[kind][1]] + struct.pack("<H", 0x7e00) * 105 + data[BYTES[kind][1] + 210:])
    gguf_file.write(f"{folder}/spoilt.gguf", meta, spoilt)
    refused(generate(f"{folder}/spoilt.gguf"), "spoilt.gguf", "up_proj", "not finite")
plim.done()
