#!/usr/bin/env python3
"""make_gguf.py - blocks.gguf: weights of every block type, beside each the f32 values that the gguf package reads in it; and
a smaller one of them all for the fuzzer to begin with (fuzz/corpus/gguf).

    python3 tests/golden/gguf/make_gguf.py          needs the PyPI packages gguf and numpy

The bytes of the K types are random: every bit of a block counts then. Scales are made finite and small."""
import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

HERE = pathlib.Path(__file__).resolve().parent
Q = gguf.GGMLQuantizationType
SCALES = {Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}  # where a block has numbers of 16 bits
rng = np.random.default_rng(20)


def random_blocks(kind, rows, blocks):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = (rng.standard_normal((rows, blocks, 1)) * 0.01).astype(np.float16)
        raw[:, :, at:at + 2] = scale.view(np.uint8)
    return raw.reshape(rows, blocks * size)


def write(path, kinds, rows, with_values):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 5e5)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "▁ship", "line\n"])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.5, -2.0])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    for kind in kinds:
        if kind in SCALES:
            data = random_blocks(kind, rows, 2)
        else:
            data = quantize(rng.standard_normal((rows, 64)).astype(np.float32), kind)
        writer.add_tensor(f"{kind.name}.weight", data, raw_dtype=kind)
        if with_values: writer.add_tensor(f"{kind.name}.f32", dequantize(data, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


KINDS = (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_K, Q.Q5_K, Q.Q6_K)
write(HERE / "blocks.gguf", KINDS, 3, True)
write(HERE.parents[2] / "fuzz" / "corpus" / "gguf" / "seed.gguf", KINDS, 1, False)
