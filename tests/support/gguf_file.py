"""Writing GGUF files for tests, without any package: a Hugging Face folder becomes the file that people have of it."""
import array
import json
import math
import random
import struct

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}


def _text(s):
    data = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(data)) + data


def _scalar(value):
    if isinstance(value, bool): return BOOL, struct.pack("<?", value)
    if isinstance(value, int): return U32, struct.pack("<I", value)
    if isinstance(value, float): return F32, struct.pack("<f", value)
    return STRING, _text(value)


def _value(value):
    if not isinstance(value, list): return struct.pack("<I", _scalar(value)[0]) + _scalar(value)[1]
    kind = _scalar(value[0])[0] if value else U32
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(_scalar(v)[1] for v in value)


def write(path, metadata, tensors, version=3):
    """tensors: {name: (type name, shape with the fastest dimension last, bytes)}."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items(): head += _text(key) + _value(value)
    data = b""
    for name, (kind, shape, payload) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", TYPES[kind], len(data))
        data += payload + b"\0" * (-len(payload) % 32)
    open(path, "wb").write(head + b"\0" * (-len(head) % 32) + data)


def read(path):
    """(metadata of texts and f32, {name: (shape with the fastest dimension last, floats)}) of a file in fp32."""
    raw, at = open(path, "rb").read(), 24
    count, pairs = struct.unpack("<QQ", raw[8:24])

    def take(form):
        nonlocal at
        out = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return out[0] if len(out) == 1 else out

    def text(): return take(f"{take('Q')}s").decode()

    metadata, places = {}, {}
    for _ in range(pairs):
        key, kind = text(), take("I")
        metadata[key] = text() if kind == STRING else take("f")
    for _ in range(count):
        name, ndim = text(), take("I")
        shape = [take("Q") for _ in range(ndim)][::-1]
        assert take("I") == TYPES["F32"], name
        places[name] = (shape, take("Q"))
    start = at + -at % 32
    return metadata, {n: (s, struct.unpack_from(f"<{math.prod(s)}f", raw, start + o)) for n, (s, o) in places.items()}


def read_safetensors(path):
    """{name: (shape, array of floats)} of a file in fp32."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__": continue
        first, last = t["data_offsets"]
        assert t["dtype"] == "F32", name
        out[name] = (t["shape"], array.array("f", raw[8 + n + first:8 + n + last]))
    return out


# --- from Hugging Face -------------------------------------------------------------------------------------------------

GPT2 = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output", "ln_1": "attn_norm", "ln_2": "ffn_norm",
        "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
OTHERS = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
          "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
          "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
          "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "pre_feedforward_layernorm": "ffn_norm",
          "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(name, arch):
    stem, end = name.rsplit(".", 1)
    for prefix in ("model.", "transformer."): stem = stem.removeprefix(prefix)
    layer = ""
    if stem.startswith(("layers.", "h.")):
        _, number, stem = stem.split(".", 2)
        layer = f"blk.{number}."
    table = dict(GPT2 if arch == "gpt2" else OTHERS)
    if stem == "post_attention_layernorm":
        table[stem] = "post_attention_norm" if arch in ("gemma2", "gemma3", "olmo2") else "ffn_norm"
    return layer + table[stem] + "." + end


