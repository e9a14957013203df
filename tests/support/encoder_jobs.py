"""Small jobs of encoders: a tokenizer, data for each objective, and their YAML."""
import json
import os
import random

import plim

WORDS = "ann bob carol dora lives in paris london rome works at acme initech the old new red blue cat dog ship sails far away from home today".split()
PEOPLE, PLACES = WORDS[:4], WORDS[6:9]
LABELS = ["B-LOC", "B-PER", "O"]
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = dict(model__hidden_size=32, model__intermediate_size=64, model__num_layers=2, model__num_attention_heads=4,
             model__max_position_embeddings=32)


def write(path, value):
    with open(path, "w") as f: json.dump(value, f)


def tokenizer(folder):
    """WordPiece over the words and all letters, with BERT's marks."""
    letters = [c for c in "abcdefghijklmnopqrstuvwxyz"] + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz"]
    vocab = {t: i for i, t in enumerate(MARKS + WORDS + [c for c in letters if c not in WORDS])}
    added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, t in enumerate(MARKS)]
    part = lambda name, kind: {"SpecialToken": {"id": name, "type_id": kind}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    post = dict(type="TemplateProcessing", single=[part("[CLS]", 0), text("A", 0), part("[SEP]", 0)],
                pair=[part("[CLS]", 0), text("A", 0), part("[SEP]", 0), text("B", 1), part("[SEP]", 1)],
                special_tokens={t: dict(id=t, ids=[vocab[t]], tokens=[t]) for t in ("[CLS]", "[SEP]")})
    write(f"{folder}/tokenizer.json", dict(
        version="1.0", truncation=None, padding=None, added_tokens=added,
        normalizer=dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True),
        pre_tokenizer=dict(type="BertPreTokenizer"), post_processor=post, decoder=dict(type="WordPiece", prefix="##", cleanup=True),
        model=dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100, vocab=vocab)))
    write(f"{folder}/tokenizer_config.json", dict(tokenizer_class="BertTokenizer", unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
                                                  sep_token="[SEP]", mask_token="[MASK]", model_max_length=32))
    return len(vocab)


def label(word): return "B-PER" if word in PEOPLE else "B-LOC" if word in PLACES else "O"


def records(objective, n, rng):
    for _ in range(n):
        words = rng.choices(WORDS, k=rng.randint(2, 12))
        if objective == "masked_tokens": yield dict(text=" ".join(words))
        elif objective == "token_labels": yield dict(tokens=words, labels=[label(w) for w in words])
        else:
            other = words[:1] + rng.choices(WORDS, k=rng.randint(1, 8))  # one word in common
            yield dict(text_a=" ".join(words), text_b=" ".join(other))


def data(folder, objective, rows=96, seed=3):
    path = f"{folder}/{objective}.jsonl"
    with open(path, "w") as f:
        for record in records(objective, rows, random.Random(seed)): f.write(json.dumps(record) + "\n")
    return path


def job(folder, objective, architecture="bert", rows=96, **changes):
    """A job from scratch, with validation on its own data; model__path=... takes a model instead."""
    os.makedirs(folder, exist_ok=True)
    vocab, train = tokenizer(folder), data(folder, objective, rows)
    keys = dict(model__architecture=architecture, model__vocab_size=vocab, **SIZES, data__train=f"[{train}]", data__validation=f"[{train}]",
                data__tokenizer=folder, data__max_length=24, training__objective=objective, training__batch_size=8,
                training__gradient_accumulation_steps=1, training__steps=6, training__learning_rate=2e-3)
    keys.update(changes)
    drop = {"model__tie_word_embeddings", "model__num_key_value_heads"}
    if "model__path" in changes: drop |= {"model__architecture", "model__vocab_size", *SIZES}
    path = plim.job(folder, **keys)
    names = {k.split("__")[1] for k in drop if k not in changes}
    with open(path) as f: lines = f.read().split("\n")
    with open(path, "w") as f: f.write("\n".join(line for line in lines if line.strip().partition(":")[0] not in names))
    return path
