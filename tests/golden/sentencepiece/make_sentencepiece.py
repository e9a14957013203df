#!/usr/bin/env python3
"""make_sentencepiece.py - small SentencePiece models of every kind, and what the library makes of nasty lines.

    python3 tests/golden/sentencepiece/make_sentencepiece.py            needs `sentencepiece`
    python3 .../make_sentencepiece.py --out DIR --lines 3000 --seed 5   more, elsewhere: GOLDEN_DIR=DIR test_sentencepiece

Writes NAME.model and cases.jsonl into the folder sentencepiece; test_sentencepiece.c replays them.
"""
import argparse
import io
import json
import os
import random
import sys

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tokenizer"))
import nasty  # noqa: E402

# Replacements as SentencePiece's tables have them: long keys, ASCII keys, keys that are a part of others, nothing, blanks.
RULES = [("A", "a"), ("e\u0301", "\u00e9"), ("\u00c5", "a\u030a"), ("(c)", "\u00a9"), ("(", "["), ("\uff21", "A"), ("\u3000", " "), ("\u00a0", " "),
         ("\u200b", ""), ("\t", " "), ("\n", " "), ("\r", ""), ("\ufb01", "fi"), ("...", "\u2026"), ("\u0130", "i\u0307"), ("ab", "  b ")]
SYMBOLS = ["<user>", "ing", "  ", "\u2581\u2581", "of the", "\u00e9l", "<user>x", "(c", "\n\n"]

KINDS = {
    "unigram": dict(model_type="unigram", vocab_size=500, rules=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
    "unigram-bytes": dict(model_type="unigram", vocab_size=640, byte_fallback=True, user_defined_symbols=SYMBOLS, normalization_rule_name="identity"),
    "unigram-kept": dict(model_type="unigram", vocab_size=400, rules=True, user_defined_symbols=SYMBOLS, remove_extra_whitespaces=False,
                         add_dummy_prefix=False, control_symbols=["<ctl>", "@"], unused=20),
    "bpe": dict(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                split_digits=True, allow_whitespace_only_pieces=True),
    "bpe-symbols": dict(model_type="bpe", vocab_size=420, user_defined_symbols=SYMBOLS, rules=True, control_symbols=["<ctl>"]),
    "bpe-wide": dict(model_type="bpe", vocab_size=450, normalization_rule_name="identity", split_by_whitespace=False,
                     treat_whitespace_as_suffix=True, equal=True),
}
LARGE = {"unigram-nfkc": dict(model_type="unigram", vocab_size=800, normalization_rule_name="nmt_nfkc"),
         "bpe-nfkc": dict(model_type="bpe", vocab_size=800, normalization_rule_name="nmt_nfkc_cf", byte_fallback=True, user_defined_symbols=SYMBOLS)}


def corpus(rng):
    code = nasty.code_lines()
    text = [rng.choice(code) for _ in range(1500)]
    text += [nasty.words(rng, rng.randrange(3, 15), rng.choice(list(nasty.WORDS) + ["english"] * 12)) for _ in range(1500)]
    text += ["a" * rng.randrange(1, 12) + " aa aaa" for _ in range(100)]
    return [t for t in text if t.strip()]


def train(name, kind, text, folder):
    kind = dict(kind)
    rules, unused, equal = kind.pop("rules", False), kind.pop("unused", 0), kind.pop("equal", False)
    if rules:
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w") as f:
            for a, b in RULES:
                f.write("%s\t%s\n" % (" ".join("%X" % ord(c) for c in a), " ".join("%X" % ord(c) for c in b)))
        kind["normalization_rule_tsv"] = path
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=out, hard_vocab_limit=False, num_threads=1,
                                   minloglevel=2, character_coverage=0.98, **kind)
    if rules:
        os.remove(path)
    proto = pb.ModelProto.FromString(out.getvalue())
    normal = [p for p in proto.pieces if p.type == 1 and len(p.piece) > 1]
    for p in normal[5:5 + unused]:
        p.type = 5
    if equal:  # pieces with one score: the leftmost pair joins first
        for p in normal:
            p.score = -float(int(-p.score) // 40)
    proto.trainer_spec.ClearField("input")
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    with open(os.path.join(folder, name + ".model"), "wb") as f:
        f.write(proto.SerializeToString())


def lines(rng, count):
    """Valid UTF-8 without the names of control symbols, which are tokens to us."""
    fixed = ["", " ", "   ", "a", " a", "a ", "\u2581", " \u2581 ", "ab", " ab ab", "A(c)(", "aaaaaaaa aaaa aa", "fi\ufb01", "<user>", "a<user>x", "<user> <user>",
             "  of the  of the", "\u200b", " \u200b ", "...", "\u4e2d\U0001f600\u4e2d", "x\u4e2dx", "e\u0301e", "\n\n\n", "@"]
    code = nasty.code_lines()
    yield from fixed
    while count:
        line = nasty.nasty_line(rng, SYMBOLS, code).decode("utf-8", "replace")
        if "\0" in line or any(name in line for name in ("<s>", "</s>", "<unk>", "<pad>", "<ctl>", "@")):
            continue
        count -= 1
        yield line


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("--out", default=os.path.join(HERE, ".."))
    ask.add_argument("--lines", type=int, default=60)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--large", action="store_true", help="with the library's own tables, which are large")
    asked = ask.parse_args()
    folder = os.path.join(asked.out, "sentencepiece")
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(asked.seed)
    text = corpus(rng)
    with open(os.path.join(folder, "cases.jsonl"), "w") as out:
        for name, kind in dict(KINDS, **(LARGE if asked.large else {})).items():
            train(name, kind, text, folder)
            model = spm.SentencePieceProcessor(model_file=os.path.join(folder, name + ".model"))
            for line in lines(rng, asked.lines):
                if name == "unigram-kept" and line == "@":
                    continue  # a control symbol there
                if name == "bpe-wide" and "\u2581" in line and not line.strip(" \u2581"):
                    continue  # nothing but a mark at the end: we give none
                ids = model.encode(line)
                out.write(json.dumps({"model": name, "text": line, "ids": ids}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
