#!/usr/bin/env python3
"""tokenizer_parity.py - our tokenizers against the reference library's, id by id, and how fast both are.

    python3 bench/tokenizer_parity.py --bench build/release/bench_tokenize [--lines 200000] [--extra FILE...]
    python3 bench/tokenizer_parity.py --bench build/release/bench_tokenize --speed

Trains a larger tokenizer of every family on the Python library's sources, /usr/share/doc and generated text, takes the
files named by --extra as well, and compares `encode` (with and without special tokens) and `decode` (keeping and
skipping special tokens) over generated lines that are meant to break things. Bytes that are not UTF-8 go to us as they
are and to the reference as bytes.decode("utf-8", "replace"). Every difference is printed; the exit status is 1 when
there is one, 77 when `tokenizers` is missing. --speed gives MB per processor second of both, one thread each, same run,
same lines, on English text and on code; the reference gets the fastest of encode, encode_batch and encode_batch_fast.
"""
import argparse
import base64
import glob
import gzip
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "golden", "tokenizer"))
sys.dont_write_bytecode = True
try:
    from tokenizers import Tokenizer
    import make_tokenizers as make
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
import nasty  # noqa: E402

CHUNK = 20000


# --- text ------------------------------------------------------------------------------------------------------


def read(path):
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            return f.read().decode("utf-8", "replace")
    except OSError:
        return ""


def english(limit):
    """Prose: licences, manuals, the language reference. Each line once."""
    seen, lines, size = set(), [], 0
    paths = [os.path.join(os.path.dirname(os.__file__), "pydoc_data", "topics.py")]
    paths += sorted(glob.glob("/usr/share/common-licenses/*")) + sorted(glob.glob("/usr/share/doc/**/copyright", recursive=True))
    paths += sorted(glob.glob("/usr/share/doc/**/*.txt*", recursive=True)) + sorted(glob.glob("/usr/share/doc/**/README*", recursive=True))
    paths += sorted(glob.glob("/usr/share/perl/**/*.pod", recursive=True)) + sorted(glob.glob("/usr/share/man/man1/*.gz"))
    for path in paths:
        for line in read(path).replace("\\n", "\n").split("\n"):
            if len(line) > 30 and line not in seen and sum(c.isalpha() or c == " " for c in line) > 0.8 * len(line):
                seen.add(line)
                lines.append(line)
                size += len(line)
        if size > limit:
            break
    return lines


def code(limit):
    lines, size = [], 0
    root = os.path.dirname(os.__file__)
    for path in sorted(glob.glob(root + "/*.py")) + sorted(glob.glob(root + "/*/*.py")) + sorted(glob.glob("/usr/include/*.h")):
        if "pydoc_data" in path or "/test/" in path or "encodings" in path:
            continue
        for line in read(path).split("\n"):
            if line:
                lines.append(line)
                size += len(line)
        if size > limit:
            break
    return lines


def training_text():
    return english(3_000_000) + code(3_000_000) + make.corpus(20000, seed=3)


# --- tokenizers ------------------------------------------------------------------------------------------------


def full_charsmap():
    """The charsmap T5 and its kin carry, when SentencePiece is there to make it."""
    try:
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2 as proto
    except ImportError:
        return make.small_charsmap()
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/text", "w", encoding="utf-8") as f:
            f.write("\n".join(make.corpus(400)))
        sentencepiece.SentencePieceTrainer.train(input=folder + "/text", model_prefix=folder + "/m", vocab_size=400, minloglevel=2,
                                                 hard_vocab_limit=False, normalization_rule_name="nmt_nfkc")
        model = proto.ModelProto()
        with open(folder + "/m.model", "rb") as f:
            model.ParseFromString(f.read())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def train_all(folder, names, size):
    """NAME -> path; a file that is there already is used again."""
    paths, text = {}, None
    for name, build in make.FAMILIES.items():
        if names and name not in names:
            continue
        paths[name] = os.path.join(folder, name + ".json")
        if os.path.exists(paths[name]):
            continue
        text = text or training_text()
        data = build(text, size, charsmap=full_charsmap()) if name == "t5" else build(text, size)
        with open(paths[name], "w", encoding="utf-8") as f:
            json.dump(data, f, ensure_ascii=False)
    return paths


# --- our side --------------------------------------------------------------------------------------------------


def run(bench, path, arguments, payload):
    done = subprocess.run([bench, path, *arguments], input=payload, stdout=subprocess.PIPE, check=True)
    return done.stdout


def records(lines):
    return b"".join(struct.pack("<I", len(line)) + line for line in lines)


def id_records(lists):
    return b"".join(struct.pack("<%dI" % (len(ids) + 1), len(ids), *ids) for ids in lists)


def read_ids(data):
    at, out = 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        out.append(list(struct.unpack_from("<%di" % count, data, at + 4)))
        at += 4 + 4 * count
    return out


def read_texts(data):
    at, out = 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        out.append(data[at + 4:at + 4 + count])
        at += 4 + count
    return out


# --- parity ----------------------------------------------------------------------------------------------------


class Differences:
    def __init__(self, show):
        self.count, self.show = 0, show

    def compare(self, what, inputs, ours, theirs):
        if len(ours) != len(theirs):
            self.count += 1
            print(f"  {what}: {len(ours)} records for {len(theirs)}")
        for given, a, b in zip(inputs, ours, theirs):
            if a == b:
                continue
            self.count += 1
            if self.count <= self.show:
                print(f"  {what}: {given[:300]!r}\n    ours   {str(a)[:300]}\n    theirs {str(b)[:300]}")


