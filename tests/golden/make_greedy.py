#!/usr/bin/env python3
"""The likeliest tokens and their log-probabilities after random prompts, by transformers, for the golden models: greedy.json.

    python tests/golden/make_greedy.py            # rewrites it beside this file

Each answer is made by whole forward passes in float32, token by token, and ends where the model's end-of-text token is
the likeliest, or where the likeliest is closer than GAP to the second: what rounding may decide is nobody's to predict."""
import json
import os
import random

import torch
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ["llama-tied", "llama-untied", "mistral", "qwen2", "gpt2"]
PROMPTS, ANSWER, GAP = 20, 12, 1e-4


def answer(model, prompt, most):
    ends = model.config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    tokens, logprobs = [], []
    while len(tokens) < most:
        logits = model(torch.tensor([prompt + tokens])).logits[0, -1]
        best = torch.topk(logits, 2)
        if best.values[0] - best.values[1] < GAP or best.indices[0].item() in ends: break
        tokens.append(best.indices[0].item())
        logprobs.append(round(torch.log_softmax(logits.double(), -1)[tokens[-1]].item(), 6))
    return {"prompt": prompt, "tokens": tokens, "logprobs": logprobs}


cases = {}
torch.set_num_threads(1)
for name in MODELS:
    model = AutoModelForCausalLM.from_pretrained(f"{HERE}/{name}", dtype=torch.float32).eval()
    rng, positions = random.Random(name), model.config.max_position_embeddings
    cases[name] = []
    with torch.no_grad():
        for _ in range(PROMPTS):
            prompt = [rng.randrange(model.config.vocab_size) for _ in range(rng.randrange(1, positions - ANSWER + 1))]
            cases[name].append(answer(model, prompt, ANSWER))
with open(f"{HERE}/greedy.json", "w") as f:
    f.write("{\n" + ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(c) for c in rows) + "\n]" for name, rows in cases.items()) + "\n}\n")
