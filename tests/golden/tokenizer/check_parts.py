#!/usr/bin/env python3
"""check_parts.py - normalizers, decoders and models of a tokenizer against the Python package tokenizers.

    tests/golden/tokenizer/check_parts.py BENCH_TOKENIZER_PARTS [--seed N] [--strings N]

Every normalizer sees every code point, alone and between neighbours, and random strings that mix the characters
which take part in composition, grapheme clusters and case; every decoder random token lists; the Unigram and
WordPiece models random vocabularies. Prints each difference (the first few of a part) and ends with 1 if there
was any. Exit 77: the package is not installed.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    from tokenizers import Tokenizer, decoders, models, normalizers
except ImportError:
    print("check_parts: skipped: the Python package tokenizers is not installed")
    sys.exit(77)

POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def frame(text):
    data = text.encode()
    return struct.pack("=I", len(data)) + data


def ask(program, mode, spec, data):
    """The program's answer to the records, as bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(spec, file)
        file.flush()
        done = subprocess.run([program, mode, file.name], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode: raise SystemExit(f"check_parts: {mode} {spec}: {done.stderr.decode()}")
    return done.stdout


def split_texts(data):
    texts, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("=I", data, at)
        texts.append(data[at + 4:at + 4 + size].decode())
        at += 4 + size
    return texts


def split_ids(data):
    lists, at = [], 0
    while at < len(data):
        (count,) = struct.unpack_from("=I", data, at)
        lists.append(list(struct.unpack_from(f"={count}i", data, at + 4)))
        at += 4 + 4 * count
    return lists


def report(what, given, ours, theirs):
    """How many differ; shows the first three."""
    wrong = [(g, o, t) for g, o, t in zip(given, ours, theirs) if o != t]
    for g, o, t in wrong[:3]:
        print(f"  {what}: {g!a}\n    is   {o!a}\n    want {t!a}")
    print(f"{'FAIL' if wrong else 'ok  '} {what}: {len(given)} texts, {len(wrong)} differences", flush=True)
    return len(wrong) + (len(ours) != len(given))


# --- character maps --------------------------------------------------------------------------------------------


def charsmap(table):
    """The binary form of {text: replacement}: a trie with one block of 256 units for each node."""
    root, blob = {}, bytearray()
    for key, made in table.items():
        node = root
        for byte in key.encode(): node = node.setdefault(byte, {})
        node[None] = len(blob)
        blob += made.encode() + b"\0"
    units, todo = [0] * 256, [(root, 0)]
    while todo:
        node, at = todo.pop()
        base = len(units)
        units += [1 << 31] * 256  # labels that match no byte
        units[at] |= (at ^ base) << 10
        for byte, child in node.items():
            if byte is None: continue
            units[base ^ byte] = byte
            todo.append((child, base ^ byte))
        if None in node:
            units[at] |= 1 << 8
            units[base] = 1 << 31 | node[None]
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + bytes(blob)


def charsmap_like_nfkc(rng):
    """Compatibility forms, blanks and composed pairs: what published maps hold, in small."""
    table = {c: " " for c in "\t\n\r\u00a0\u200b\u3000"} | {"\x01": "", "\u00ad": ""}
    for c in rng.sample([c for c in POINTS if unicodedata.normalize("NFKC", c) != c], 400):
        table[c] = unicodedata.normalize("NFKC", c)
    for c in rng.sample([c for c in POINTS[:0x3000] if len(unicodedata.normalize("NFD", c)) == 2], 200):
        table[unicodedata.normalize("NFD", c)] = c
    return table


def charsmap_for_graphemes():
    """Keys that show where graphemes begin: a character with one mark, or with a joiner."""
    bases = "a\u00a9\u0915\u0995\u1100\u1161\u11a8\uac00\uac01\u0e01\u231a\u2764\u0600x"
    keys = [b + m for b in bases for m in "\u0300\u0301\u200d\u094d\u0903"] + ["\u0300\u0301", "\u200d\u0300", "\r"]
    return {key: "<%d>" % i for i, key in enumerate(keys)}


# --- random strings --------------------------------------------------------------------------------------------


def alphabets():
    marks = [c for c in POINTS if unicodedata.combining(c)]
    pairs = [c for c in POINTS if unicodedata.decomposition(c)]
    parts = sorted({p for c in pairs for p in unicodedata.normalize("NFKD", c)})
    hangul = [chr(c) for r in ((0x1100, 0x1200), (0xA960, 0xA980), (0xAC00, 0xAC80), (0xD7B0, 0xD800)) for c in range(*r)]
    cluster = list("a\u00a9\u0915\u0995\u0c15\u1100\u1161\u11a8\uac00\uac01\u0e01\u231a\u2764\u0600\U0001f468\U0001f1e6"
                   "\U0001f1e7\U0001f3fb\u0300\u0301\u200d\u200c\u094d\u0903\u0e33\u09cd\u0c4d\u093c\ufe0f\r\n\x01\u0e31"
                   "\U00016d63\U00016d67\u1a60\u200b\u0d4e\U000110bd x")
    plain = list("abcdefgh  \t\nABCXYZ.,!?'-0123456789")
    return [marks + list("aeiou"), pairs, parts, hangul, cluster, cluster, plain, POINTS[:0x600], POINTS]


def random_strings(rng, count):
    sets = alphabets()
    for i in range(count):
        mix = rng.choice(sets) if i % 3 else rng.choice(sets[:-1]) + list("ab ")
        yield "".join(rng.choices(mix, k=rng.randint(0, 24)))
    yield from ("a" + "\u0301\u0327" * 200, "\u0327\u0301" * 100, "\u1100\u1161\u11a8" * 40, "e\u0301" * 50)


# --- normalizers -----------------------------------------------------------------------------------------------


def normalizer_specs(rng):
    n = normalizers
    yield from (n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Lowercase(), n.StripAccents(), n.Nmt(), n.Prepend("\u2581"))
    yield from (n.Strip(), n.Strip(left=True, right=False), n.Strip(left=False, right=True))
    for flags in range(8):
        for accents in (None, True, False):
            yield n.BertNormalizer(clean_text=bool(flags & 1), handle_chinese_chars=bool(flags & 2),
                                   strip_accents=accents, lowercase=bool(flags & 4))
    from tokenizers import Regex
    yield from (n.Replace("a", "bb"), n.Replace(" ", "\u2581"), n.Replace("ab", ""), n.Replace("", "-"))
    for pattern in (" {2,}", r"\s+", " +", r"\.+", "a|b", r"[a-c]*", r"\s", "x*"):
        yield n.Replace(Regex(pattern), "_")
    yield n.Precompiled(charsmap(charsmap_for_graphemes()))
    yield n.Precompiled(charsmap(charsmap_like_nfkc(rng)))
    yield n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase()])
    yield n.Sequence([n.Precompiled(charsmap(charsmap_like_nfkc(rng))), n.Replace(Regex(" {2,}"), " ")])
    yield n.Sequence([n.Prepend("\u2581"), n.Replace(" ", "\u2581"), n.Sequence([n.NFKC(), n.Strip()])])