def paired(values, rows, heads):
    """Rows of each head: 0, half, 1, half + 1, ..."""
    width, size = len(values) // rows, rows // heads
    out = array.array("f")
    for h in range(heads):
        for i in range(size):
            row = h * size + (i // 2 if i % 2 == 0 else size // 2 + i // 2)
            out.extend(values[row * width:(row + 1) * width])
    return out


def transposed(values, shape):
    rows, columns = shape
    return array.array("f", (values[r * columns + c] for c in range(columns) for r in range(rows)))


def metadata_of(config, arch):
    get = lambda *keys: next((config[k] for k in keys if config.get(k) is not None), None)
    rope = config.get("rope_parameters") or {}
    if "full_attention" in rope: rope = rope["full_attention"]
    heads, hidden = get("num_attention_heads", "n_head"), get("hidden_size", "n_embd")
    own = {"context_length": get("max_position_embeddings", "n_positions"), "embedding_length": hidden,
           "block_count": get("num_hidden_layers", "n_layer"), "feed_forward_length": get("intermediate_size", "n_inner") or 4 * hidden,
           "attention.head_count": heads, "attention.head_count_kv": get("num_key_value_heads") or heads,
           "attention.key_length": get("head_dim"), "attention.value_length": get("head_dim"),
           "attention.layer_norm_rms_epsilon": get("rms_norm_eps"), "attention.layer_norm_epsilon": get("layer_norm_epsilon"),
           "rope.freq_base": rope.get("rope_theta"), "vocab_size": config["vocab_size"],
           "attention.sliding_window": get("sliding_window") if config["model_type"] not in ("qwen2", "qwen3") else None,
           "attn_logit_softcapping": get("attn_logit_softcapping"), "final_logit_softcapping": get("final_logit_softcapping")}
    if "partial_rotary_factor" in rope: own["rope.dimension_count"] = int(rope["partial_rotary_factor"] * (get("head_dim") or hidden // heads))
    if rope.get("rope_type") in ("linear", "yarn"):
        own["rope.scaling.type"], own["rope.scaling.factor"] = rope["rope_type"], float(rope["factor"])
        own["rope.scaling.original_context_length"] = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") == "longrope": own["rope.scaling.original_context_length"] = get("original_max_position_embeddings")
    meta = {"general.architecture": arch, "general.name": "a test"}
    meta.update({f"{arch}.{k}": v for k, v in own.items() if v is not None})
    eos = config.get("eos_token_id")
    ids = {"bos": config.get("bos_token_id"), "eos": eos[0] if isinstance(eos, list) else eos, "padding": config.get("pad_token_id")}
    meta.update({f"tokenizer.ggml.{k}_token_id": v for k, v in ids.items() if v is not None})
    return meta, rope


def llama3_factors(rope, size):
    import math
    out = []
    low, high = rope["original_max_position_embeddings"] / rope["low_freq_factor"], rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for i in range(0, size, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (i / size)
        if wave < high: out.append(1.0)
        elif wave > low: out.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return out


def from_folder(folder, encode=None):
    """(metadata, tensors) of a folder in fp32; encode(name, shape, floats) gives (type, bytes) of matrices."""
    config = json.load(open(f"{folder}/config.json"))
    arch = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    meta, rope = metadata_of(config, arch)
    tensors = {}
    for name, (shape, values) in read_safetensors(f"{folder}/model.safetensors").items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings", True): continue
        new = gguf_name(name, arch)
        if arch in ("llama", "smollm3") and "q_proj" in name: values = paired(values, shape[0], config["num_attention_heads"])
        if arch in ("llama", "smollm3") and "k_proj" in name: values = paired(values, shape[0], config["num_key_value_heads"])
        if arch.startswith("gemma") and "norm" in new: values = array.array("f", (v + 1 for v in values))
        if arch == "gpt2" and len(shape) == 2 and new.startswith("blk."): values, shape = transposed(values, shape), shape[::-1]
        kind, payload = encode(new, shape, values) if encode and len(shape) == 2 else ("F32", values.tobytes())
        tensors[new] = (kind, shape, payload)
    size = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    if rope.get("rope_type") == "llama3":
        factors = llama3_factors(rope, size)
        tensors["rope_freqs.weight"] = ("F32", [len(factors)], array.array("f", factors).tobytes())
    if rope.get("rope_type") == "longrope":
        for which in ("long", "short"):
            factors = array.array("f", rope[f"{which}_factor"])
            tensors[f"rope_factors_{which}.weight"] = ("F32", [len(factors)], factors.tobytes())
    return meta, tensors


# --- weights that mean nothing ----------------------------------------------------------------------------------------------

BLOCKS = {"F32": (1, 4), "Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}  # elements and bytes
SCALES = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
HIDDEN, INNER, LAYERS, VOCAB = 256, 512, 2, 256


def random_blocks(kind, rows, columns, numbers):
    """Random blocks whose elements are about 1/16."""
    if kind == "F32": return array.array("f", [1.0] * (rows * columns)).tobytes()
    elements, size = BLOCKS[kind]
    scale = struct.pack("<e", {"Q8_0": 0.0008, "Q4_0": 0.012, "Q4_K": 0.0002, "Q5_K": 0.0001, "Q6_K": 0.00005}[kind])
    out = bytearray(numbers.randbytes(rows * columns // elements * size))
    for at in range(0, len(out), size):
        for place in SCALES[kind]: out[at + place:at + place + 2] = scale
    return bytes(out)


def random_llama(kinds):
    """(metadata, tensors) of a LLaMA whose matrices have those types in turn."""
    numbers = random.Random(1)
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
        tensors[name + ".weight"] = (kind, list(shape), random_blocks(kind, shape[0], shape[1] if len(shape) == 2 else 1, numbers))
    return meta, tensors
