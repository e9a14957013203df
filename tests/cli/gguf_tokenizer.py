#!/usr/bin/env python3
"""The tokenizer in a GGUF file gives the tokens of the tokenizer.json that it was made of."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gguf_file
import plim

GOLDEN = os.path.join(plim.SRC_DIR, "tests", "golden", "tokenizer")
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def merges_of(tokens, scores):
    """As transformers makes them from SentencePiece's scores."""
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores):
        parts = [(token[:i], token[i:], score) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(parts, key=lambda p: (vocab[p[0]], vocab[p[1]]))
    return [[a, b] for a, b, _ in sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)]


def lists_of(tree):
    """Tokens and types by id; holes are unused."""
    vocab = dict(tree["model"]["vocab"])
    vocab.update({t["content"]: t["id"] for t in tree["added_tokens"]})
    tokens = [f"[PAD{i}]" for i in range(max(vocab.values()) + 1)]
    types = [UNUSED] * len(tokens)
    for text, i in vocab.items(): tokens[i], types[i] = text, BYTE if text.startswith("<0x") and tree["model"].get("byte_fallback") else NORMAL
    for t in tree["added_tokens"]: types[t["id"]] = CONTROL if t["special"] else USER
    return tokens, types


def metadata_of(tree, pre, bos):
    tokens, types = lists_of(tree)
    meta = {"general.architecture": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.add_bos_token": bos is not None}
    if bos is not None: meta["tokenizer.ggml.bos_token_id"] = tokens.index(bos)
    if pre:
        merges = [m if isinstance(m, str) else " ".join(m) for m in tree["model"]["merges"] if m != "#version: 0.2"]
        meta.update({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": merges})
        return meta
    scores = [-float(i) for i in range(len(tokens))]
    meta.update({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores, "tokenizer.ggml.unknown_token_id": tokens.index("<unk>")})
    types[tokens.index("<unk>")] = UNKNOWN
    tree["model"]["merges"] = [m for m in merges_of(tokens, scores) if tokens.index("".join(m)) not in [i for i, t in enumerate(types) if t != NORMAL]]
    return meta


def ids(folder, tokenizer, texts):
    """Tokens of all texts, by a token file."""
    with open(f"{folder}/texts.jsonl", "w") as f:
        for t in texts: f.write(json.dumps({"text": t}) + "\n")
    result = plim.run("tokenize", f"{folder}/texts.jsonl", "-t", tokenizer, "-o", f"{folder}/out.tok", "-q", "--no-resume")
    if result.returncode: return result.stderr.strip()
    data = open(f"{folder}/out.tok", "rb").read()
    os.remove(f"{folder}/out.tok")
    return data[256:]  # behind the header, which knows what tokenizer it was


texts = {}
for line in open(f"{GOLDEN}/cases.jsonl"):
    case = json.loads(line)
    if case.get("text", "").strip() and "\ufffd" not in case["text"]: texts.setdefault(case["tok"], []).append(case["text"])

with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/tokens.gguf"
    for name, pre, bos in (("gpt2", "gpt-2", None), ("llama3", "llama-bpe", "<|begin_of_text|>"), ("qwen2", "qwen2", None), ("llama2", None, "<s>")):
        tree = json.load(open(f"{GOLDEN}/{name}.json"))
        tree["added_tokens"] = [t for t in tree["added_tokens"] if not t["normalized"]]  # GGUF cannot say so
        meta = metadata_of(tree, pre, bos)
        json.dump(tree, open(f"{folder}/tokenizer.json", "w"))
        gguf_file.write(path, meta, {})
        want, have = ids(folder, f"{folder}/tokenizer.json", texts[name]), ids(folder, path, texts[name])
        plim.ok(isinstance(want, bytes) and want == have, f"{name}: {len(texts[name])} texts give the same tokens {have if isinstance(have, str) else ''}{want if isinstance(want, str) else ''}")
    tree = json.load(open(f"{GOLDEN}/gpt2.json"))
    for pre in ("smollm", "tekken", "dbrx"):
        gguf_file.write(path, metadata_of(tree, pre, None), {})
        have = ids(folder, path, texts["gpt2"])
        plim.ok(isinstance(have, bytes), f"{pre}: is known {have if isinstance(have, str) else ''}")

    def lie(what, word, **changes):
        meta = metadata_of(json.load(open(f"{GOLDEN}/gpt2.json")), "gpt-2", None)
        meta.update({"tokenizer.ggml." + k: v for k, v in changes.items()})
        gguf_file.write(path, {k: v for k, v in meta.items() if v is not None}, {})
        have = ids(folder, path, ["a"])
        plim.ok(isinstance(have, str) and "\n" not in have and word in have, f"{what}: {have}")

    lie("a rule nobody knows", "my-bpe", pre="my-bpe")
    lie("another kind", "rwkv", model="rwkv")
    lie("no tokenizer", "tokenizer.ggml.model", model=None)
    lie("no merges", "merges", merges=None)
    lie("too few types", "token_type", token_type=[1, 1])
    lie("scores for others", "scores", model="llama", scores=[0.0])
    lie("the same token twice", "twice", tokens=["a"] * 1100, token_type=[1] * 1100)
    lie("a merge of no tokens", "tokens.gguf", merges=["never such"])
plim.done()