def check_normalizers(program, rng, count):
    failed = 0
    every = POINTS + ["a" + c + "b" for c in POINTS]
    for normalizer in normalizer_specs(rng):
        spec = json.loads(normalizer.__getstate__())
        label = json.dumps(spec)
        light = spec["type"] == "BertNormalizer" and rng.random() < 0.5
        given = (POINTS if light else every) + list(random_strings(rng, count))
        ours = split_texts(ask(program, "normalize", spec, b"".join(map(frame, given))))
        failed += report(label[:90], given, ours, [normalizer.normalize_str(text) for text in given])
    return failed


# --- decoders --------------------------------------------------------------------------------------------------


def decoder_specs():
    from tokenizers import Regex
    d = decoders
    yield from (d.ByteLevel(), d.ByteFallback(), d.Fuse(), d.BPEDecoder(), d.BPEDecoder("@@"), d.BPEDecoder(""))
    yield from (d.Metaspace(), d.Metaspace("_", "never"), d.Metaspace("\u2581", "first"))
    yield from (d.WordPiece(), d.WordPiece("##", False), d.WordPiece("", True))
    yield from (d.Replace("a", ""), d.Replace("\u2581", " "), d.Replace(Regex("a+"), "b"), d.Replace("", "-"))
    yield from (d.Strip("a", 1, 0), d.Strip(" ", 2, 0), d.Strip("\u2581", 3, 0))
    yield d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    yield d.Sequence([d.ByteFallback(), d.Metaspace()])
    yield d.Sequence([d.Fuse(), d.Strip("a", 2, 0), d.WordPiece()])


