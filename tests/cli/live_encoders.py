#!/usr/bin/env python3
"""Exported encoders load in transformers, with every tensor, the names of their labels and the golden numbers. Skips itself
where torch is not installed (with_torch.py)."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import transformers as hf
from safetensors.torch import load_file
import plim

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
TASKS = {"tokens": hf.AutoModelForMaskedLM, "labels": hf.AutoModelForTokenClassification, "pairs": hf.AutoModel}
NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def prepare(kind, task, folder):
    """A copy of the golden model; its labels have names."""
    shutil.copytree(f"{GOLDEN}/{kind}-{task}", folder)
    with open(f"{folder}/config.json") as f: config = json.load(f)
    if task == "labels": config.update(id2label=dict(enumerate(NAMES)), label2id={name: i for i, name in enumerate(NAMES)})
    with open(f"{folder}/config.json", "w") as f: json.dump(config, f)


def difference(model, kind, task, numbers):
    """Of the largest number."""
    ids = numbers["ids"].long()
    mask = torch.arange(ids.shape[1])[None] < numbers["lengths"][:, None]
    more = {"token_type_ids": numbers["types"].long()} if kind == "bert" else {}
    with torch.no_grad(): out = model(input_ids=ids, attention_mask=mask.long(), **more)
    if task == "pairs":
        mine, want = (out.last_hidden_state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), numbers["embedding:mean0"]
    else:
        mine, want = torch.where(mask[..., None], out.logits, 0), numbers["logits"]
    return ((mine - want).abs().max() / want.abs().max()).item()


with tempfile.TemporaryDirectory() as folder:
    for kind in ("bert", "roberta", "distilbert"):
        for task, loader in TASKS.items():
            source, out = f"{folder}/{kind}-{task}", f"{folder}/{kind}-{task}-out"
            prepare(kind, task, source)
            done = plim.run("export", source, "-o", out)
            if not plim.ok(done.returncode == 0, f"{kind} {task}: exported {done.stderr.strip()}"): continue
            model, info = loader.from_pretrained(out, output_loading_info=True)
            strange = {k: v for k, v in info.items() if v}
            plim.ok(not strange, f"{kind} {task}: transformers finds every tensor and no other {strange}")
            apart = difference(model.eval(), kind, task, load_file(f"{GOLDEN}/{kind}-{task}/expected.safetensors"))
            plim.ok(apart < 1e-5, f"{kind} {task}: the golden numbers, {apart:.1e} apart")
            if task == "labels": plim.ok(list(model.config.id2label.values()) == NAMES, f"{kind}: labels keep their names")
plim.done()
