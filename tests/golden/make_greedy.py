#!/usr/bin/env python3
"""The likeliest tokens and their log-probabilities after random prompts, by transformers, for the golden models: greedy.json.

    python tests/golden/make_greedy.py                            # rewrites it beside this file
    python tests/golden/make_greedy.py --prompts 200 --out FILE   # more of them; test_greedy FILE reads them

Each answer is made by whole forward passes in float32, token by token, and ends where the model's end-of-text token is
the likeliest, or where the likeliest is closer than GAP to the second: what rounding may decide is nobody's to predict.

Phi-3 is not among them: transformers changes its frequencies in the middle of a text, when it grows beyond the original length,
the engine has one set of them for all that it promises."""
import argparse
import json
import os
import random

import torch
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ["llama-tied", "llama-untied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "smollm3", "gpt2"]
ANSWER, GAP = 12, 1e-4


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


parser = argparse.ArgumentParser()
parser.add_argument("--prompts", type=int, default=40)
parser.add_argument("--out", default=f"{HERE}/greedy.json")
options = parser.parse_args()
cases = {}
torch.set_num_threads(1)
for name in MODELS:
    model = AutoModelForCausalLM.from_pretrained(f"{HERE}/{name}", dtype=torch.float32).eval()
    rng, positions = random.Random(name), model.config.max_position_embeddings
    cases[name] = []
    with torch.no_grad():
        for _ in range(options.prompts):
            prompt = [rng.randrange(model.config.vocab_size) for _ in range(rng.randrange(1, positions - ANSWER + 1))]
            cases[name].append(answer(model, prompt, ANSWER))
with open(options.out, "w") as f:
    f.write("{\n" + ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(c) for c in rows) + "\n]" for name, rows in cases.items()) + "\n}\n")
