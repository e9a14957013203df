#!/usr/bin/env python3
"""GGUF files run as they are: the model, its weights and its tokenizer are those of the folder that a file was made of."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gguf_file
import plim

GOLDEN = os.path.join(plim.SRC_DIR, "tests", "golden")
MODELS = ("llama-tied", "llama-untied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "smollm3", "gpt2")


def tokens(model, *args):
    result = plim.run("generate", model, "-p", "Hail", "-n", 12, "-t", 1.5, "--seed", 5, "--json", "-q", "--device", "cpu", *args)
    return json.loads(result.stdout)["tokens"] if result.returncode == 0 else result.stderr.strip()


def ids_prompt(folder):
    """A tokenizer of one-letter tokens: the golden models' vocabularies are too small for bytes."""
    vocab = {chr(65 + i) if i < 60 else chr(0x3b1 + i): i for i in range(104)}
    json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
               "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}},
              open(f"{folder}/tokenizer.json", "w"))
    return f"{folder}/tokenizer.json"


def worst(a, b):
    return max((abs(x - y) for x, y in zip(a, b)), default=0)


def sources(folder, name):
    """The golden folder without what GGUF has no keys for: other patterns of layers and other scales."""
    config = json.load(open(f"{GOLDEN}/{name}/config.json"))
    for key in ("no_rope_layers", "no_rope_layer_interval") + (("layer_types",) if name != "mistral" else ()): config.pop(key, None)
    if name in ("qwen2", "qwen3", "smollm3"): config["use_sliding_window"], config["sliding_window"] = False, None
    if name.startswith("gemma"): config["query_pre_attn_scalar"] = config["head_dim"]
    if name == "gemma3": config["rope_parameters"]["sliding_attention"]["rope_theta"] = 10000.0
    os.mkdir(f"{folder}/{name}-source")
    json.dump(config, open(f"{folder}/{name}-source/config.json", "w"))
    shutil.copy(f"{GOLDEN}/{name}/model.safetensors", f"{folder}/{name}-source")
    return f"{folder}/{name}-source"


with tempfile.TemporaryDirectory() as folder:
    tokenizer = ids_prompt(folder)
    for name in MODELS:
        source, path, out = sources(folder, name), f"{folder}/{name}.gguf", f"{folder}/{name}"
        gguf_file.write(path, *gguf_file.from_folder(source))
        result = plim.run("export", path, "-o", out, "-q")
        if not plim.ok(result.returncode == 0, f"{name}: exported {result.stderr.strip()}"): continue
        want, have = (gguf_file.read_safetensors(f"{f}/model.safetensors") for f in (source, out))
        want = {k: v for k, v in want.items() if k in have or k != "lm_head.weight"}
        plim.ok(set(want) == set(have), f"{name}: names {set(want) ^ set(have)}")
        gap = max(worst(want[k][1], have[k][1]) for k in want if k in have)
        plim.ok(gap <= (3e-7 if name.startswith("gemma") else 0) and all(want[k][0] == have[k][0] for k in want if k in have), f"{name}: every number is the folder's, largest difference {gap}")
        a, b = tokens(source, "--tokenizer", tokenizer), tokens(path, "--tokenizer", tokenizer)
        plim.ok(isinstance(a, list) and a == b, f"{name}: the same text {a} {b}")
        plim.ok(a == tokens(out, "--tokenizer", tokenizer), f"{name}: and from what was exported")
    found = plim.run("inspect", f"{folder}/qwen3.gguf", "--json", "--tensors")
    plim.ok(found.returncode == 0 and json.loads(found.stdout)[0]["architecture"] == "qwen3", f"inspect {found.stderr.strip()}")

    # Training from a file is training from the folder.
    job = plim.job(folder)
    plim.run("train", job, "-q", "--steps", 1)
    plim.run("export", f"{folder}/run", "-o", f"{folder}/hf", "--dtype", "f32", "-q")
    gguf_file.write(f"{folder}/hf.gguf", *gguf_file.from_folder(f"{folder}/hf"))
    lines = open(job).read().split("data:\n")[1]
    losses = {}
    for model in ("hf", "hf.gguf"):
        open(job, "w").write(f"model:\n  path: {folder}/{model}\ndata:\n{lines}")
        losses[model] = plim.losses(plim.run("train", job, "-q", "--overwrite", "--steps", 2).stdout)
    plim.ok(losses["hf"] and losses["hf"] == losses["hf.gguf"], f"trained from a folder and from a file: {losses}")

    # Files that lie: one line each.
    meta, tensors = gguf_file.from_folder(f"{GOLDEN}/llama-untied")
    shape = tensors["blk.0.attn_q.weight"]

    def lie(what, word, m=meta, t=tensors):
        gguf_file.write(f"{folder}/lie.gguf", m, t)
        result = plim.run("generate", f"{folder}/lie.gguf", "-p", "Ab", "-n", 2, "--tokenizer", tokenizer, "--device", "cpu")
        line = result.stderr.strip()
        plim.ok(result.returncode == 2 and "\n" not in line and word in line and "lie.gguf" in line, f"{what}: {line}")

    lie("no architecture", "general.architecture", {k: v for k, v in meta.items() if k != "general.architecture"})
    lie("an unknown one", "mamba", {**meta, "general.architecture": "mamba"})
    lie("a key is missing", "llama.block_count", {k: v for k, v in meta.items() if k != "llama.block_count"})
    lie("more layers than there are", "missing", {**meta, "llama.block_count": 9})
    lie("heads that do not divide", "q_proj", {**meta, "llama.attention.key_length": 32, "llama.attention.value_length": 32})
    lie("a vocabulary that disagrees", "vocab_size", {**meta, "llama.vocab_size": 7})
    lie("more tokens than rows", "tokenizer.ggml.tokens", {**meta, "tokenizer.ggml.tokens": ["a"] * 1000})
    lie("a tensor is missing", "missing", meta, {k: v for k, v in tensors.items() if k != "blk.1.ffn_up.weight"})
    lie("a shape that is wrong", "q_proj", meta, {**tensors, "blk.0.attn_q.weight": (shape[0], [shape[1][0] * 2, shape[1][1] // 2], shape[2])})
    lie("experts", "expert_count", {**meta, "llama.expert_count": 8})
    lie("another rotary scaling", "rope.scaling.type", {**meta, "llama.rope.scaling.type": "su", "llama.rope.scaling.factor": 2.0})
plim.done()
