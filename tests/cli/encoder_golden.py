#!/usr/bin/env python3
"""Ten losses of encoders through plimsoll train are the golden ones of transformers (tests/golden/make_encoder_losses.py), and they
stay so under recomputation, another placement of state, and rows that are padded to the longest of a pass."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import encoder_jobs
import plim

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")


def tokenizer(folder, vocab):
    """Token i is the word ti."""
    encoder_jobs.write(f"{folder}/tokenizer.json", dict(
        version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None, pre_tokenizer=dict(type="BertPreTokenizer"), post_processor=None,
        decoder=None, model=dict(type="WordPiece", unk_token="t0", continuing_subword_prefix="##", max_input_chars_per_word=100,
                                 vocab={f"t{i}": i for i in range(vocab)})))


def records(case):
    words = [[f"t{i}" for i in row] for row in case["ids"]]
    if case["targets"]: return [dict(tokens=w, ner_tags=t) for w, t in zip(words, case["targets"])]
    half = len(words) // 2
    return [dict(text_a=" ".join(a), text_b=" ".join(b)) for a, b in zip(words[:half], words[half:])]


def losses(folder, name, case, **more):
    rows, model = records(case), f"{GOLDEN}/{name}"
    os.makedirs(f"{folder}/words", exist_ok=True)
    with open(f"{model}/config.json") as f: tokenizer(f"{folder}/words", json.load(f)["vocab_size"])
    with open(f"{folder}/data.jsonl", "w") as f: f.writelines(json.dumps(r) + "\n" for r in rows)
    keys = dict(model__path=model, data__train=f"[{folder}/data.jsonl]", data__validation="[]", data__tokenizer=f"{folder}/words", data__add_special="false",
                data__max_length=max(map(len, case["ids"])), training__batch_size=len(rows), training__steps=10, training__learning_rate=1e-3,
                training__gradient_accumulation_steps=1)
    keys.update(more)
    path = encoder_jobs.job(folder, "token_labels" if case["targets"] else "sentence_pairs", **keys)
    done = plim.run("train", path, "-q", "--no-checkpoint")
    plim.ok(done.returncode == 0, f"{name} {more}: {done.stderr.strip()}")
    return list(plim.losses(done.stdout).values())


with open(f"{GOLDEN}/losses-encoders.json") as f: cases = json.load(f)
with tempfile.TemporaryDirectory() as folder_:
    for name_, case_ in cases.items():  # losses of three pairs end near 0: of the first one
        variants = [{}] if not name_.startswith("bert") else [
            {}, dict(training__recompute="full"), dict(training__state_tier="disk", training__grad_tier="disk"), dict(data__padding="longest"),
            dict(training__optimizer_in_backward="true")]
        for more_ in variants:
            ours, theirs = losses(folder_, name_, case_, **more_), case_["losses"]
            apart = max(abs(a - b) for a, b in zip(ours, theirs)) / theirs[0] if len(ours) == 10 else 9
            plim.ok(apart <= 1e-5, f"{name_} {more_}: ten losses, {apart:.1e} apart")
plim.done()
