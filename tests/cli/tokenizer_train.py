#!/usr/bin/env python3
"""A job with a tokenizer.json from end to end: plan, train, resume with other workers, eval, generate, checkpoint."""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def byte_alphabet():
    """The characters that byte-level tokenizers write bytes with."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in shown}
    for b in range(256):
        if b not in letters: letters[b] = chr(256 + len(letters) - len(shown))
    return [letters[b] for b in range(256)]


def make_tokenizer(folder):
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    merges = []
    for word in ("Ġthe", "Ġship", "ing", "Ġbarrels", "Ġpast", "Ġtook", "Ġbefore", "Ġturned"):
        whole = word[0]
        for letter in word[1:]:
            if whole + letter not in vocab:
                merges.append(f"{whole} {letter}")
                vocab[whole + letter] = len(vocab)
            whole += letter
    end = len(vocab)
    spec = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "added_tokens": [{"id": end, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges}}
    os.makedirs(folder)
    json.dump(spec, open(f"{folder}/tokenizer.json", "w"))
    return end + 1


with tempfile.TemporaryDirectory() as folder:
    size = make_tokenizer(f"{folder}/tok")
    random.seed(1)
    words = plim.CORPUS.split()
    for name, n in (("train", 900), ("val", 60)):
        with open(f"{folder}/{name}.jsonl", "w") as f:
            for i in range(n): f.write(json.dumps({"text": " ".join(random.choices(words, k=random.randint(2, 60)))}) + "\n")
    path = plim.job(folder, model__vocab_size=size, data__train=f"[{folder}/train.jsonl]", data__validation=f"[{folder}/val.jsonl]",
                    data__tokenizer=f"{folder}/tok", data__packing="true", data__shuffle_buffer=50, training__steps=30, training__eval_every=10)
    whole = plim.run("train", path, "-q", "--set", f"output.dir={folder}/whole")
    reference = plim.losses(whole.stdout)
    plim.ok(whole.returncode == 0 and len(reference) == 30, f"trains {whole.stderr.strip()}")
    plim.ok(reference and reference[30] < reference[1] - 0.5, f"and learns: {reference.get(1)} -> {reference.get(30)}")

    seen = {}
    for step, workers in ((7, 1), (8, 5), (19, 0), (30, 2)):
        result = plim.run("train", path, "-q", "--resume", "--steps", step, "--set", f"data.workers={workers}", "--set", f"output.dir={folder}/parts")
        seen.update(plim.losses(result.stdout))
    plim.ok(seen == reference, "stopped four times, with other numbers of workers: every loss is the same")
    changed = plim.run("train", path, "-q", "--resume", "--steps", 31, "--set", "data.shuffle_buffer=51", "--set", f"output.dir={folder}/parts")
    plim.ok(changed.returncode == 2 and "data" in changed.stderr and changed.stderr.count("\n") == 1, f"other data options are refused: {changed.stderr.strip()}")

    text = open(f"{folder}/train.jsonl").read()
    with open(f"{folder}/train.jsonl", "w") as f: f.write('{"text": "X' + text[len('{"text": "X'):])  # the same size
    edited = plim.run("train", path, "-q", "--resume", "--steps", 31, "--set", f"output.dir={folder}/parts")
    plim.ok(edited.returncode == 2 and "data" in edited.stderr and edited.stderr.count("\n") == 1, f"an edited file is refused: {edited.stderr.strip()}")
    with open(f"{folder}/train.jsonl", "w") as f: f.write(text)

    other = plim.run("train", path, "-q", "--no-checkpoint", "--steps", 3, "--set", "training.micro_batch_size=1")
    close = all(abs(v - reference[k]) < 1e-4 for k, v in plim.losses(other.stdout).items())
    plim.ok(other.returncode == 0 and close, "the loss does not depend on the micro-batch")
    plain = plim.run("tokenize", f"{folder}/train.jsonl", "-t", f"{folder}/tok", "-o", f"{folder}/train.tok", "--append-eos", "-q")
    tokens = plim.run("train", path, "-q", "--no-checkpoint", "--set", f"data.train={folder}/train.tok")
    plim.ok(plain.returncode == 0 and tokens.returncode == 0 and len(plim.losses(tokens.stdout)) == 30, f"trains on its token file {plain.stderr} {tokens.stderr}")
    wrong = plim.run("train", path, "-q", "--no-checkpoint", "--set", f"model.vocab_size={size - 1}")
    plim.ok(wrong.returncode == 2 and "data.tokenizer" in wrong.stderr and str(size) in wrong.stderr, f"a vocabulary too small: {wrong.stderr.strip()}")

    result = plim.run("eval", path, "--json", "--set", f"output.dir={folder}/whole")
    found = json.loads(result.stdout) if result.returncode == 0 else {}
    plim.ok(found.get("rows", 0) > 0 and 0 < found.get("loss", 0) < 6, f"eval {result.stderr.strip()}")
    last = f"{folder}/whole/checkpoint-00000030"
    plim.ok(open(f"{last}/tokenizer.json").read() == open(f"{folder}/tok/tokenizer.json").read(), "the checkpoint has its tokenizer")
    result = plim.run("generate", "--device", "cpu", f"{folder}/whole", "-p", "The old ship", "-n", 30, "-t", 0, "--json")
    found = json.loads(result.stdout) if result.returncode == 0 else {}
    plim.ok(found.get("prompt_tokens") == 8 and len(found.get("tokens", [])) == found.get("generated_tokens") > 0, f"generate reads it by itself {result.stderr.strip()}")
    again = plim.run("generate", "--device", "cpu", f"{folder}/whole", "-p", "The old ship", "-n", 30, "-t", 0, "-q", "--tokenizer", f"{folder}/tok")
    plim.ok(again.stdout.rstrip("\n") == found.get("text", "").rstrip("\n"), "and when it is named: the same text, as it comes")
    out = plim.run("export", f"{folder}/whole", "-o", f"{folder}/hf", "-q")
    plim.ok(out.returncode == 0 and open(f"{folder}/hf/tokenizer.json").read() == open(f"{folder}/tok/tokenizer.json").read(), f"so has the export {out.stderr.strip()}")
    as_bytes = plim.run("generate", "--device", "cpu", f"{folder}/whole", "-p", "The old ship", "-n", 5, "--json", "--tokenizer", "bytes")
    plim.ok(json.loads(as_bytes.stdout)["prompt_tokens"] == 12, "bytes when asked for")
plim.done()
