#!/usr/bin/env python3
"""plimsoll serve with files that lie: weights cut off, misshapen or beyond their file, a GGUF that says what it does not have: one line that names
the file, an exit code, and nobody is served. A chat template that does not compile costs chats alone."""
# run-tests: timeout=300
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import json
import shutil
import struct
import tempfile

import gguf_file
import plim
from plim import ok
import server

server.need_http()
SIZES = dict(num_hidden_layers=1, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, vocab_size=256, max_position_embeddings=64)


def refused(what, model, *words):
    told = plim.run("serve", model, "-q", "--port", 0, "--device", "cpu", "--tokenizer", "bytes")
    lines = [l for l in told.stderr.splitlines() if l.startswith("plimsoll: ")]
    ok(told.returncode in (2, 3) and len(lines) == 1 and all(w in lines[0] for w in words), f"{what}: exit {told.returncode} {told.stderr.strip()}")


def read_header(path):
    with open(path, "rb") as f: return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def lie(folder, what, change, *words):
    """A copy of the model, whose header (and then file) was changed."""
    shutil.rmtree(f"{folder}/lie", ignore_errors=True)
    shutil.copytree(f"{folder}/m", f"{folder}/lie")
    path = f"{folder}/lie/model.safetensors"
    header, size = read_header(path), os.path.getsize(path)
    body = size - 8 - len(json.dumps(header))
    change(header)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + body)
    refused(what, f"{folder}/lie", *(words or ["model.safetensors"]))


def safetensors(folder):
    server.blank_model(f"{folder}/m", **SIZES)
    norm, gate = "model.norm.weight", "model.layers.0.mlp.gate_proj.weight"
    lie(folder, "a tensor beyond the file's end", lambda h: h[norm].update(data_offsets=[1 << 40, (1 << 40) + 128]))
    lie(folder, "bytes that are not the shape's", lambda h: h[norm].update(shape=[31]))
    lie(folder, "another shape", lambda h: h[gate].update(shape=[32, 48]), "gate_proj")
    lie(folder, "a tensor is missing", lambda h: h.update({"model.other.weight": h.pop(gate)}), "gate_proj")
    lie(folder, "a type that is none", lambda h: h[norm].update(dtype="F33"))
    shutil.copytree(f"{folder}/m", f"{folder}/cut")
    os.truncate(f"{folder}/cut/model.safetensors", os.path.getsize(f"{folder}/m/model.safetensors") - 5)
    refused("a file that was cut off", f"{folder}/cut", "model.safetensors")
    with open(f"{folder}/cut/model.safetensors", "r+b") as f: f.write(struct.pack("<Q", 1 << 60))
    refused("a header longer than the file", f"{folder}/cut", "model.safetensors")
    config = json.load(open(f"{folder}/m/config.json"))
    with open(f"{folder}/cut/config.json", "w") as f: json.dump(dict(config, num_attention_heads=5), f)
    refused("a configuration that disagrees", f"{folder}/cut", "config.json")


def gguf(folder):
    meta, tensors = gguf_file.from_folder(f"{folder}/m")
    for what, word, m, t in (("an unknown architecture", "mamba", {**meta, "general.architecture": "mamba"}, tensors), ("more layers than there are", "missing", {**meta, "llama.block_count": 9}, tensors),
                             ("a tensor is missing", "missing", meta, {k: v for k, v in tensors.items() if k != "blk.0.ffn_up.weight"})):
        gguf_file.write(f"{folder}/lie.gguf", m, t)
        refused(what, f"{folder}/lie.gguf", "lie.gguf", word)
    gguf_file.write(f"{folder}/lie.gguf", meta, tensors)
    os.truncate(f"{folder}/lie.gguf", os.path.getsize(f"{folder}/lie.gguf") // 2)
    refused("a GGUF that was cut off", f"{folder}/lie.gguf", "lie.gguf")


def template(folder):
    with open(f"{folder}/m/tokenizer_config.json", "w") as f: json.dump({"chat_template": "{% if messages %}{{ broken"}, f)
    with server.Server(f"{folder}/m", program=plim.PLIMSOLL) as s:
        code, r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        ok(code == 501 and r["error"]["code"] == "no_chat_template" and folder not in r["error"]["message"], f"a template that does not compile: {r['error']['message']}")
        ok(s.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200, "completions work")
        s.stop()
        ok("chat is not available, only completions" in s.log(), "the log says so at the start")
    with open(f"{folder}/bad.jinja", "w") as f: f.write("{% endfor %}")
    told = plim.run("serve", f"{folder}/m", "-q", "--port", 0, "--device", "cpu", "--chat-template", f"{folder}/bad.jinja")
    ok(told.returncode == 2 and "bad.jinja" in told.stderr.splitlines()[-1], f"one that was asked for ends it: {told.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    safetensors(folder)
    gguf(folder)
    template(folder)
plim.done()