def random_tokens(rng):
    words = ["a", "aa", "ab", "\u2581", "\u2581a", "\u2581\u2581", "_", "_b_", "##", "##ing", "a##", " .", ".", "!", "n't",
             "'", "'s", "'m", "do", "not", " do not", "</w>", "x</w>", "@@", "y@@", "", " ", "\u00e9", "\u6f22", "<0xE4>",
             "<0xBD>", "<0xA0>", "<0x61>", "<0x0a>", "<0xg0>", "<0x+1>", "<0x1>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>",
             "\u0120the", "\u00c3", "\u00a9", "\u00e4", "\u00bd", "\u0142", "\u010a", "\u00f0", "\u0141", "\u0138", "a b"]
    if rng.random() < 0.3: return ["".join(rng.choices(POINTS[:0x200], k=rng.randint(0, 6))) for _ in range(rng.randint(0, 6))]
    return [rng.choice(words) for _ in range(rng.randint(0, 9))]


def check_decoders(program, rng, count):
    failed = 0
    for decoder in decoder_specs():
        spec = json.loads(decoder.__getstate__())
        given = [random_tokens(rng) for _ in range(count)]
        records = b"".join(struct.pack("=I", len(tokens)) + b"".join(map(frame, tokens)) for tokens in given)
        ours = split_texts(ask(program, "decode", spec, records))
        failed += report(json.dumps(spec)[:90], given, ours, [decoder.decode(tokens) for tokens in given])
    return failed


# --- models ----------------------------------------------------------------------------------------------------


def random_words(rng, letters, count):
    return sorted({"".join(rng.choices(letters, k=rng.randint(1, 5))) for _ in range(count)})


def unigram_models(rng):
    for round_ in range(24):
        letters = list("abcd\u00e9\u6f22\U0001f600\u2581")[:rng.randint(2, 8)]
        vocab = [("<unk>", 0.0)] + [(w, rng.choice([-1.0, -2.0, -2.5, -rng.random() * 12, -40.0]))
                                    for w in random_words(rng, letters, 60)]
        fallback = round_ % 3 == 0
        if fallback: vocab += [(f"<0x{b:02X}>", -9.0) for b in range(256 if round_ % 2 else 200)]
        if round_ % 4 == 0: vocab.append((vocab[3][0], -0.25))
        yield models.Unigram(vocab, unk_id=0, byte_fallback=fallback), letters + list("z\u00df<unk>")


def wordpiece_models(rng):
    for round_ in range(12):
        letters = list("abcd\u00e9\u6f22\U0001f600#")[:rng.randint(3, 8)]
        prefix = rng.choice(["##", "", "@"])
        words = ["[UNK]"] + random_words(rng, letters, 40)
        words += [prefix + w for w in random_words(rng, letters, 40) if prefix + w not in words]
        vocab = {w: i for i, w in enumerate(words)}
        yield models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=prefix,
                               max_input_chars_per_word=rng.choice([100, 8])), letters + ["z"]


def check_models(program, rng, count):
    failed = 0
    for kind, found in (("Unigram", unigram_models(rng)), ("WordPiece", wordpiece_models(rng))):
        for model, letters in found:
            text = Tokenizer(model).to_str()
            tokenizer = Tokenizer.from_str(text)  # scores as the library reads them, which is not to the last bit
            spec = json.loads(text)["model"]
            given = ["".join(rng.choices(letters, k=rng.randint(1, 14))) for _ in range(count)]
            given += ["".join(rng.choices(letters[:-3] or letters, k=n)) for n in (200, 5000, 20000)]
            ours = split_ids(ask(program, "encode", spec, b"".join(map(frame, given))))
            failed += report(f"{kind} {len(spec['vocab'])} tokens", given, ours,
                             [tokenizer.encode(text, add_special_tokens=False).ids for text in given])
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--only", choices=("normalizers", "decoders", "models"))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    checks = {"normalizers": check_normalizers, "decoders": check_decoders, "models": check_models}
    failed = sum(check(args.program, rng, args.strings) for name, check in checks.items() if args.only in (None, name))
    print(f"check_parts: {failed} differences")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
