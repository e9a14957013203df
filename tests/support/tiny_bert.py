"""A random BERT with a tokenizer, small enough for tests."""
import json
import math
import os
import random
import shutil
import struct

SIZES = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=48)
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")


def shapes(vocab, sizes):
    c, f, p = sizes["hidden_size"], sizes["intermediate_size"], sizes["max_position_embeddings"]
    norm = lambda name: [(name + ".weight", [c]), (name + ".bias", [c])]
    linear = lambda name, out, into: [(name + ".weight", [out, into]), (name + ".bias", [out])]
    found = [("embeddings.word_embeddings.weight", [vocab, c]), ("embeddings.position_embeddings.weight", [p, c]),
             ("embeddings.token_type_embeddings.weight", [2, c]), *norm("embeddings.LayerNorm")]
    for i in range(sizes["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        for part in ("self.query", "self.key", "self.value", "output.dense"): found += linear(f"{at}attention.{part}", c, c)
        found += norm(at + "attention.output.LayerNorm") + linear(at + "intermediate.dense", f, c)
        found += linear(at + "output.dense", c, f) + norm(at + "output.LayerNorm")
    return found


def make_model(folder, **more):
    """A random BERT without a prefix in its names, as sentence-transformers keeps them; more: other sizes."""
    sizes = {**SIZES, **more}
    os.makedirs(folder)
    shutil.copy(f"{GOLDEN}/tokenizer/bert.json", f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer.json", encoding="utf-8") as f: tokenizer = json.load(f)
    vocab = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    with open(f"{folder}/config.json", "w") as f:
        json.dump(dict(architectures=["BertModel"], model_type="bert", vocab_size=vocab, type_vocab_size=2, **sizes), f)
    rng, header, data = random.Random(3), {}, bytearray()
    for name, shape in shapes(vocab, sizes):
        values = [rng.gauss(1 if "LayerNorm.weight" in name else 0, 0.3) for _ in range(math.prod(shape))]
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(data), len(data) + 4 * len(values)])
        data += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    with open(f"{folder}/model.safetensors", "wb") as f: f.write(struct.pack("<Q", len(text)) + text + data)
