#!/usr/bin/env python3
"""Encoder-decoders beside transformers: what is exported loads with every tensor, our evaluation and ten steps of our trainer have
its losses, greedy and beam search write its tokens. Skips itself where torch is not installed (with_torch.py)."""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import plim
from transformers import T5ForConditionalGeneration

T5 = dict(model__architecture="t5", model__hidden_size=48, model__intermediate_size=80, model__num_layers=3, model__num_decoder_layers=2,
          model__num_attention_heads=3, model__num_key_value_heads=3, model__head_dim=24, data__max_length=24, data__max_source_length=40)
MODELS = {
    "t5 1.0": dict(),
    "t5 1.1": dict(model__feed_forward_proj="gated-gelu", model__tie_word_embeddings="false"),
}
ROWS = 6


def rows_of(path):
    """Sources, their mask, targets with -100 behind their end."""
    pairs = [json.loads(line) for line in open(path)]
    sources, targets = [list(p["source"].encode()) for p in pairs], [list(p["target"].encode()) for p in pairs]
    width, length = max(map(len, sources)), max(map(len, targets))
    ids = torch.tensor([s + [0] * (width - len(s)) for s in sources])
    mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sources])
    return ids, mask, torch.tensor([t + [-100] * (length - len(t)) for t in targets])


def loss_of(model, rows):
    ids, mask, labels = rows
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


with tempfile.TemporaryDirectory() as folder:
    random.seed(5)
    data = f"{folder}/pairs.jsonl"
    with open(data, "w") as f:
        for i in range(ROWS):
            source = "".join(random.choice("abcdefgh ") for _ in range((1, 39, 7, 20, 33, 12)[i]))
            f.write(json.dumps({"source": source, "target": source[::-1][:(1, 24, 7, 3, 11, 12)[i]]}) + "\n")
    rows = rows_of(data)
    for name, changes in MODELS.items():
        common = {**T5, **changes, "data__train": f"[{data}]", "data__validation": f"[{data}]", "training__batch_size": ROWS,
                  "training__gradient_accumulation_steps": 1, "training__weight_decay": 0}
        path = plim.job(folder, **{**common, "training__steps": 3, "training__learning_rate": "1e-3", "output__dir": f"{folder}/{name}"})
        trained = plim.run("train", path, "-q")
        if not plim.ok(trained.returncode == 0, f"{name}: trained {trained.stderr.strip()}"): continue
        out = f"{folder}/{name}-out"
        plim.run("export", f"{folder}/{name}", "-o", out, "--dtype", "f32")
        model, info = T5ForConditionalGeneration.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
        plim.ok(not {k: v for k, v in info.items() if v}, f"{name}: transformers finds every tensor and no other")
        model.eval()
        with torch.no_grad(): theirs = loss_of(model, rows).item()
        told = plim.run("eval", path, "--json", "-q", "--model", out)
        ours = json.loads(told.stdout)["loss"] if told.returncode == 0 else float("nan")
        plim.ok(abs(ours - theirs) < 1e-5 * theirs, f"{name}: loss {ours:.7f}, transformers says {theirs:.7f} {told.stderr.strip()}")
        for beams in (1, 4):
            text = "".join(random.choice("abcdefgh ") for _ in range(17))
            with torch.no_grad():
                made = model.generate(torch.tensor([list(text.encode())]), max_new_tokens=16, num_beams=beams, do_sample=False)[0, 1:].tolist()
            told = plim.run("generate", out, "--device", "cpu", "-p", text, "-n", 16, "-t", 0, "--beams", beams, "-q", "--json")
            mine = json.loads(told.stdout)["tokens"] if told.returncode == 0 else told.stderr
            plim.ok(mine == [t for t in made if t != 1][:len(mine)] and mine, f"{name}: {beams} beams write the same")
        path = f"{folder}/ten.yaml"
        with open(path, "w") as f:
            f.write(f"""model: {{path: {json.dumps(out)}}}
data: {{train: [{data}], max_length: 24, max_source_length: 40}}
training: {{batch_size: {ROWS}, steps: 10, learning_rate: 1e-3, weight_decay: 0, device: cpu}}
output: {{dir: {folder}/ten}}
""")
        mine = plim.losses(plim.run("train", path, "--json", "-q", "--no-checkpoint").stdout)
        optimizer, worst = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0), 0
        for step in range(1, 11):
            loss = loss_of(model, rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            worst = max(worst, abs(mine.get(step, 0) - loss.item()) / loss.item())
        plim.ok(worst < 1e-5, f"{name}: ten losses of the trainer, {worst:.1e} apart")
plim.done()
