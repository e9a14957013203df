#!/usr/bin/env python3
"""--weights: blocks of 8 and 4 bits made at load, GGUF files with several block types multiplied as they are, and files that lie."""
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gguf_file
import plim


def generate(path, *args, env=None):
    return plim.run("generate", path, "-p", "The ship", "-n", 12, "-t", 0, "--json", "-q", "--device", "cpu", "--tokenizer", "bytes", *args, env=env)


def refused(result, *words):
    line = result.stderr.strip()
    plim.ok(result.returncode == 2 and "\n" not in line and all(w in line for w in words), f"refused: {line}")


with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/mixed.gguf"
    meta, tensors = gguf_file.random_llama(["Q6_K", "Q8_0", "Q4_K", "Q5_K", "Q4_0"])
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
    ends = 2 * gguf_file.VOCAB * gguf_file.HIDDEN
    plim.ok(sizes["q8"] == rows * 34 // 32 + norms, f"q8 {sizes} {rows}")
    plim.ok(sizes["q4"] == (rows - ends) * 18 // 32 + ends * 34 // 32 + norms, f"q4 {sizes} {rows}")

    refused(generate(path, "--weights", "q5"), "--weights", "q8")
    refused(plim.run("serve", path, "--weights", "8"), "--weights", "q4")
    spoilt = dict(tensors)
    kind, shape, data = spoilt["blk.1.ffn_up.weight"]
    spoilt["blk.1.ffn_up.weight"] = (kind, shape, data[:gguf_file.BLOCKS[kind][1]] + struct.pack("<H", 0x7e00) * 105 + data[gguf_file.BLOCKS[kind][1] + 210:])
    gguf_file.write(f"{folder}/spoilt.gguf", meta, spoilt)
    refused(generate(f"{folder}/spoilt.gguf"), "spoilt.gguf", "up_proj", "not finite")
plim.done()
