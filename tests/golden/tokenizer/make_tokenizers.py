#!/usr/bin/env python3
"""make_tokenizers.py - small tokenizers of every family, and what the reference library makes of nasty lines.

    python3 tests/golden/tokenizer/make_tokenizers.py          needs `tokenizers`; `sentencepiece` for a new charsmap

Writes NAME.json for every tokenizer and cases.jsonl beside itself. tests/golden/test_tokenizer_golden.c replays them.
"""
import base64
import json
import os
import random
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,  # noqa: E402
                        trainers)

import nasty  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus(lines=6000, seed=7):
    rng = random.Random(seed)
    code = nasty.code_lines()
    text = [rng.choice(code) for _ in range(lines // 2)]
    text += [nasty.words(rng, rng.randrange(3, 15), rng.choice(list(nasty.WORDS) + ["english"] * 12)) for _ in range(lines // 2)]
    return text


# --- byte-level BPE --------------------------------------------------------------------------------------------


def byte_level(pre, text, size, normalizer=None, specials=("<|endoftext|>",)):
    tok = Tokenizer(models.BPE())
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def gpt2(text, size):
    """As the oldest files look: the model's type is not named and merges are "a b"."""
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), text, size)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    data = json.loads(tok.to_str())
    del data["model"]["type"], data["model"]["byte_fallback"], data["model"]["ignore_merges"]
    data["model"]["merges"] = ["#version: 0.2"] + [" ".join(pair) for pair in data["model"]["merges"]]
    return data


def roberta(text, size):
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), text, size, specials=("<s>", "<pad>", "</s>", "<unk>"))
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tok.add_tokens([AddedToken("tokenizer", single_word=True), AddedToken("Plimsoll ", rstrip=True, normalized=False)])
    tok.post_processor = processors.RobertaProcessing(("</s>", tok.token_to_id("</s>")), ("<s>", tok.token_to_id("<s>")))
    return json.loads(tok.to_str())


def llama3(text, size):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K % "{1,3}"), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok = byte_level(pre, text, size, specials=())
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    tok.add_special_tokens(names + ["<|reserved_special_token_%d|>" % i for i in range(12)])
    bos = tok.token_to_id("<|begin_of_text|>")
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    data = json.loads(tok.to_str())
    data["model"]["ignore_merges"] = True
    # words no merge reaches
    extra = [w for w in ("Ġcounterrevolutionary", "internationalization") if w not in data["model"]["vocab"]]
    shift = max(data["model"]["vocab"].values()) + 1
    first = min(t["id"] for t in data["added_tokens"])
    assert first == shift
    for word in extra:
        data["model"]["vocab"][word] = len(data["model"]["vocab"])
    for token in data["added_tokens"]:
        token["id"] += len(extra)
    template = data["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]
    template["ids"] = [i + len(extra) for i in template["ids"]]
    return data


def qwen2(text, size):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K % ""), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok = byte_level(pre, text, size, normalizer=normalizers.NFC(), specials=())
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tok.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False),
                    AddedToken("A\u030a", normalized=True)])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return json.loads(tok.to_str())


# --- SentencePiece ---------------------------------------------------------------------------------------------


