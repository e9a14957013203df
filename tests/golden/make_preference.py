#!/usr/bin/env python3
"""Losses of preferences and their gradients as TRL computes them, for test_preference.c.

    python tests/golden/make_preference.py            # needs torch, transformers and trl; rewrites tests/golden/preference
    python tests/golden/make_preference.py --out DIR  # writes it elsewhere, for a comparison

The model is llama-tied's. Reference log-probabilities come from a copy with other weights. Each case has its mean loss, the
sum of squares of every gradient, two gradients in full, and the rewards that TRL logs. Everything is float32 on one thread.
"""
import argparse
import json
import os
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
PAIRS, TIME, VOCAB, PAD = 12, 24, 128, 0
FULL = ["model.norm.weight", "model.layers.0.self_attn.q_proj.weight"]
DPO = {
    "sigmoid": dict(loss_type=["sigmoid"], beta=0.1),
    "hinge": dict(loss_type=["hinge"], beta=0.4),
    "ipo": dict(loss_type=["ipo"], beta=0.2),
    "sigmoid_norm": dict(loss_type=["sigmoid_norm"], beta=2.0),
    "robust": dict(loss_type=["robust"], beta=0.1, label_smoothing=0.2),
    "apo_zero": dict(loss_type=["apo_zero"], beta=0.1),
    "apo_down": dict(loss_type=["apo_down"], beta=0.1),
    "sft": dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5], beta=0.1),
}


def tokenizer():
    """Words t0, t1, ... are their own ids."""
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t1"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t2", unk_token="t1")


def samples():
    draw = torch.Generator().manual_seed(7)
    def number(low, high): return int(torch.randint(low, high, (1,), generator=draw))
    def tokens(n): return torch.randint(3, VOCAB, (n,), generator=draw).tolist()
    return [dict(prompt=tokens(number(1, 9)), chosen=tokens(number(2, 13)), rejected=tokens(number(2, 13)), good=i % 3 != 0)
            for i in range(PAIRS)]


def rows(prompts, completions):
    """ids and targets as Plimsoll feeds them, [B,T]; -1: no target. And TRL's arrays."""
    ids, targets = torch.zeros(len(prompts), TIME, dtype=torch.int32), torch.full((len(prompts), TIME), -1, dtype=torch.int32)
    trl_ids = torch.full((len(prompts), TIME + 1), PAD)
    seen, mask = torch.zeros_like(trl_ids), torch.zeros_like(trl_ids)
    for i, (prompt, completion) in enumerate(zip(prompts, completions)):
        row = prompt + completion
        ids[i, : len(row) - 1] = torch.tensor(row[:-1])
        targets[i, len(prompt) - 1 : len(row) - 1] = torch.tensor(completion)
        trl_ids[i, : len(row)] = torch.tensor(row)
        seen[i, : len(row)] = 1
        mask[i, len(prompt) : len(row)] = 1
    return ids, targets, trl_ids, seen, mask


def logps(model, trl_ids, seen, mask):
    with torch.no_grad():
        logits = model(input_ids=trl_ids, attention_mask=seen).logits[:, :-1].log_softmax(-1)
    there = logits.gather(-1, trl_ids[:, 1:, None])[..., 0]
    return (there * mask[:, 1:]).sum(-1)


def note(name, out, facts, model, loss, metrics):
    facts[name] = dict(loss=loss.item(), squares={}, **{k: v for k, v in metrics.items()})
    for key, parameter in model.named_parameters():
        facts[name]["squares"][key] = (parameter.grad.double() ** 2).sum().item()
        if key in FULL: out[f"{name}:{key}"] = parameter.grad.clone()
    model.zero_grad(set_to_none=True)


def common(folder):
    return dict(output_dir=folder, use_cpu=True, report_to="none", per_device_train_batch_size=PAIRS, bf16=False, fp16=False,
                gradient_checkpointing=False, max_length=None, disable_tqdm=True)


