#!/usr/bin/env python3
"""Ten losses of AdamW (lr 1e-3, no decay) for the golden encoders with labels and pairs, all segments 0, as plimsoll train sees
them: losses-encoders.json, read by tests/cli/encoder_golden.py. Needs torch and transformers; a second run writes the same bytes."""
import json
import os

import torch
import transformers as hf
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))


def vectors(model, ids, mask):
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return torch.nn.functional.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)


def loss_of(model, task, ids, mask, targets):
    if task == "labels":
        logits = model(input_ids=ids, attention_mask=mask).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    made, half = vectors(model, ids, mask), len(ids) // 2
    return torch.nn.functional.cross_entropy(20 * made[:half] @ made[half:].T, torch.arange(half))


def run(kind, task):
    folder = f"{HERE}/{kind}-{task}"
    numbers = load_file(f"{folder}/expected.safetensors")
    ids, lengths = numbers["ids"].long(), numbers["lengths"]
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    targets = numbers["targets"].long()
    targets[targets < 0] = -100
    loader = hf.AutoModelForTokenClassification if task == "labels" else hf.AutoModel
    model = loader.from_pretrained(folder).eval()
    optimizer, losses = torch.optim.AdamW([p for p in model.parameters()], lr=1e-3, weight_decay=0), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(model, task, ids, mask, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows = [row[:n] for row, n in zip(ids.tolist(), lengths.tolist())]
    wanted = [row[:n] for row, n in zip(targets.tolist(), lengths.tolist())] if task == "labels" else None
    return dict(ids=rows, targets=wanted, losses=losses)


torch.manual_seed(1)
torch.set_num_threads(1)
cases = {f"{kind}-{task}": run(kind, task) for kind in ("bert", "roberta", "distilbert") for task in ("labels", "pairs")}
with open(f"{HERE}/losses-encoders.json", "w") as f: f.write(json.dumps(cases) + "\n")
