"""GGUF files of LLaMAs of random numbers, in f16, bf16 and quantised blocks: what serve_cpu.py and gpu/serve.py measure with.

q4_k_m has the types of a Q4_K_M file: Q4_K, and Q6_K for the logits and half of the values and down projections. Needs numpy.
"""
import os
import struct

SHAPES = {  # hidden, feed-forward, layers, heads, kv heads, vocabulary, tied
    "tiny": (256, 512, 2, 4, 4, 512, True),
    "276M": (1024, 2816, 16, 16, 16, 34304, False),
    "1.2B": (2048, 8192, 16, 32, 8, 128256, True),
    "8B": (4096, 14336, 32, 32, 8, 128256, False),
}
TYPES = {  # name: number, elements and bytes of a block, where its f16 scales are and which share of 0.02 each has
    "F32": (0, 1, 4, {}), "F16": (1, 1, 2, {}), "BF16": (30, 1, 2, {}),
    "Q8_0": (8, 32, 34, {0: 1 / 73}), "Q4_0": (2, 32, 18, {0: 1 / 4.6}),
    "Q4_K": (12, 256, 144, {0: 1 / 150, 2: 1 / 20}), "Q5_K": (13, 256, 176, {0: 1 / 300, 2: 1 / 20}), "Q6_K": (14, 256, 210, {208: 1 / 1400}),
}
KINDS = {"f16": "F16", "bf16": "BF16", "q8": "Q8_0", "q4": "Q4_0", "q4_k_m": "Q4_K", "q5_k": "Q5_K", "q6_k": "Q6_K"}


def text(s): return struct.pack("<Q", len(s)) + s.encode()


def value(v):
    if isinstance(v, float): return struct.pack("<If", 6, v)
    if isinstance(v, int): return struct.pack("<II", 4, v)
    return struct.pack("<I", 8) + text(v)


def payload(kind, rows, columns, numpy, random):
    n = rows * columns
    if kind == "F32": return numpy.ones(n, numpy.float32).tobytes()
    if kind == "F16": return (random.standard_normal(n, numpy.float32) * 0.02).astype(numpy.float16).tobytes()
    if kind == "BF16":
        return ((random.standard_normal(n, numpy.float32) * 0.02).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    _, each, size, scales = TYPES[kind]
    blocks = random.integers(0, 256, (n // each, size), numpy.uint8)
    for at, share in scales.items():
        blocks[:, at:at + 2] = numpy.full(n // each, 0.02 * share, numpy.float16).view(numpy.uint8).reshape(-1, 2)
    return blocks.tobytes()


def tensors_of(shape, kind):
    hidden, inner, layers, heads, kv, vocab, tied = shape
    size, name, mixed = hidden // heads, KINDS[kind], kind == "q4_k_m"
    logits = "Q6_K" if mixed else name
    out = [("token_embd.weight", logits if tied else name, vocab, hidden), ("output_norm.weight", "F32", 1, hidden)]
    if not tied: out.append(("output.weight", logits, vocab, hidden))
    for i in range(layers):
        b = f"blk.{i}."
        finer = "Q6_K" if mixed and (i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2) else name
        out += [(b + "attn_norm.weight", "F32", 1, hidden), (b + "ffn_norm.weight", "F32", 1, hidden),
                (b + "attn_q.weight", name, hidden, hidden), (b + "attn_k.weight", name, kv * size, hidden),
                (b + "attn_v.weight", finer, kv * size, hidden), (b + "attn_output.weight", name, hidden, hidden),
                (b + "ffn_gate.weight", name, inner, hidden), (b + "ffn_up.weight", name, inner, hidden),
                (b + "ffn_down.weight", finer, hidden, inner)]
    return out


def make(path, shape, kind):
    import numpy
    hidden, inner, layers, heads, kv, vocab, tied = shape
    random = numpy.random.default_rng(1)
    meta = {"general.architecture": "llama", "general.name": "random", "llama.context_length": 4096, "llama.embedding_length": hidden,
            "llama.block_count": layers, "llama.feed_forward_length": inner, "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
            "llama.rope.dimension_count": hidden // heads, "llama.vocab_size": vocab, "tokenizer.ggml.model": "none"}
    tensors, at = tensors_of(shape, kind), 0
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(text(k) + value(v) for k, v in meta.items())
    for tensor, name, rows, columns in tensors:
        number, each, many, _ = TYPES[name]
        dims = [columns] if name == "F32" else [columns, rows]
        head += text(tensor) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        head += struct.pack("<IQ", number, at)
        at += (rows * columns // each * many + 31) // 32 * 32
    with open(path + ".part", "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for tensor, name, rows, columns in tensors:
            data = payload(name, rows, columns, numpy, random)
            f.write(data + b"\0" * (-len(data) % 32))
    os.rename(path + ".part", path)
