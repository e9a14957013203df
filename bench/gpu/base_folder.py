"""A LLaMA of random numbers in bf16, or of zeros in NF4 as bitsandbytes has it, as a folder for jobs that begin with one: adapters, quantised bases."""
import array
import json
import math
import os
import random
import struct

NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495,
       0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0)
NF4_BLOCK = 64
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


def config(m, time, nf4):
    quantised = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                                         "bnb_4bit_use_double_quant": False, "bnb_4bit_compute_dtype": "bfloat16"}}
    return {**(quantised if nf4 else {}), "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": m["vocab"], "hidden_size": m["hidden"],
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


def tensors(m, nf4):
    """(name, element type, shape, contents) of all tensors in the file; contents None: noise, or zeros."""
    for name, shape in shapes(m):
        if len(shape) == 1: yield name, "BF16", shape, b"\x80\x3f" * shape[0]
        elif nf4 and name.startswith("model.layers."):
            count = shape[0] * shape[1]
            state = json.dumps({"quant_type": "nf4", "blocksize": NF4_BLOCK, "dtype": "bfloat16", "shape": shape}).encode()
            yield name, "U8", [count // 2, 1], None
            yield name + ".absmax", "F32", [count // NF4_BLOCK], None
            yield name + ".quant_map", "F32", [len(NF4)], struct.pack(f"<{len(NF4)}f", *NF4)
            yield name + ".quant_state.bitsandbytes__nf4", "U8", [len(state)], state
        else: yield name, "BF16", shape, None


def make(folder, m, time, blank, nf4=False):
    """config.json and model.safetensors. blank: zeros, in a file that takes no room on disk; so is nf4, whose layers have 4 bits."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/config.json", "w") as f: json.dump(config(m, time, nf4), f)
    header, at, held = {}, 0, list(tensors(m, nf4))
    for name, kind, shape, _ in held:
        size = {"BF16": 2, "F32": 4, "U8": 1}[kind] * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    first, block = 8 + len(text), b"" if blank or nf4 else noise()
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for number, (name, _, _, contents) in enumerate(held):
            begin, end = header[name]["data_offsets"]
            if contents is None and not block: continue
            f.seek(first + begin)
            if contents is None: write_tensor(f, block, number, end - begin)
            else: f.write(contents)
        f.truncate(first + at)
    return folder
