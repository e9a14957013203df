#!/usr/bin/env python3
"""Ten AdamW losses of encoders through `plimsoll train` against transformers: entities with BERT, RoBERTa and DistilBERT, pairs of
sentences with in-batch negatives as sentence-transformers has them; evaluation, and the export of what was learned. Skips itself
where torch is not installed (with_torch.py)."""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import transformers as hf
import encoder_jobs
import plim

STEPS, RATE, TIME, ROWS = 10, 1e-3, 24, 16
torch.manual_seed(1)
torch.set_num_threads(2)


def config(kind, vocab, **more):
    drop = dict(dropout=0, attention_dropout=0, seq_classif_dropout=0) if kind == "distilbert" else dict(
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, type_vocab_size=2)
    sizes = dict(dim=32, hidden_dim=64, n_layers=2, n_heads=4) if kind == "distilbert" else dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    pad = dict(pad_token_id=1) if kind == "roberta" else {}
    return hf.AutoConfig.for_model(kind, vocab_size=vocab, max_position_embeddings=34, **sizes, **drop, **pad, **more)


def ids_of(tokenizer, texts, words=False):
    out = tokenizer(texts, is_split_into_words=words, padding="max_length", truncation=True, max_length=TIME, return_tensors="pt")
    return out


def label_loss(model, batch, targets):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100), logits


def vectors(model, batch):
    hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def pair_loss(model, first, second):
    """MultipleNegativesRankingLoss."""
    scores = 20 * vectors(model, first) @ vectors(model, second).T
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def train(model, loss):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def compare(name, ours, theirs, limit=1e-5):
    apart = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    plim.ok(apart <= limit, f"{name}: {STEPS} losses, at most {apart:.1e} apart, from {theirs[0]:.4f} to {theirs[-1]:.4f}")


def run(folder, objective, model, **more):
    model.save_pretrained(f"{folder}/model")
    path = encoder_jobs.job(folder, objective, model__path=f"{folder}/model", data__max_length=TIME, training__batch_size=ROWS,
                            training__steps=STEPS, training__learning_rate=RATE, training__eval_rows=ROWS, rows=ROWS, **more)
    done = plim.run("train", path, "-q")
    plim.ok(done.returncode == 0, f"{objective}: trained {done.stderr.strip()}")
    return path, list(plim.losses(done.stdout).values()), [e for e in plim.events(done.stdout) if e["event"] == "eval"][-1]


def read(folder, objective):
    with open(encoder_jobs.data(folder, objective, rows=ROWS)) as f: return [json.loads(line) for line in f]


def prepare(root, name, objective):
    folder = f"{root}/{name}"
    os.makedirs(folder)
    vocab = encoder_jobs.tokenizer(folder)
    return folder, vocab, hf.PreTrainedTokenizerFast.from_pretrained(folder), read(folder, objective)


def entities(root, kind):
    folder, vocab, tokenizer, records = prepare(root, kind, "token_labels")
    names = sorted({l for r in records for l in r["labels"]})
    model = hf.AutoModelForTokenClassification.from_config(
        config(kind, vocab, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})).eval()
    batch = ids_of(tokenizer, [r["tokens"] for r in records], words=True)
    targets = torch.full_like(batch["input_ids"], -100)
    for i, r in enumerate(records):
        before = None
        for t, word in enumerate(batch.word_ids(i)):
            if word is not None and word != before: targets[i, t] = names.index(r["labels"][word])
            before = word
    path, ours, told = run(folder, "token_labels", model)
    compare(f"{kind} entities", ours, train(model, lambda: label_loss(model, batch, targets)[0]))
    with torch.no_grad(): loss, logits = label_loss(model, batch, targets)
    right = (logits.argmax(-1) == targets)[targets >= 0].float().mean().item()
    plim.ok(abs(told["loss"] - loss.item()) < 1e-4 and abs(told["accuracy"] - right) < 1e-6, f"{kind}: evaluation {told} is {loss.item():.6f}, {right}")
    done = plim.run("export", path, "-o", f"{folder}/out", "-q")
    back, info = hf.AutoModelForTokenClassification.from_pretrained(f"{folder}/out", output_loading_info=True)
    strange = {k: v for k, v in info.items() if v}
    with torch.no_grad(): again, _ = label_loss(back.eval(), batch, targets)
    plim.ok(done.returncode == 0 and not strange and list(back.config.id2label.values()) == names and abs(again.item() - told["loss"]) < 1e-5,
            f"{kind}: exported, {again.item():.6f} {strange} {done.stderr.strip()}")


def pairs(root, kind):
    folder, vocab, tokenizer, records = prepare(root, f"{kind}-pairs", "sentence_pairs")
    model = hf.AutoModel.from_config(config(kind, vocab), **({} if kind == "distilbert" else dict(add_pooling_layer=False))).eval()
    first, second = (ids_of(tokenizer, [r[f"text_{k}"] for r in records]) for k in "ab")
    path, ours, told = run(folder, "sentence_pairs", model)
    compare(f"{kind} pairs", ours, train(model, lambda: pair_loss(model, first, second)))
    with torch.no_grad(): a, b = vectors(model, first), vectors(model, second)
    cosine = (a * b).sum(1).mean().item()
    plim.ok(abs(told["cosine"] - cosine) < 1e-4, f"{kind}: mean cosine {told['cosine']:.6f} is {cosine:.6f}")
    done = plim.run("export", path, "-o", f"{folder}/out", "-q")
    plim.ok(done.returncode == 0, f"{kind}: exported {done.stderr.strip()}")
    with open(f"{folder}/texts.txt", "w") as f: f.write("\n".join(r["text_a"] for r in records) + "\n")
    lines = plim.run("embed", f"{folder}/out", f"{folder}/texts.txt", "-q", "--device", "cpu")
    ours = torch.tensor([json.loads(line)["embedding"] for line in lines.stdout.splitlines()])
    plim.ok((ours - a).abs().max().item() < 1e-4, f"{kind}: embed of the export gives the trained vectors, {(ours - a).abs().max().item():.1e} apart")
    try:
        import sentence_transformers
    except ImportError:
        return plim.skip("sentence-transformers is not installed")
    loaded = sentence_transformers.SentenceTransformer(f"{folder}/out", device="cpu")
    theirs = torch.tensor(loaded.encode([r["text_a"] for r in records]))
    plim.ok((ours - theirs).abs().max().item() < 1e-5, f"{kind}: sentence-transformers loads it, {(ours - theirs).abs().max().item():.1e} apart")


with tempfile.TemporaryDirectory() as root_:
    for kind_ in ("bert", "distilbert"): entities(root_, kind_)
    for kind_ in ("bert", "distilbert"): pairs(root_, kind_)
plim.done()
