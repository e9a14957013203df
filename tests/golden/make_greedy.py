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
ANSWER, GAP, SOURCE, LENGTHS = 12, 1e-4, 100, 20


def next_logits(model, prompts, tokens):
    """[prompts, vocabulary]; all prompts are of one length."""
    if not model.config.is_encoder_decoder: return model(torch.cat([prompts, tokens], 1)).logits[:, -1]
    start = torch.full((len(prompts), 1), model.config.decoder_start_token_id)
    return model(input_ids=prompts, decoder_input_ids=torch.cat([start, tokens], 1)).logits[:, -1]


def answers(model, prompts):
    """Of prompts of one length, side by side."""
    ends = model.config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    ids, tokens = torch.tensor(prompts), torch.zeros((len(prompts), 0), dtype=torch.long)
    found, going = [{"prompt": p, "tokens": [], "logprobs": []} for p in prompts], set(range(len(prompts)))
    for _ in range(ANSWER):
        logits = next_logits(model, ids, tokens)
        best, likely = torch.topk(logits, 2), torch.log_softmax(logits.double(), -1)
        going -= {i for i in going if best.values[i, 0] - best.values[i, 1] < GAP or best.indices[i, 0].item() in ends}
        for i in going:
            found[i]["tokens"].append(best.indices[i, 0].item())
            found[i]["logprobs"].append(round(likely[i, best.indices[i, 0]].item(), 6))
        tokens = torch.cat([tokens, best.indices[:, :1]], 1)
    return found


def all_answers(model, prompts):
    done = {}
    for length in {len(p) for p in prompts}:
        which = [i for i, p in enumerate(prompts) if len(p) == length]
        done.update(zip(which, answers(model, [prompts[i] for i in which])))
    return [done[i] for i in range(len(prompts))]


def load(name):
    with open(f"{HERE}/{name}/config.json") as f: source = json.load(f).get("is_encoder_decoder")
    kind = AutoModelForSeq2SeqLM if source else AutoModelForCausalLM
    return kind.from_pretrained(f"{HERE}/{name}", dtype=torch.float32, experts_implementation="eager").eval()


def prompts_of(model, rng, count):
    most = SOURCE if model.config.is_encoder_decoder else model.config.max_position_embeddings - ANSWER
    least = 1 + (getattr(model.config, "original_max_position_embeddings", None) or 0)
    before = []
    for i in range(count):
        length = least + (most - least) * rng.randrange(LENGTHS) // (LENGTHS - 1)
        if i % 6 > 3: length = most  # two that are long enough to share blocks
        before = (before[:length * 3 // 4] if i % 3 == 2 else []) + [rng.randrange(model.config.vocab_size) for _ in range(length)]
        before = before[:length]
        yield before


parser = argparse.ArgumentParser()
parser.add_argument("--prompts", type=int, default=24)
parser.add_argument("--models", nargs="*", default=MODELS)
parser.add_argument("--out", default=f"{HERE}/greedy.json")
options = parser.parse_args()
cases = {}
torch.set_num_threads(1)
for name in options.models:
    model = load(name)
    with torch.no_grad(): cases[name] = all_answers(model, list(prompts_of(model, random.Random(name), options.prompts)))
    print(f"{name}: {sum(len(c['tokens']) for c in cases[name])} tokens after {len(cases[name])} prompts", flush=True)
with open(options.out, "w") as f:
    f.write("{\n" + ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(c) for c in rows) + "\n]" for name, rows in cases.items()) + "\n}\n")
