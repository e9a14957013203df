"""Random encoders with labels, of tokens or of texts, small and without any library: the same bytes everywhere."""
import json
import math
import os
import random
import shutil
import struct

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
HIDDEN, INNER, LAYERS, HEADS, POSITIONS = 16, 24, 2, 2, 96
ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
CLASSES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
TOKENIZERS = {"bert": "bert", "roberta": "roberta", "distilbert": "bert"}
# name: architecture, labels, whether tokens have them, problem_type
MODELS = {
    "bert-tokens": ("bert", ENTITIES, True, None),
    "roberta-tokens": ("roberta", ENTITIES, True, None),
    "distilbert-tokens": ("distilbert", ENTITIES, True, None),
    "bert-texts": ("bert", ["NEGATIVE", "NEUTRAL", "POSITIVE"], False, None),
    "roberta-texts": ("roberta", ["NEGATIVE", "NEUTRAL", "POSITIVE"], False, None),
    "distilbert-texts": ("distilbert", ["no", "yes"], False, "single_label_classification"),
    "bert-one": ("bert", ["LABEL_0"], False, None),
    "roberta-several": ("roberta", ["toxic", "rude", "funny", "dull"], False, "multi_label_classification"),
    "distilbert-regression": ("distilbert", ["LABEL_0"], False, "regression"),
}


def shapes(kind, vocab, labels, of_tokens):
    norm = lambda name: [(name + ".weight", [HIDDEN]), (name + ".bias", [HIDDEN])]
    linear = lambda name, out, into: [(name + ".weight", [out, into]), (name + ".bias", [out])]
    at = kind + ".embeddings."
    found = [(at + "word_embeddings.weight", [vocab, HIDDEN]), (at + "position_embeddings.weight", [POSITIONS + 2 * (kind == "roberta"), HIDDEN])]
    if kind != "distilbert": found += [(at + "token_type_embeddings.weight", [2 if kind == "bert" else 1, HIDDEN])]
    found += norm(at + "LayerNorm")
    names = {"distilbert": ("distilbert.transformer.layer.", "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm")}
    prefix, parts = names.get(kind, (kind + ".encoder.layer.", "attention.self.query attention.self.key attention.self.value attention.output.dense attention.output.LayerNorm "
                                     "intermediate.dense output.dense output.LayerNorm"))
    parts = parts.split()
    for i in range(LAYERS):
        for part in parts[:4]: found += linear(f"{prefix}{i}.{part}", HIDDEN, HIDDEN)
        found += norm(f"{prefix}{i}.{parts[4]}") + linear(f"{prefix}{i}.{parts[5]}", INNER, HIDDEN)
        found += linear(f"{prefix}{i}.{parts[6]}", HIDDEN, INNER) + norm(f"{prefix}{i}.{parts[7]}")
    if not of_tokens: found += linear({"bert": "bert.pooler.dense", "roberta": "classifier.dense", "distilbert": "pre_classifier"}[kind], HIDDEN, HIDDEN)
    return found + linear("classifier" if of_tokens or kind != "roberta" else "classifier.out_proj", labels, HIDDEN)


def config(kind, vocab, labels, of_tokens, problem):
    sizes = dict(hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
    if kind == "distilbert": sizes = dict(dim=HIDDEN, hidden_dim=INNER, n_layers=LAYERS, n_heads=HEADS)
    more = {"bert": dict(type_vocab_size=2, pad_token_id=0), "distilbert": dict(pad_token_id=0),
            "roberta": dict(type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)}[kind]
    if problem: more["problem_type"] = problem
    return dict(architectures=[CLASSES[kind] + ("ForTokenClassification" if of_tokens else "ForSequenceClassification")], model_type=kind, vocab_size=vocab,
                max_position_embeddings=POSITIONS + 2 * (kind == "roberta"), id2label={str(i): name for i, name in enumerate(labels)},
                label2id={name: i for i, name in enumerate(labels)}, **sizes, **more)


def make_labels_model(folder, name, seed=7):
    kind, labels, of_tokens, problem = MODELS[name]
    os.makedirs(folder)
    shutil.copy(f"{GOLDEN}/tokenizer/{TOKENIZERS[kind]}.json", f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer.json", encoding="utf-8") as f: tokenizer = json.load(f)
    vocab = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    with open(f"{folder}/config.json", "w") as f: json.dump(config(kind, vocab, labels, of_tokens, problem), f)
    rng, header, data = random.Random(seed), {}, bytearray()
    for tensor, shape in shapes(kind, vocab, len(labels), of_tokens):
        centre = 1 if "orm.weight" in tensor else 0
        values = [rng.gauss(centre, 0.5) for _ in range(math.prod(shape))]
        header[tensor] = dict(dtype="F32", shape=shape, data_offsets=[len(data), len(data) + 4 * len(values)])
        data += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    with open(f"{folder}/model.safetensors", "wb") as f: f.write(struct.pack("<Q", len(text)) + text + data)
    return folder
