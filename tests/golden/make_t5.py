#!/usr/bin/env python3
"""Golden numbers of encoder-decoders from PyTorch and transformers, for the parity tests.

    python tests/golden/make_t5.py            # rewrites every case beside this file
    python tests/golden/make_t5.py --out DIR  # writes them elsewhere, for a comparison

Two cases: t5-v10 (ReLU, the head is the embedding) and t5-v11 (gated GELU, a head of its own). Sources are of different lengths and
padded, one of them has one token; targets end before the row does. Names are those of README.md. Beside them `greedy` and `beam`:
what generate() writes for the first rows of `source.ids`, 0 behind its end. Everything runs in float32 on one CPU
thread from fixed seeds, so a second run writes the same bytes.
"""

import argparse
import copy
import os

import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file

from make_golden import IGNORE, STEPS, adamw_groups, fresh, randomise, relative, save_model

LENGTHS = [11, 1, 19, 5, 19, 8]  # of sources
TARGETS = [7, 13, 2, 13, 1, 9]
TEXTS, ANSWER = 50, 12
CONFIGS = {
    "t5-v10": dict(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4, feed_forward_proj="relu"
    ),
    "t5-v11": dict(
        d_model=40,
        d_kv=16,
        d_ff=56,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=5,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=20,
    ),
}


def make_model(name, generator):
    config = hf.T5Config(vocab_size=67, dropout_rate=0.0, decoder_start_token_id=0, **CONFIGS[name])
    model = hf.T5ForConditionalGeneration(config).eval()
    if not config.scale_decoder_outputs:  # version 5 of transformers ties every T5 that has no weights yet
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.shared.weight))
    randomise(model, generator)
    with torch.no_grad():  # scores are not scaled: queries are
        for name, p in model.named_parameters():
            if name.endswith("ttention.q.weight"):
                p *= model.config.d_kv**-0.5
        model.lm_head.weight[1] *= 3  # so that some answers end by themselves
    return model


def make_rows(config, generator):
    """Sources, their mask, what the decoder reads and its targets."""
    batch, time, source = len(LENGTHS), max(TARGETS), max(LENGTHS)
    ids = torch.randint(2, config.vocab_size, (batch, source), generator=generator)
    mask = torch.arange(source)[None, :] < torch.tensor(LENGTHS)[:, None]
    ids[~mask] = 0
    targets = torch.randint(1, config.vocab_size, (batch, time), generator=generator)
    targets[torch.arange(time)[None, :] >= torch.tensor(TARGETS)[:, None]] = IGNORE
    shifted = torch.cat([torch.zeros(batch, 1, dtype=torch.long), targets[:, :-1].clamp(min=0)], 1)
    return ids, mask, shifted, targets


def run(model, rows):
    ids, mask, shifted, targets = rows
    model.zero_grad()
    logits = model(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=shifted).logits
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=IGNORE)
    loss.backward()
    grads = {n: p.grad.detach().clone().float() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), logits.detach().float(), grads


def adamw_losses(model, rows):
    optimizer = adamw_groups(model)
    losses = []
    for _ in range(STEPS):
        losses.append(run(model, rows)[0])
        optimizer.step()
    return torch.stack(losses)


def texts(model, generator):
    """Sources to answer, one by one, and the answers."""
    lengths = torch.randint(1, 20, (TEXTS,), generator=generator)
    lengths[0] = 1
    sources = torch.zeros(TEXTS, 20, dtype=torch.int32)
    answers = {"greedy": torch.zeros(TEXTS, ANSWER, dtype=torch.int32), "beam": torch.zeros(TEXTS, ANSWER, dtype=torch.int32)}
    for i in range(TEXTS):
        ids = torch.randint(2, model.config.vocab_size, (1, int(lengths[i])), generator=generator)
        sources[i, : lengths[i]] = ids[0]
        for name, beams in (("greedy", 1), ("beam", 4)):
            with torch.no_grad():
                out = model.generate(ids, max_new_tokens=ANSWER, num_beams=beams, do_sample=False, use_cache=False)[0, 1:]
            answers[name][i, : len(out)] = out
    return {"text.ids": sources, "text.lengths": lengths.to(torch.int32), **answers}


def expected(model, rows):
    loss, logits, grads = run(model, rows)
    narrow = run(copy.deepcopy(model).to(torch.bfloat16), rows)
    ids, mask, shifted, targets = rows
    numbers = {
        "source.ids": ids.to(torch.int32),
        "source.lengths": torch.tensor(LENGTHS, dtype=torch.int32),
        "ids": shifted.to(torch.int32),
        "pos": torch.arange(targets.shape[1]).expand(len(targets), -1).to(torch.int32),
        "targets": targets.to(torch.int32),
        "loss": loss.reshape(1),
        "losses": adamw_losses(copy.deepcopy(model), rows),
        "logits": logits,
    }
    for name, grad in grads.items():
        numbers["grad:" + name] = grad
        numbers["bf16err:" + name] = relative(narrow[2][name], grad)
    return numbers


def make_case(root, name, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = make_model(name, generator)
    rows = make_rows(model.config, generator)
    folder = fresh(root, name)
    save_model(model, folder)
    numbers = {**expected(model, rows), **texts(model, generator)}
    save_file({n: v.contiguous() for n, v in numbers.items()}, os.path.join(folder, "expected.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--seed", type=int, default=0, help="other weights and tokens, for a live comparison")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for number, name in enumerate(CONFIGS):
        make_case(args.out, name, 4000 + args.seed + number)


if __name__ == "__main__":
    main()
