#!/usr/bin/env python3
"""Golden numbers of encoders from PyTorch and transformers, for the parity tests.

    python tests/golden/make_encoders.py            # rewrites every case beside this file
    python tests/golden/make_encoders.py --out DIR  # writes them elsewhere, for a comparison

Nine cases: three models, each with a head for masked tokens, one for labels, and without one for vectors of rows. Rows are of
different lengths and padded. Names are those of README.md; vectors are `embedding:<pooling>`. Everything runs in float32 on one
CPU thread from fixed seeds, so a second run writes the same bytes.
"""

import argparse
import copy
import os

import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file

from make_golden import IGNORE, adamw_groups, fresh, randomise, relative, save_model, STEPS

LENGTHS = [11, 1, 17, 5, 17, 8]
PAIR_SCALE = 20.0
BERT = dict(
    vocab_size=67,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
CONFIGS = {
    "bert": lambda **more: hf.BertConfig(**BERT, type_vocab_size=2, pad_token_id=0, **more),
    "roberta": lambda **more: hf.RobertaConfig(
        **BERT, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, bos_token_id=0, eos_token_id=2, **more
    ),
    "distilbert": lambda **more: hf.DistilBertConfig(
        vocab_size=67,
        dim=40,
        hidden_dim=56,
        n_layers=2,
        n_heads=5,
        max_position_embeddings=20,
        dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=0,
        **more,
    ),
}
CLASSES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
LABELS = 5


def make_rows(config, generator):
    """ids, segments and the mask of rows of LENGTHS; padding is what the config says."""
    batch, time = len(LENGTHS), max(LENGTHS)
    ids = torch.randint(3, config.vocab_size, (batch, time), generator=generator)
    types = torch.zeros(batch, time, dtype=torch.long)
    kinds = getattr(config, "type_vocab_size", 0)
    mask = torch.arange(time)[None, :] < torch.tensor(LENGTHS)[:, None]
    if kinds > 1:
        types[:, time // 3 :] = 1
    ids[~mask] = config.pad_token_id
    return ids, types, mask


def forward(model, rows):
    ids, types, mask = rows
    more = {"token_type_ids": types} if getattr(model.config, "type_vocab_size", 0) > 1 else {}
    return model(input_ids=ids, attention_mask=mask.long(), **more)


def pooled(hidden, mask, how):
    if how.startswith("mean"):
        m = mask.unsqueeze(-1).float()
        vector = (hidden * m).sum(1) / m.sum(1)
    else:
        vector = hidden[:, 0]
    return F.normalize(vector, dim=1) if how.endswith("1") else vector


def token_loss(model, rows, targets):
    logits = forward(model, rows).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=IGNORE), logits


def pair_loss(model, rows, targets):
    vectors = pooled(forward(model, rows).last_hidden_state, rows[2], "mean1")
    half = len(vectors) // 2
    cosines = vectors[:half] @ vectors[half:].T
    return F.cross_entropy(PAIR_SCALE * cosines, targets, ignore_index=IGNORE), cosines


def run(model, rows, targets, loss_of):
    model.zero_grad()
    loss, out = loss_of(model, rows, targets)
    loss.backward()
    grads = {n: p.grad.detach().clone().float() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), out.detach().float(), grads


def adamw_losses(model, rows, targets, loss_of):
    optimizer = adamw_groups(model)
    losses = []
    for _ in range(STEPS):
        losses.append(run(model, rows, targets, loss_of)[0])
        optimizer.step()
    return torch.stack(losses)


def expected(model, rows, targets, loss_of):
    loss, out, grads = run(model, rows, targets, loss_of)
    narrow = run(copy.deepcopy(model).to(torch.bfloat16), rows, targets, loss_of)
    mask = rows[2]
    numbers = {
        "ids": rows[0].to(torch.int32),
        "types": rows[1].to(torch.int32),
        "lengths": torch.tensor(LENGTHS, dtype=torch.int32),
        "pos": torch.arange(mask.shape[1]).expand(mask.shape[0], -1).to(torch.int32),
        "targets": targets.to(torch.int32),
        "loss": loss.reshape(1),
        "losses": adamw_losses(copy.deepcopy(model), rows, targets, loss_of),
    }
    if loss_of is token_loss:
        numbers["logits"] = torch.where(mask.unsqueeze(-1), out, 0)  # what stands at padding is nobody's
    else:
        with torch.no_grad():
            hidden = forward(model, rows).last_hidden_state
            for how in ("mean0", "mean1", "first0", "first1"):
                numbers["embedding:" + how] = pooled(hidden, mask, how)
    for name, grad in grads.items():
        numbers["grad:" + name] = grad
        numbers["bf16err:" + name] = relative(narrow[2][name], grad)
    return {name: value.contiguous() for name, value in numbers.items()}


def make_targets(task, config, rows, generator):
    mask = rows[2]
    if task == "pairs":
        return torch.arange(len(LENGTHS) // 2)
    most = config.vocab_size if task == "tokens" else LABELS
    targets = torch.randint(0, most, mask.shape, generator=generator)
    targets[~mask] = IGNORE
    if task == "tokens":  # some are asked for, as where tokens are masked
        targets[torch.rand(mask.shape, generator=generator) < 0.6] = IGNORE
    return targets


def make_case(root, kind, task, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    more = {"num_labels": LABELS} if task == "labels" else {}
    suffix = {"tokens": "ForMaskedLM", "labels": "ForTokenClassification", "pairs": "Model"}[task]
    model = getattr(hf, CLASSES[kind] + suffix)(CONFIGS[kind](**more)).eval()
    randomise(model, generator)
    rows = make_rows(model.config, generator)
    targets = make_targets(task, model.config, rows, generator)
    folder = fresh(root, f"{kind}-{task}")
    save_model(model, folder)
    numbers = expected(model, rows, targets, pair_loss if task == "pairs" else token_loss)
    save_file(numbers, os.path.join(folder, "expected.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--seed", type=int, default=0, help="other weights and tokens, for a live comparison")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for number, (kind, task) in enumerate((k, t) for k in CONFIGS for t in ("tokens", "labels", "pairs")):
        make_case(args.out, kind, task, 3000 + args.seed + number)


if __name__ == "__main__":
    main()