def last(trainer): return {k: v[-1] for k, v in trainer._metrics["train"].items() if k.split("/")[0] in ("rewards", "logps", "kl")}


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--out", default=os.path.join(HERE, "preference"))
    folder = parse.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(1)
    work, words, data = tempfile.mkdtemp(), tokenizer(), samples()
    load = lambda: LlamaForCausalLM.from_pretrained(os.path.join(HERE, "llama-tied"), dtype=torch.float32, attn_implementation="eager")
    model, other = load(), load()
    with torch.no_grad():
        for parameter in other.parameters(): parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    out, facts = {}, {}
    prompts = [s["prompt"] for s in data]
    ids, targets, trl_ids, seen, mask = rows(prompts * 2, [s["chosen"] for s in data] + [s["rejected"] for s in data])
    reference = logps(other, trl_ids, seen, mask)
    out.update({"ids": ids, "targets": targets, "reference": reference, "marks": torch.tensor([len(p) - 1 for p in prompts] + [0] * PAIRS, dtype=torch.int32)})
    inputs = dict(input_ids=trl_ids, attention_mask=seen, completion_mask=mask,
                  ref_chosen_logps=reference[:PAIRS], ref_rejected_logps=reference[PAIRS:])
    text = lambda tokens: " ".join(f"t{t}" for t in tokens)
    pairs = Dataset.from_list([{k: text(s[k]) for k in ("prompt", "chosen", "rejected")} for s in data])
    for name, config in DPO.items():
        trainer = DPOTrainer(model=model, ref_model=load(), args=DPOConfig(**common(work), **config), processing_class=words, train_dataset=pairs)
        trainer.precompute_ref_logps = True
        trainer.model.train()
        loss = trainer._compute_loss(trainer.model, dict(inputs), False)
        loss.backward()
        note(name, out, facts, model, loss, last(trainer))

    # Unpaired: sample i has its chosen or its rejected completion; the completion of the sample before it is the other one.
    mine = [s["chosen"] if s["good"] else s["rejected"] for s in data]
    ids, targets, trl_ids, seen, mask = rows(prompts * 2, mine + mine[-1:] + mine[:-1])
    reference = logps(other, trl_ids, seen, mask)
    good = torch.tensor([s["good"] for s in data])
    out.update({"kto.ids": ids, "kto.targets": targets, "kto.reference": reference,
                "kto.marks": torch.cat([good, torch.zeros(PAIRS, dtype=torch.bool)]).int()})
    single = Dataset.from_list([dict(prompt=text(s["prompt"]), completion=text(c), label=s["good"]) for s, c in zip(data, mine)])
    trainer = KTOTrainer(model=model, ref_model=load(), processing_class=words, train_dataset=single,
                         args=KTOConfig(**common(work), beta=0.3, desirable_weight=1.5, undesirable_weight=0.75, train_sampling_strategy="sequential"))
    trainer.precompute_ref_logps = True
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, dict(
        input_ids=trl_ids[:PAIRS], attention_mask=seen[:PAIRS], completion_mask=mask[:PAIRS], label=good, ref_logps=reference[:PAIRS],
        KL_input_ids=trl_ids[PAIRS:], KL_attention_mask=seen[PAIRS:], KL_completion_mask=mask[PAIRS:], ref_KL_logps=reference[PAIRS:]), False)
    loss.backward()
    note("kto", out, facts, model, loss, last(trainer))

    # ORPO learns the prompts of chosen rows, too.
    whole = out["targets"].clone()
    for i, s in enumerate(data): whole[i, : len(s["prompt"]) + len(s["chosen"]) - 1] = torch.tensor((s["prompt"] + s["chosen"])[1:])
    out["orpo.targets"] = whole
    config = common(work)
    config["max_length"] = 2 * TIME
    trainer = ORPOTrainer(model=model, processing_class=words, train_dataset=pairs, args=ORPOConfig(**config, beta=0.5, remove_unused_columns=False))
    def side(name):
        full = [s["prompt"] + s[name] for s in data]
        width = max(len(f) for f in full)
        labels = [[-100] * len(s["prompt"]) + s[name] + [-100] * (width - len(f)) for s, f in zip(data, full)]
        return {f"{name}_input_ids": torch.tensor([f + [PAD] * (width - len(f)) for f in full]),
                f"{name}_attention_mask": torch.tensor([[1] * len(f) + [0] * (width - len(f)) for f in full]),
                f"{name}_labels": torch.tensor(labels)}
    trainer.model.train()
    loss, metrics = trainer.get_batch_loss_metrics(trainer.model, {**side("chosen"), **side("rejected")})
    loss.backward()
    note("orpo", out, facts, model, loss, {k: v for k, v in metrics.items() if k.split("/")[0] in ("rewards", "logps", "nll_loss")})

    os.makedirs(folder, exist_ok=True)
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "expected.json"), "w") as f: json.dump(facts, f, indent=1, sort_keys=True), f.write("\n")
    with open(os.path.join(folder, "MODEL"), "w") as f: f.write("llama-tied\n")


main()
