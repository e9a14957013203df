#!/usr/bin/env python3
"""A model's own tokenizer is the default: plan, train, checkpoint, export, generate and serve use it without being told, be it a
tokenizer.json or a SentencePiece model. Bytes are tokens only where they were asked for or nothing else is there, and that is
said."""
import glob
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder
import plim
import server

GOLDEN = os.path.join(plim.SRC_DIR, "tests", "golden")
BYTES = "each byte is a token"
KEYS = {"architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings"}
# "The heavy ship", as sentencepiece and tokenizers have it,and the BOS of a BPE model
EXPECTED = {"bpe": [1, 422, 266, 348, 447, 467, 465, 295, 301, 462], "unigram": [285, 115, 19, 296, 172, 3, 9, 224, 24, 58],
            "gpt2": [52, 264, 483, 65, 86, 89, 302, 308, 80]}
SIDE = {"generation_config.json": '{"temperature": 0.5}', "special_tokens_map.json": '{"eos_token": "</s>"}', "chat_template.jinja": "{{ messages }}"}


def job_of(folder, model, **changes):
    path = plim.job(folder, data__tokenizer=None, **changes)
    lines = open(path).read().splitlines()
    kept = [line for line in lines if line.split(":")[0].strip() not in KEYS]
    at = kept.index("model:")
    open(path, "w").write("\n".join(kept[:at + 1] + [f"  path: {model}"] + kept[at + 1:]) + "\n")
    return path


def model_of(folder, tokenizer, name, vocabulary):
    model = llama_folder.make(os.path.join(folder, "model"), vocab_size=vocabulary)
    if tokenizer: shutil.copy(tokenizer, os.path.join(model, name))
    for side, text in SIDE.items(): open(os.path.join(model, side), "w").write(text)
    return model


def generated(model):
    return plim.run("generate", model, "--prompt", "The heavy ship", "-n", 2, "--device", "cpu")


def check(folder, tokenizer, name, vocabulary, ids):
    model = model_of(folder, tokenizer, name, vocabulary)
    path = job_of(folder, model)
    planned = plim.run("plan", path)
    plim.ok(planned.returncode == 0 and BYTES not in planned.stderr, f"{name}: plan takes it")
    shown = plim.run("config", "show", path)
    plim.ok(f"tokenizer: {model}" in shown.stdout.replace(chr(34), ""), f"{name}: config show says that data.tokenizer follows model.path")
    trained = plim.run("train", path, "-q", "--steps", 2)
    saved = next((os.path.dirname(f) for f in glob.glob(os.path.join(folder, "run", "*", "trainer.json"))), folder)
    plim.ok(trained.returncode == 0, f"{name}: train takes it {trained.stderr.strip()[-200:]}")
    kept = all(os.path.exists(os.path.join(saved, f)) for f in (name, *SIDE))
    plim.ok(kept and open(os.path.join(saved, name), "rb").read() == open(tokenizer, "rb").read(), f"{name}: the checkpoint has it, and the side files")
    out = os.path.join(folder, "export")
    plim.run("export", saved, "-o", out)
    lost = [f for f in (name, *SIDE) if not os.path.exists(os.path.join(out, f)) or open(os.path.join(out, f), "rb").read() != open(os.path.join(saved, f), "rb").read()]
    plim.ok(not lost, f"{name}: an export keeps them {lost}")
    said = generated(saved)
    plim.ok(said.returncode == 0 and BYTES not in said.stderr, f"{name}: generate takes the checkpoint's")
    with server.Server(model, program=plim.PLIMSOLL) as s:
        status, answer = s.post("/tokenize", {"prompt": "The heavy ship"})
        plim.ok(status == 200 and answer["tokens"] == ids, f"{name}: serve tokenizes with it: {answer}")


def check_bytes(folder):
    scratch = plim.job(folder, data__tokenizer=None)
    for command in (("plan", scratch), ("train", scratch, "--steps", 1, "--json"), ("doctor", scratch)):
        said = plim.run(*command)
        plim.ok((said.stderr + said.stdout).count(BYTES) == 1, f"{command[0]}: a model from scratch reads bytes, said in one line")
    asked = plim.run("plan", scratch, "--set", "data.tokenizer=bytes")
    plim.ok(asked.returncode == 0 and BYTES not in asked.stderr, "bytes that were asked for are not remarked on")
    model = model_of(folder, None, None, 300)
    for command in (("plan", job_of(folder, model)), ("generate", model, "--prompt", "a", "-n", 1, "--device", "cpu")):
        said = plim.run(*command)
        plim.ok(said.returncode == 0 and said.stderr.count(BYTES) == 1, f"{command[0]}: a folder without a tokenizer, said in one line")


def check_refusals(folder):
    """What is no SentencePiece model, or one whose ids another class changes, is one line."""
    whole = open(os.path.join(GOLDEN, "sentencepiece", "bpe.model"), "rb").read()
    model = model_of(folder, None, None, 1000)
    for what, data, config, words in (("cut off", whole[:-700], {}, "damaged"), ("a tiktoken file", b"IQ== 0\nIg== 1\n", {}, "tokenizer.model"),
                                      ("XLM-R's", whole, {"tokenizer_class": "XLMRobertaTokenizer"}, "XLMRobertaTokenizer")):
        open(os.path.join(model, "tokenizer.model"), "wb").write(data)
        json.dump(config, open(os.path.join(model, "tokenizer_config.json"), "w"))
        said = generated(model)
        plim.ok(said.returncode != 0 and len(said.stderr.strip().splitlines()) == 1 and words in said.stderr, f"{what}: {said.stderr.strip()}")


if __name__ == "__main__":
    pieces = os.path.join(GOLDEN, "sentencepiece")
    with tempfile.TemporaryDirectory() as folder:
        check(folder, os.path.join(pieces, "bpe.model"), "tokenizer.model", 1000, EXPECTED["bpe"])
    with tempfile.TemporaryDirectory() as folder:
        check(folder, os.path.join(pieces, "unigram.model"), "spiece.model", 1000, EXPECTED["unigram"])
    with tempfile.TemporaryDirectory() as folder:
        check(folder, os.path.join(GOLDEN, "tokenizer", "gpt2.json"), "tokenizer.json", 4000, EXPECTED["gpt2"])
    with tempfile.TemporaryDirectory() as folder: check_bytes(folder)
    with tempfile.TemporaryDirectory() as folder: check_refusals(folder)
    plim.done()
