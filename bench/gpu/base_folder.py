"""A LLaMA of random numbers in bf16 as a folder, for jobs that begin with one: adapters, quantised bases."""
import array
import json
import os
import random
import struct

BLOCK = 1 << 20  # different numbers; a file repeats them, from another place for each tensor


def shapes(m):
    """Names and shapes of all weights."""
    h, f, d = m["hidden"], m["inter"], m["hidden"] // m["heads"]
    q, k = m["heads"] * d, m["kv"] * d
    yield "model.embed_tokens.weight", [m["vocab"], h]
    for i in range(m["layers"]):
        for name, shape in (("self_attn.q_proj", [q, h]), ("self_attn.k_proj", [k, h]), ("self_attn.v_proj", [k, h]), ("self_attn.o_proj", [h, q]),
                            ("mlp.gate_proj", [f, h]), ("mlp.up_proj", [f, h]), ("mlp.down_proj", [h, f]), ("input_layernorm", [h]),
                            ("post_attention_layernorm", [h])):
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", [h]
    if not m["tie"]: yield "lm_head.weight", [m["vocab"], h]


def config(m, time):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": m["vocab"], "hidden_size": m["hidden"],
            "intermediate_size": m["inter"], "num_hidden_layers": m["layers"], "num_attention_heads": m["heads"],
            "num_key_value_heads": m["kv"], "max_position_embeddings": max(time, 8192), "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "tie_word_embeddings": m["tie"], "torch_dtype": "bfloat16"}


def noise():
    """bf16 numbers with a deviation of 0.02, as bytes."""
    draw = random.Random(1)
    raw = array.array("f", (draw.gauss(0, 0.02) for _ in range(BLOCK))).tobytes()
    out = bytearray(2 * BLOCK)
    out[0::2], out[1::2] = raw[2::4], raw[3::4]
    return bytes(out)


def write_tensor(f, block, number, bytes_left):
    at = number * 7919 % BLOCK * 2
    while bytes_left > 0:
        piece = block[at:at + bytes_left]
        f.write(piece)
        bytes_left -= len(piece)
        at = 0


def make(folder, m, time, blank):
    """config.json and model.safetensors. blank: zeros, in a file that takes no room on disk."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/config.json", "w") as f: json.dump(config(m, time), f)
    header, at = {}, 0
    for name, shape in shapes(m):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = b"" if blank else noise()
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for number, (name, shape) in enumerate(shapes(m)):
            begin, end = header[name]["data_offsets"]
            if blank: continue
            if len(shape) == 1: f.write(b"\x80\x3f" * shape[0])
            else: write_tensor(f, block, number, end - begin)
        f.truncate(8 + len(text) + at)
    return folder
