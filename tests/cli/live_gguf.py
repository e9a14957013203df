#!/usr/bin/env python3
"""A random LLaMA in every block type of GGUF: our loss is that of transformers on the weights that the gguf package makes of it.

Skips itself where torch or the gguf package is not installed (with_torch.py)."""
import json
import math
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import gguf_file
import plim

try:
    import gguf
    import numpy as np
except ImportError:
    print("the gguf package is not installed")
    sys.exit(77)
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ROWS, TIME = 4, 64
PLAIN = ("F32", "F16", "BF16")


def random_blocks(kind, shape, rng):
    """Bytes of a type that the package reads and does not write: random ones with small scales."""
    type_ = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[type_]
    blocks = rng.integers(0, 256, (math.prod(shape) // elements, size), dtype=np.uint8)
    scale = np.array([0.0002], np.float16).view(np.uint8)
    for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]: blocks[:, at:at + 2] = scale
    return blocks.reshape(shape[0], -1)


def encoder(kind, dequantised, rng):
    """encode() of gguf_file.from_folder, which keeps what the package makes of the bytes."""
    def encode(name, shape, values):
        if kind == "F32": return kind, values.tobytes()
        type_ = gguf.GGMLQuantizationType[kind]
        floats = np.frombuffer(values, np.float32).reshape(shape)
        data = random_blocks(kind, shape, rng) if kind.endswith("_K") else gguf.quants.quantize(floats, type_)
        dequantised[name] = gguf.quants.dequantize(data, type_).astype(np.float32).reshape(shape)
        return kind, data.tobytes()
    return encode


def unpaired(values, heads):
    rows = values.shape[0]
    return values.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)


def put_back(model, dequantised, config):
    state = model.state_dict()
    for name in state:
        values = dequantised.get(gguf_file.gguf_name(name, "llama"))
        if values is None: continue
        if "q_proj" in name: values = unpaired(values, config.num_attention_heads)
        if "k_proj" in name: values = unpaired(values, config.num_key_value_heads)
        state[name] = torch.tensor(values.copy())
    model.load_state_dict(state)
    return model


def loss_of(model, text):
    rows = torch.tensor([list(text[r * TIME:r * TIME + TIME + 1]) for r in range(ROWS)])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits.double()
        made = model.generate(rows[:1, :20], max_new_tokens=16, do_sample=False, pad_token_id=0, eos_token_id=None)[0, 20:].tolist()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item(), made


def tokens_of(model, text):
    result = plim.run("generate", "--device", "cpu", model, "-p", text[:20].decode(), "-n", 16, "-t", 0, "-q", "--json", "--tokenizer", "bytes")
    return json.loads(result.stdout)["tokens"] if result.returncode == 0 else []


torch.manual_seed(3)
config = LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
                     max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.08, bos_token_id=None, eos_token_id=None)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(f"{folder}/source")
    job, text = plim.job(folder), plim.CORPUS.encode()
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"):
        dequantised, path = {}, f"{folder}/{kind}.gguf"
        gguf_file.write(path, *gguf_file.from_folder(f"{folder}/source", encoder(kind, dequantised, np.random.default_rng(7))))
        model = AutoModelForCausalLM.from_pretrained(f"{folder}/source", dtype=torch.float32, attn_implementation="eager").eval()
        theirs, made = loss_of(put_back(model, dequantised, config), text)
        result = plim.run("eval", job, "--json", "-q", "--rows", ROWS, "--model", path, "--set", "training.mixed_precision=fp32")
        ours = json.loads(result.stdout)["loss"] if result.returncode == 0 else float("nan")
        plim.ok(abs(ours - theirs) < 1e-5 * theirs, f"{kind}: loss {ours:.7f}, transformers says {theirs:.7f} {result.stderr.strip()}")
        # What transformers computes on the exported folder: every number is the package's, so every logit is.
        out = f"{folder}/{kind}"
        plim.run("export", path, "-o", out, "--dtype", "f32", "-q")
        again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
        rows = torch.tensor([list(text[:TIME])])
        with torch.no_grad(): gap = (again(rows).logits - model(rows).logits).abs().max().item()
        plim.ok(gap <= 1e-4, f"{kind}: logits of the exported weights differ by {gap:.1e}")
        if kind not in PLAIN: continue
        plim.run("export", f"{folder}/source", "-o", f"{folder}/folder-{kind}", "--dtype", kind.lower(), "-q")
        mine, same = (tokens_of(which, text) for which in (path, f"{folder}/folder-{kind}"))
        plim.ok(mine and mine == same, f"{kind}: the likeliest text is the folder's {mine}")
        if kind == "F32": plim.ok(mine == made, "and that of transformers")
plim.done()
