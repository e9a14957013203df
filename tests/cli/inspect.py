#!/usr/bin/env python3
"""plimsoll inspect: safetensors, token files, tokenizers and checkpoints, for people and as JSON."""
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

TOKENIZER = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
             "added_tokens": [{"id": 4, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
             "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                       "fuse_unk": False, "byte_fallback": False, "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3}, "merges": ["a b"]}}


def inspect(*args):
    result = plim.run("inspect", "--json", *args)
    return (json.loads(result.stdout) if result.returncode == 0 else None), result


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder)
    plim.run("train", path, "-q", "--steps", 2)
    plim.run("tokenize", f"{folder}/corpus.txt", "-o", f"{folder}/corpus.tok", "-q")
    json.dump(TOKENIZER, open(f"{folder}/tokenizer.json", "w"))
    checkpoint = f"{folder}/run/checkpoint-00000002"
    weights = f"{checkpoint}/model.safetensors"

    found, result = inspect(weights, f"{folder}/corpus.tok", checkpoint, f"{folder}/tokenizer.json", "--tensors")
    if plim.ok(found and len(found) == 4, f"four kinds at once {result.stderr.strip()}"):
        tensors, tokens, run, tokenizer = found
        with open(weights, "rb") as f: header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        header.pop("__metadata__", None)
        plim.ok(tensors["kind"] == "safetensors" and tensors["tensors"] == len(header), "every tensor is counted")
        plim.ok({t["name"]: t["shape"] for t in tensors["list"]} == {n: t["shape"] for n, t in header.items()}, "names and shapes are the file's")
        plim.ok(len(tensors["checksum"]) == 16, "a checksum")
        size = os.path.getsize(f"{folder}/corpus.txt")
        plim.ok((tokens["kind"], tokens["tokens"], tokens["samples"], tokens["vocabulary"], tokens["type"]) == ("token file", size, 1, 256, "u16"), "a token file's counts")
        plim.ok(run["kind"] == "checkpoint" and run["step"] == 2 and run["loader"]["rows"] == 16, "a checkpoint's step and data position")
        plim.ok(run["parameters"]["checksum"] == tensors["checksum"] and run["state"]["tensors"] > 0, "its weights and moments")
        plim.ok((tokenizer["kind"], tokenizer["vocabulary"], tokenizer["eos"], tokenizer["special"]) == ("tokenizer", 5, 4, 1), "a tokenizer's vocabulary and end token")
    before = found[0]["checksum"] if found else ""
    data = bytearray(open(weights, "rb").read())
    data[-1] ^= 1
    open(weights, "wb").write(data)
    again, _ = inspect(weights)
    plim.ok(again and again[0]["checksum"] != before, "another bit, another checksum")

    text = plim.run("inspect", checkpoint)
    plim.ok(text.returncode == 0 and "checkpoint" in text.stdout and "masters and moments" in text.stdout, "for people")
    text = plim.run("inspect", folder + "/run/checkpoint-00000002/model.safetensors", "-t")
    plim.ok("model.norm.weight" in text.stdout and "[64]" in text.stdout, "tensors for people")
    for name, what in [("nothing", f"{folder}/none"), ("a text", f"{folder}/corpus.txt"), ("a folder of text", folder + "/run")]:
        result = plim.run("inspect", what)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and not result.stdout, f"{name}: {result.stderr.strip()}")
    result = plim.run("inspect")
    plim.ok(result.returncode == 2 and "inspect" in result.stderr, f"no file: {result.stderr.strip()}")
plim.done()
