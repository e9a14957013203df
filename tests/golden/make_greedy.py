#!/usr/bin/env python3
"""The likeliest tokens and their log-probabilities after random prompts, by transformers, for the golden models: greedy.json.

    python tests/golden/make_greedy.py                            # rewrites it beside this file
    python tests/golden/make_greedy.py --prompts 200 --out FILE   # more of them; test_greedy FILE reads them

Each answer is made by whole forward passes in float32, token by token, and ends where the model's end-of-text token is
the likeliest, or where the likeliest is closer than GAP to the second: what rounding may decide is nobody's to predict.
Every third prompt begins as the one before it, so that there is something to share.

Prompts of Phi-3 are longer than its original length: transformers changes its frequencies in the middle of a text that grows
beyond it, the engine has one set of them for all that it promises. T5 reads the prompt as its source."""
import argparse
import json
import os
import random

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ["llama-tied", "llama-untied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "smollm3", "gpt2", "phi3", "mixtral",
          "qwen3_moe", "olmoe", "t5-v10", "t5-v11"]
ANSWER, GAP, SOURCE = 12, 1e-4, 100


def next_logits(model, prompt, tokens):
    if not model.config.is_encoder_decoder: return model(torch.tensor([prompt + tokens])).logits[0, -1]
    start = model.config.decoder_start_token_id
    return model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start] + tokens])).logits[0, -1]


def answer(model, prompt, most):
    ends = model.config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    tokens, logprobs = [], []
    while len(tokens) < most:
        logits = next_logits(model, prompt, tokens)
        best = torch.topk(logits, 2)
        if best.values[0] - best.values[1] < GAP or best.indices[0].item() in ends: break
        tokens.append(best.indices[0].item())
        logprobs.append(round(torch.log_softmax(logits.double(), -1)[tokens[-1]].item(), 6))
    return {"prompt": prompt, "tokens": tokens, "logprobs": logprobs}


def load(name):
    with open(f"{HERE}/{name}/config.json") as f: source = json.load(f).get("is_encoder_decoder")
    kind = AutoModelForSeq2SeqLM if source else AutoModelForCausalLM
    return kind.from_pretrained(f"{HERE}/{name}", dtype=torch.float32).eval()


def prompts_of(model, rng, count):
    most = SOURCE if model.config.is_encoder_decoder else model.config.max_position_embeddings - ANSWER
    least = 1 + (getattr(model.config, "original_max_position_embeddings", None) or 0)
    before = []
    for i in range(count):
        length = rng.randrange(least, most + 1)
        before = (before[:length * 3 // 4] if i % 3 == 2 else []) + [rng.randrange(model.config.vocab_size) for _ in range(length)]
        before = before[:length]
        yield before


parser = argparse.ArgumentParser()
parser.add_argument("--prompts", type=int, default=24)
parser.add_argument("--out", default=f"{HERE}/greedy.json")
options = parser.parse_args()
cases = {}
torch.set_num_threads(1)
for name in MODELS:
    model = load(name)
    with torch.no_grad(): cases[name] = [answer(model, p, ANSWER) for p in prompts_of(model, random.Random(name), options.prompts)]
    print(f"{name}: {sum(len(c['tokens']) for c in cases[name])} tokens after {len(cases[name])} prompts", flush=True)
with open(options.out, "w") as f:
    f.write("{\n" + ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(c) for c in rows) + "\n]" for name, rows in cases.items()) + "\n}\n")