def sentencepiece_bpe(text, size):
    """A BPE model as conversions of SentencePiece models look: <unk> <s> </s>, 256 bytes, merges, characters."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=400))
    model = json.loads(tok.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    merges = [["▁" * n, "▁" * n] for n in (1, 2, 4, 8)] + model["merges"]
    known = set(pieces)
    for piece in ["▁" * n for n in (2, 4, 8, 16)] + sorted(model["vocab"], key=model["vocab"].get):
        if piece not in known:
            known.add(piece)
            pieces.append(piece)
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges}


def added(content, number, **flags):
    token = {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
    token.update(flags)
    return token


def template(before, after, ids):
    piece = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}  # noqa: E731
    single = [piece(n) for n in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(n) for n in after]
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in before + after}}


SENTENCEPIECE_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def llama2(text, size, metaspace=False, model=None):
    model = model or sentencepiece_bpe(text, size)
    legacy = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                  {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added("<unk>", 0), added("<s>", 1), added("</s>", 2)],
            "normalizer": None if metaspace else legacy, "pre_tokenizer": space if metaspace else None,
            "post_processor": template(["<s>"], [], {"<s>": 1}), "decoder": SENTENCEPIECE_DECODER, "model": model}


def mistral(text, size):
    return llama2(text, size, metaspace=True)


def small_charsmap():
    """Rules of a few kinds, compiled by SentencePiece; without it, those of the committed file."""
    try:
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2 as proto
    except ImportError:
        with open(os.path.join(HERE, "t5.json"), encoding="utf-8") as f:
            return json.load(f)["normalizer"]["precompiled_charsmap"]
    rules = {chr(c): "" for c in list(range(1, 9)) + [0xB, 0xE, 0xF, 0x7F, 0x8F, 0x9F, 0x200B, 0x200E, 0xFEFF]}
    rules.update({c: " " for c in "\t\n\f\r\u00a0\u1680\u2003\u2028\u3000\ufffd"})
    rules.update({chr(0xFF01 + i): chr(0x21 + i) for i in range(94)})
    rules.update({"ﬁ": "fi", "ﬂ": "fl", "½": "1⁄2", "²": "2", "㎏": "kg", "…": "...", "\u212b": "\u00c5", "ﷺ": "صلى الله عليه وسلم", "™": "TM",
                  "e\u0301": "é", "a\u0308": "ä", "か\u3099": "が",
                  "\u1112\u1161\u11ab": "한", "ſ": "s", "Ⅻ": "XII", "ǅ": "Dž"})
    with tempfile.TemporaryDirectory() as folder:
        tsv, data = os.path.join(folder, "rules.tsv"), os.path.join(folder, "text")
        with open(tsv, "w", encoding="utf-8") as f:
            for source, target in sorted(rules.items()):
                f.write(" ".join("%X" % ord(c) for c in source) + "\t" + " ".join("%X" % ord(c) for c in target) + "\n")
        with open(data, "w", encoding="utf-8") as f:
            f.write("\n".join(corpus(400)))
        sentencepiece.SentencePieceTrainer.train(input=data, model_prefix=os.path.join(folder, "m"), vocab_size=400,
                                                 normalization_rule_tsv=tsv, hard_vocab_limit=False, minloglevel=2)
        model = proto.ModelProto()
        with open(os.path.join(folder, "m.model"), "rb") as f:
            model.ParseFromString(f.read())
        return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def t5(text, size, charsmap=None):
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tok.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
                                                          show_progress=False))
    data = json.loads(tok.to_str())
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap or small_charsmap()}
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    data["decoder"] = dict(data["pre_tokenizer"])
    count = len(data["model"]["vocab"])
    data["added_tokens"] = [added("<pad>", 0), added("</s>", 1), added("<unk>", 2)] + [
        added("<extra_id_%d>" % i, count + i, lstrip=i % 2 == 1, rstrip=i % 3 == 1) for i in range(6)]
    data["post_processor"] = template([], ["</s>"], {"</s>": 1})
    return data


# --- WordPiece, and one of everything else ---------------------------------------------------------------------


def bert(text, size):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=size, special_tokens=names, show_progress=False))
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                       special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return json.loads(tok.to_str())


def odd(text, size):
    """Affixes, an unknown token that is not fused, normalized added tokens, a regular expression of its own."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix="@@"))
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"(?<=[a-z])(?=[A-Z0-9])|\s++|(?i:[^\W\d_]{4,6}?ing\b)|[[:punct:]&&[^'_]]+"), "merged_with_previous"),
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_next"), pre_tokenizers.Digits(individual_digits=False)])
    tok.decoder = decoders.BPEDecoder(suffix="</w>")
    tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], show_progress=False, limit_alphabet=120,
                                                      end_of_word_suffix="</w>", continuing_subword_prefix="@@"))
    tok.add_tokens([AddedToken("Straße", single_word=True), AddedToken("ABC", lstrip=True, rstrip=True), AddedToken(" 中", normalized=False),
                    AddedToken("ab", normalized=False, single_word=True), AddedToken("①")])
    return json.loads(tok.to_str())


FAMILIES = {"gpt2": gpt2, "roberta": roberta, "llama3": llama3, "qwen2": qwen2, "llama2": llama2, "mistral": mistral, "t5": t5,
            "bert": bert, "odd": odd}


def special_texts(data):
    return [t["content"] for t in data["added_tokens"]]


# --- cases -----------------------------------------------------------------------------------------------------


def case(name, tok, data, full):
    text = data.decode("utf-8", "replace")
    ids = tok.encode(text, add_special_tokens=False).ids
    row = {"tok": name}
    if text.encode() == data:
        row["text"] = text
    else:
        row["hex"] = data.hex()
    row["ids"] = ids
    if full:
        row["special"] = tok.encode(text).ids
    row["decoded"] = tok.decode(ids, skip_special_tokens=False)
    skipped = tok.decode(ids, skip_special_tokens=True)
    if skipped != row["decoded"]:
        row["skipped"] = skipped
    return row


def fixed_lines():
    return [s.encode() for s in ("", " ", "  ", "\n", "a", " a", "a ", "Hello, world!", "don't DON'T 'S 'ſ", "  two  blanks  ", "\t\ttabs",
                                 "1234567890", "12 345 6", "x=[1,2,3];\n\n\n\ny", "n\u0303 \u00f1", "\u1100\u1161\u11a8 한국어", "ﬁ ½ ²", "\u00a0\u2003x",
                                 "▁▁a ▁b", "\x00\x01", "\u212b A\u030a \u00c5", "the\u200bzero", "straße STRASSE ab abc ab. ABC abc", "中 中a①1")]


def main():
    rng = random.Random(20)
    text, code = corpus(), nasty.code_lines()
    with open(os.path.join(HERE, "cases.jsonl"), "w", encoding="utf-8") as out:
        for name, build in FAMILIES.items():
            data = build(text, 1100)
            path = os.path.join(HERE, name + ".json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
            tok = Tokenizer.from_file(path)
            lines = fixed_lines()
            while len(lines) < 300:
                line = nasty.nasty_line(rng, special_texts(data), code)
                if len(line) < 160:
                    lines.append(line)
            for i, line in enumerate(lines):
                out.write(json.dumps(case(name, tok, line, i % 6 == 0), ensure_ascii=False, separators=(",", ":")) + "\n")
            print(name, os.path.getsize(path), "bytes", tok.get_vocab_size(), "tokens")


if __name__ == "__main__":
    main()
