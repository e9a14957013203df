"""A LLaMA of chosen sizes with weights that mean nothing, made without training: for tests of bytes, not of words."""
import array
import json
import os
import random
import struct

SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}


def shapes(c):
    """Names and shapes of all weights."""
    h, f, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, k = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", [c["vocab_size"], h]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", [q, h]), ("self_attn.k_proj", [k, h]), ("self_attn.v_proj", [k, h]),
                            ("self_attn.o_proj", [h, q]), ("mlp.gate_proj", [f, h]), ("mlp.up_proj", [f, h]),
                            ("mlp.down_proj", [h, f]), ("input_layernorm", [h]), ("post_attention_layernorm", [h])):
            yield f"{at}{name}.weight", shape
    yield "model.norm.weight", [h]
    if not c.get("tie_word_embeddings", True): yield "lm_head.weight", [c["vocab_size"], h]


def make(folder, bf16=False, **sizes):
    """config.json and model.safetensors in a folder, which is made; returns it."""
    c = {**SIZES, **sizes}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "tie_word_embeddings": True, **c}, f)
    draw = random.Random(7)
    noise = array.array("f", (draw.gauss(0, 0.05) for _ in range(1 << 14)))
    ones = array.array("f", [1.0]) * (1 << 14)
    header, parts, at = {}, [], 0
    for number, (name, shape) in enumerate(shapes(c)):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = ones if len(shape) == 1 else noise
        begin = number * 37 % (1 << 13)
        data = (values[begin:] * (count // (len(values) - begin) + 1))[:count]
        raw = data.tobytes()
        if bf16: raw = bytes(narrow(raw))
        header[name] = {"dtype": "BF16" if bf16 else "F32", "shape": shape, "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for part in parts: f.write(part)
    return folder


def narrow(raw):
    """The upper halves of little-endian floats: bf16 without rounding."""
    out = bytearray(len(raw) // 2)
    out[0::2], out[1::2] = raw[2::4], raw[3::4]
    return out