def check_chunk(bench, path, tok, lines, special, found):
    texts = [line.decode("utf-8", "replace") for line in lines]
    theirs = [e.ids for e in tok.encode_batch(texts, add_special_tokens=special)]
    ours = read_ids(run(bench, path, ["encode"] + (["special"] if special else []), records(lines)))
    found.compare("encode special" if special else "encode", lines, ours, theirs)
    for skip in (False, True):
        want = [t.encode("utf-8", "replace") for t in tok.decode_batch(theirs, skip_special_tokens=skip)]
        got = read_texts(run(bench, path, ["decode"] + (["skip"] if skip else []), id_records(theirs)))
        found.compare("decode skip" if skip else "decode", theirs, got, want)


def random_ids(rng, size, tok, count):
    """Id lists no text gives: decoders must agree on them too."""
    valid = [i for i in range(size) if tok.id_to_token(i) is not None]
    return [[rng.choice(valid) for _ in range(rng.randrange(1, 12))] for _ in range(count)]


def check(bench, name, path, count, seed, show):
    tok = Tokenizer.from_file(path)
    with open(path, encoding="utf-8") as f:
        specials = [t["content"] for t in json.load(f)["added_tokens"]]
    rng, found, text = random.Random(f"{seed} {name}"), Differences(show), nasty.code_lines()
    begin = time.time()
    for done in range(0, count, CHUNK):
        lines = [nasty.nasty_line(rng, specials, text) for _ in range(min(CHUNK, count - done))]
        check_chunk(bench, path, tok, lines, (done // CHUNK) % 2 == 1, found)
    lists = random_ids(rng, tok.get_vocab_size(), tok, min(count, CHUNK))
    want = [t.encode("utf-8", "replace") for t in tok.decode_batch(lists, skip_special_tokens=False)]
    found.compare("decode random ids", lists, read_texts(run(bench, path, ["decode"], id_records(lists))), want)
    print(f"{name:24} {count:9} lines {found.count:8} differences  {time.time() - begin:6.1f} s", flush=True)
    return found.count


# --- speed -----------------------------------------------------------------------------------------------------


def time_theirs(path, texts, passes):
    """MB/s of the fastest way through the library: its name, the median pass."""
    size = sum(len(t.encode()) for t in texts) / 1e6
    best = (0.0, "")
    ways = {"encode": lambda tok: [tok.encode(t, add_special_tokens=False) for t in texts],
            "encode_batch": lambda tok: tok.encode_batch(texts, add_special_tokens=False),
            "encode_batch_fast": lambda tok: tok.encode_batch_fast(texts, add_special_tokens=False)}
    for way, call in ways.items():
        seconds = []
        for _ in range(passes):
            tok = Tokenizer.from_file(path)
            begin = time.process_time()
            call(tok)
            seconds.append(time.process_time() - begin)
        best = max(best, (size / statistics.median(seconds), way))
    return best


def documents(lines, bytes_each=4000):
    out, part, size = [], [], 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= bytes_each:
            out.append("\n".join(part))
            part, size = [], 0
    return out


def speed(bench, paths, passes, limit):
    sets = {}
    for name, lines in (("English lines", english(limit)), ("code lines", code(limit))):
        total, cut = 0, 0
        while cut < len(lines) and total < limit:
            total += len(lines[cut])
            cut += 1
        sets[name] = lines[:cut]
        sets[name.replace("lines", "4 kB")] = documents(lines[:cut])
    print(f"{'tokenizer':16} {'text':16} {'MB':>5} {'ours MB/s':>10} {'theirs MB/s':>12} {'ratio':>7}  their fastest")
    for name, path in paths.items():
        for what, texts in sets.items():
            with tempfile.NamedTemporaryFile() as f:
                f.write(records([t.encode() for t in texts]))
                f.flush()
                ours = float(subprocess.run([bench, path, "speed", f.name, str(passes + 2)], stdout=subprocess.PIPE,
                                            check=True).stdout.split()[0])
            theirs, way = time_theirs(path, texts, passes)
            size = sum(len(t.encode()) for t in texts) / 1e6
            print(f"{name:16} {what:16} {size:5.1f} {ours:10.1f} {theirs:12.2f} {ours / theirs:6.1f}x  {way}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", default=os.path.join(ROOT, "build", "release", "bench_tokenize"))
    parser.add_argument("--lines", type=int, default=200000, help="lines for each tokenizer")
    parser.add_argument("--families", nargs="*", default=[], help="only these of: " + " ".join(make.FAMILIES))
    parser.add_argument("--extra", nargs="*", default=[], help="further tokenizer.json files")
    parser.add_argument("--size", type=int, default=24000, help="vocabulary of the trained tokenizers")
    parser.add_argument("--work", help="folder to keep the trained tokenizers in")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--show", type=int, default=5, help="differences to print for each tokenizer")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=2.0, help="text for --speed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.work or scratch
        os.makedirs(folder, exist_ok=True)
        paths = train_all(folder, options.families, options.size)
        paths.update({os.path.splitext(os.path.basename(path))[0]: path for path in options.extra})
        if options.speed:
            speed(options.bench, paths, options.passes, int(options.megabytes * 1e6))
            return 0
        return int(sum(check(options.bench, name, path, options.lines, options.seed, options.show)
                       for name, path in paths.items()) > 0)


if __name__ == "__main__":
    sys.exit(main())
