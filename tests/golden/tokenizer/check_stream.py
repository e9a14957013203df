#!/usr/bin/env python3
"""check_stream.py - generated text as it comes, against the Python package tokenizers.

    tests/golden/tokenizer/check_stream.py BENCH_TOKEN_TEXT [--seed N] [--lists N] [TOKENIZER.json...]

For random lists of ids and every cut between prompt and answer: the text that is streamed after the prompt is the decoded
text of all ids, less what it has in common with the decoded text of the prompt alone. Tokenizers are those of this folder
and random ones whose decoders are put together at random. Prints the first differences and ends with 1 if there was any.
Exit 77: the package is not installed.
"""
import argparse
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    from tokenizers import Tokenizer
except ImportError:
    print("check_stream: skipped: the Python package tokenizers is not installed")
    sys.exit(77)

MARK = "\u2581"
STEPS = [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True},
         {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": True}, {"type": "WordPiece", "prefix": "##", "cleanup": True},
         {"type": "WordPiece", "prefix": "##", "cleanup": False}, {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "Fuse"},
         {"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "Strip", "content": "a", "start": 2, "stop": 1},
         {"type": "Strip", "content": "\u00e9", "start": 0, "stop": 2}, {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
         {"type": "Replace", "pattern": {"String": "ab"}, "content": "\u00e9"}, {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}]
LLAMA = {"type": "Sequence", "decoders": [STEPS[11], STEPS[1], STEPS[7], STEPS[8]]}


def made(rng):
    """A tokenizer of few tokens that mean something to some decoder."""
    texts = [*"ab .?", MARK, MARK + "a", "b" + MARK, "##a", "##", "a</w>", "</w>", "\u00e9", "\u4f60", "n't", " do not", "\u0120", "\u0120a", "\u00c3", "\u00a9", "\u00e4\u00bd", "\u0142", "\ufffd", "",
             *(f"<0x{b:02X}>" for b in [0x41, 0xc3, 0xa9, 0xe4, 0xbd, 0xa0, 0xf0, 0x9f, 0x98, 0x80, 0xff])]
    special = [{"id": len(texts) + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": i < 2} for i, c in enumerate(("<s>", "</s>", MARK + "x"))]
    kind = rng.random()
    decoder = LLAMA if kind < 0.2 else None if kind < 0.25 else {"type": "Sequence", "decoders": rng.choices(STEPS, k=rng.randint(1, 4))}
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "added_tokens": special, "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": True,
                      "vocab": {t: i for i, t in enumerate(texts)}, "merges": []}}


def after(prompt, whole):
    n = 0
    while n < min(len(prompt), len(whole)) and prompt[n] == whole[n]: n += 1
    return whole[n:]


def compare(program, path, name, rng, lists):
    reference = Tokenizer.from_file(path)
    size = reference.get_vocab_size()
    known = [i for i in range(size) if reference.id_to_token(i) is not None]
    data, want = b"", []
    for _ in range(lists):
        ids = rng.choices(known, k=rng.randint(1, 9))
        try:
            texts = [reference.decode(ids[:cut]) if cut else "" for cut in range(len(ids) + 1)]
        except BaseException as e:  # the package itself falls over empty texts in Strip
            if isinstance(e, KeyboardInterrupt): raise
            continue
        for cut in range(len(ids) + 1):
            data += struct.pack(f"=II{len(ids)}i", cut, len(ids), *ids)
            want.append((ids, cut, after(texts[cut], texts[-1])))
    run = subprocess.run([program, path], input=data, capture_output=True)
    got, at = [], 0
    while at < len(run.stdout):
        n, = struct.unpack_from("=I", run.stdout, at)
        got.append(run.stdout[at + 4:at + 4 + n].decode())
        at += 4 + n
    if run.returncode or len(got) != len(want):
        print(f"{name}: {run.stderr.decode().strip() or 'too few answers'}")
        return 1
    wrong = [(w, g) for w, g in zip(want, got) if w[2] != g]
    for (ids, cut, text), g in wrong[:3]:
        print(f"{name}: {[reference.id_to_token(i) for i in ids]} after {cut}: {text!r}, not {g!r}  {json.dumps(json.load(open(path))['decoder'])[:300]}")
    return len(wrong)


parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("files", nargs="*")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--lists", type=int, default=300)
options = parser.parse_args()
rng = random.Random(options.seed)
here = os.path.dirname(os.path.abspath(__file__))
wrong = cuts = 0
for path in options.files or sorted(glob.glob(f"{here}/*.json")): wrong += compare(options.program, path, os.path.basename(path), rng, options.lists)
with tempfile.TemporaryDirectory() as folder:
    for i in range(0 if options.files else options.lists):
        with open(f"{folder}/t.json", "w") as f: json.dump(made(rng), f)
        wrong += compare(options.program, f"{folder}/t.json", f"random {i}", rng, 20)
print(f"{wrong} differences")
sys.exit(wrong > 0)
