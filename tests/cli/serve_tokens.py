#!/usr/bin/env python3
"""plimsoll serve with tokenizers whose tokens are less than characters: echo, texts and bytes of tokens, and where they begin."""
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import json
import string
import tempfile

import plim
from plim import ok
import server
from server import Server

server.need_http()
COMPLETIONS = "/v1/completions"


def special(*names):
    return [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, c in names]


def joined(vocab, pairs):
    """Adds what the pairs join to; the merges."""
    for a, b in pairs: vocab[a + b] = len(vocab)
    return [f"{a} {b}" for a, b in pairs]


def sentencepiece():
    """As LLaMA has it: ▁ is a blank, characters without a token are bytes, <s> comes first."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{i:02X}>": 3 + i for i in range(256)}
    for c in ["▁", *string.ascii_letters]: vocab[c] = len(vocab)
    merges = joined(vocab, [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("w", "o"), ("r", "l"), ("wo", "rl"), ("worl", "d"), ("▁", "world")])
    blank = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {"added_tokens": special((0, "<unk>"), (1, "<s>"), (2, "</s>")),
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": [blank, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab, "merges": merges}}


def byte_level():
    """As GPT-2 has it: every byte is a token, some are joined."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    letter = [chr(b if b in own else next(others)) for b in range(256)]
    vocab = {"<|endoftext|>": 0} | {letter[b]: 1 + b for b in range(256)}
    merges = joined(vocab, [("h", "e"), (letter[32], "w"), (letter[0xc3], letter[0xa9])])
    return {"added_tokens": special((0, "<|endoftext|>")), "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": merges}}


def folder_with(folder, tokenizer):
    server.model(folder)
    with open(os.path.join(folder, "config.json"), "w") as f: json.dump(dict(server.CONFIG, vocab_size=len(tokenizer["model"]["vocab"])), f)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f: json.dump(tokenizer, f)
    return folder


def whole_and_streamed(s, ask):
    """The choice of an answer, after a look at the same one in a stream."""
    whole = s.post(COMPLETIONS, ask)[1]["choices"][0]
    events = [e["choices"][0] for e in s.stream(COMPLETIONS, ask)[:-1]]
    joined = {k: [x for e in events for x in e["logprobs"][k]] for k in whole["logprobs"]}
    ok("".join(e["text"] for e in events) == whole["text"] and joined == whole["logprobs"], f"streamed as at once: {ask['prompt']!r} {ask.get('stop')}")
    return whole


def check(s, ask, text, tokens, offsets):
    c = whole_and_streamed(s, dict({"temperature": 0, "logprobs": 0}, **ask))
    got = c["logprobs"]
    ok(c["text"] == text and got["tokens"] == tokens and got["text_offset"] == offsets, f"{ask}: {c['text']!r} {got['tokens']} {got['text_offset']}")


def ids_of(s, text, marks=True):
    return s.post("/tokenize", {"prompt": text, "add_special_tokens": marks})[1]["tokens"]


def chat_entries(s, text):
    r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 40, "temperature": 0, "logprobs": True, "top_logprobs": 1})[1]
    return r["choices"][0]["message"]["content"], r["choices"][0]["logprobs"]["content"]


def with_sentencepiece(s):
    words, spaced = "hello world hello", ["<s>", " hello", " world", " hello"]
    ids, echo = ids_of(s, words), {"echo": True, "max_tokens": 0}
    check(s, dict(echo, prompt=words), words, spaced, [0, 0, 5, 11])
    check(s, dict(echo, prompt=ids), "<s> hello world hello", spaced, [0, 3, 9, 15])
    check(s, dict(echo, prompt=ids[1:]), words, spaced[1:], [0, 5, 11])
    check(s, dict(echo, prompt=ids[1:], max_tokens=2), words + " hello world", spaced[1:] + spaced[1:3], [0, 5, 11, 17, 23])
    check(s, dict(echo, prompt="a<s>b"), "a<s>b", ["<s>", " ", "a", "<s>", " ", "b"], [0, 0, 0, 1, 4, 4])
    check(s, {"prompt": ids_of(s, "aé€b", False), "max_tokens": 16}, " aé€b aé€b",
          [" ", "a", "bytes:\\xc3", "bytes:\\xa9", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b"] * 2, [0, 1, 2, 2, 3, 3, 3, 4, 5, 6, 7, 7, 8, 8, 8, 9])
    check(s, {"prompt": ids[1:], "max_tokens": 6, "stop": ["o world"]}, " hell", spaced[1:3], [0, 6])
    check(s, {"prompt": ids[1:3], "max_tokens": 4, "stop": ["world hello x"]}, " hello world hello world", spaced[1:3] * 2, [0, 6, 12, 18])
    content, entries = chat_entries(s, "é hello")
    ok(bytes(b for e in entries for b in e["bytes"]).decode(errors="ignore") in content and any(e["token"] == " hello" for e in entries), f"blanks and bytes of tokens {content!r} {entries[:9]}")


def with_bytes(s):
    text = "é€ w𝄞"
    ids = ids_of(s, text)
    parts = ["é", *(f"bytes:\\x{b:02x}" for b in "€".encode()), " w", *(f"bytes:\\x{b:02x}" for b in "𝄞".encode())]
    places = [0, 1, 1, 1, 2, 4, 4, 4, 4]
    check(s, {"prompt": ids, "echo": True, "max_tokens": 0}, text, parts, places)
    check(s, {"prompt": text, "echo": True, "max_tokens": 9}, text * 2, parts * 2, places + [5 + p for p in places])
    check(s, {"prompt": ids, "max_tokens": 9, "stop": ["€ wx"]}, text, parts, places)
    check(s, {"prompt": ids[1:3] + ids[4:5], "max_tokens": 6}, "\ufffd w\ufffd w", (parts[1:3] + parts[4:5]) * 2, [0, 0, 1, 3, 3, 4])
    r = s.post(COMPLETIONS, {"prompt": ids[1:2], "max_tokens": 1, "logprobs": 5})[1]["choices"][0]["logprobs"]
    ok(list(r["top_logprobs"][0]) == [f"bytes:\\x{b:02x}" for b in range(0xe2, 0xe7)], f"parts of characters are told apart {r}")
    content, entries = chat_entries(s, text)
    ok([0x82] in [e["bytes"] for e in entries] and [0x82] in [t["bytes"] for e in entries for t in e["top_logprobs"]], "a part of a character has its own bytes")
    ok(bytes(b for e in entries for b in e["bytes"]).decode(errors="ignore") == content.rstrip("\ufffd"), "bytes of tokens join to the text")


with tempfile.TemporaryDirectory() as folder:
    with Server(folder_with(f"{folder}/s", sentencepiece())) as s: with_sentencepiece(s)
    with Server(folder_with(f"{folder}/b", byte_level())) as s: with_bytes(s)
plim.done()
