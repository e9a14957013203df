#!/usr/bin/env python3
"""Golden numbers of adapters, from PEFT and transformers.

    python tests/golden/make_adapters.py              # rewrites the cases in COMMITTED beside this file
    python tests/golden/make_adapters.py --out DIR    # makes every case elsewhere, for a live comparison

A case is a folder that PEFT wrote (adapter_config.json, adapter_model.safetensors) for the model of another case, which its file
MODEL names, and expected.safetensors: that case's rows, logits, the gradient of every tensor of the adapter by its name in PEFT's
file, ten AdamW losses, and the sum of squares of each merged weight. `fp32err:logits`, `fp32err:gradients` (the worst tensor) and
`fp32err:losses` (the worst step) are the relative errors of PyTorch's own float32 run.

Weights are float32; what is computed from them is float64, rounded once when it is written, so that the rounding of two float32 programs is
not mistaken for a difference between them. Rotary angles stay float32, which transformers computes them in for models of every type. A case
has to be one that float32 can decide, by the float64 numbers alone: rounding its weights (ROUNDINGS times, at random) moves no gradient by more
than STEADY, and no gradient of the first step is so near zero that rounding could give it either sign, because AdamW's first step is the sign.
Cases that are not are drawn again. An adapter changes its weights by about a tenth, whatever its scale: with much more, scores are large,
softmaxes saturate, and hardly any draw is steady. One CPU thread, fixed seeds."""
import argparse
import contextlib
import copy
import functools
import importlib.util
import json
import os
import shutil

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from make_golden import ADAMW, IGNORE, STEPS, WEIGHT_DECAY, router_loss, total_loss

HERE = os.path.dirname(os.path.abspath(__file__))
CHANGE = 0.15  # standard deviation of B times the adapter's scale
ROUNDINGS, STEADY = 4, 2.5e-6  # a quarter of the tolerance, GOLDEN_TOLERANCE
UNDECIDED = 3e-5  # of a gradient's root mean square: the sign of smaller elements may be rounding
ZERO = 1e-12  # of the same: gradients that are zero but for float64's own rounding, like those of keys' biases
DRAWS = 20

ALL = dict(target_modules="all-linear", r=3, lora_alpha=7)
QV = dict(target_modules=["q_proj", "v_proj"], r=3, lora_alpha=6)
CASES = {
    "adapter-llama": ("llama-tied", ALL),
    "adapter-llama-part": ("llama-untied", dict(target_modules=["q_proj", "v_proj", "mlp.down_proj"], r=4, lora_alpha=8, use_rslora=True, layers_to_transform=[1], rank_pattern={"v_proj": 2}, alpha_pattern={r".*\.down_proj": 3})),
    "adapter-qwen2-dora": ("qwen2", dict(ALL, use_dora=True)),
    "adapter-gemma3": ("gemma3", dict(ALL, use_rslora=True)),
    "adapter-gpt2": ("gpt2", dict(ALL, bias="all", fan_in_fan_out=True)),
    "adapter-phi3": ("phi3", dict(ALL, exclude_modules=["o_proj"])),
    "adapter-qwen2_moe": ("qwen2_moe", dict(ALL, modules_to_save=["lm_head"])),
    "adapter-bert": ("bert-tokens", dict(target_modules=["query", "value", "output.dense"], r=3, lora_alpha=6)),
    "adapter-t5": ("t5-v10", dict(target_modules=r".*\.(q|v|wo)", r=3, lora_alpha=6)),
    "adapter-llama-head": ("llama-untied", dict(target_modules=["k_proj", "lm_head"], r=3, lora_alpha=6)),
    "adapter-llama-embed": ("llama-untied", dict(target_modules=["embed_tokens", "v_proj"], r=3, lora_alpha=6)),
    "adapter-llama-dora-all": ("llama-untied", dict(target_modules=["embed_tokens", "q_proj", "down_proj", "lm_head"], r=3, lora_alpha=6, use_dora=True)),
    "adapter-gpt2-dora": ("gpt2", dict(target_modules=["c_attn", "c_fc", "c_proj", "wpe"], r=3, lora_alpha=7, use_dora=True, fan_in_fan_out=True)),
    "adapter-nf4-dora": ("quantised/nf4", dict(ALL, use_dora=True)),
    # Live only.
    "adapter-qwen3-head": ("qwen3", dict(target_modules=["lm_head"], r=3, lora_alpha=6)),
    "adapter-llama-dora": ("llama-tied", dict(ALL, use_dora=True)),
    "adapter-llama-dora-rs": ("llama-untied", dict(QV, use_dora=True, use_rslora=True)),
    "adapter-mistral": ("mistral", ALL),
    "adapter-qwen2": ("qwen2", dict(ALL, bias="lora_only")),
    "adapter-qwen3": ("qwen3", ALL),
    "adapter-gemma2": ("gemma2", QV),
    "adapter-gemma3-dora": ("gemma3", dict(QV, use_dora=True)),
    "adapter-olmo2": ("olmo2", ALL),
    "adapter-smollm3": ("smollm3", dict(ALL, use_rslora=True)),
    "adapter-granite": ("granite", dict(ALL, use_dora=True)),
    "adapter-mixtral": ("mixtral", QV),
    "adapter-qwen3_moe": ("qwen3_moe", QV),
    "adapter-olmoe": ("olmoe", QV),
    "adapter-bert-dora": ("bert-tokens", dict(ALL, use_dora=True)),
    "adapter-roberta": ("roberta-tokens", ALL),
    "adapter-distilbert": ("distilbert-tokens", ALL),
    "adapter-roberta-embed": ("roberta-tokens", dict(target_modules=["position_embeddings", "query"], r=3, lora_alpha=6, use_dora=True)),
    "adapter-gpt2-wpe": ("gpt2", dict(target_modules=["wpe", "c_fc"], r=3, lora_alpha=6, fan_in_fan_out=True)),
    "adapter-t5-v11": ("t5-v11", dict(target_modules=r".*\.(q|v|wi_0|wi_1|wo)", r=3, lora_alpha=6)),
}
COMMITTED = list(CASES)[:14]

# Every family with every kind of adapter, for a live comparison. Experts of a mixture are no modules of PEFT's.
FAMILIES = {**{m: ALL for m in ("llama-tied", "mistral", "qwen2", "qwen3", "gemma3", "gpt2", "phi3", "olmo2", "smollm3", "granite", "qwen2_moe", "bert-tokens", "roberta-tokens",
                                "distilbert-tokens")},
            **{m: QV for m in ("gemma2", "mixtral", "qwen3_moe", "olmoe")}, "t5-v11": dict(target_modules=r".*\.(q|v|wi_0|wi_1|wo)", r=3, lora_alpha=6)}
KINDS = {"lora": {}, "rslora": dict(use_rslora=True), "dora": dict(use_dora=True)}
for family, linear in FAMILIES.items():
    for kind, more in KINDS.items():
        settings = dict(linear, **more, **(dict(fan_in_fan_out=True) if family == "gpt2" else {}))
        if (family, settings) in CASES.values(): continue
        name = f"adapter-{family}-{kind}"
        CASES[name if name not in CASES else f"{name}-all"] = (family, settings)


def load_blocks(folder):
    """A folder of bitsandbytes, whose weights are widened to fp32."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", device_map="cpu")
    for module in model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = module.weight.quant_state.dtype = torch.float32
            module.support_avx512bf16_for_cpu = False  # it would keep the blocks' scales in bfloat16
        else:
            for p in module.parameters(recurse=False): p.data = p.data.float()
    return model


def rows_of(base, model):
    """The rows of the model's own case, or random ones."""
    path = os.path.join(base, model, "expected.safetensors")
    if os.path.exists(path): return {k: v for k, v in load_file(path).items() if k in ("ids", "pos", "targets", "lengths", "types", "source.ids", "source.lengths")}
    ids = torch.randint(3, 256, (2, 17), dtype=torch.int32)
    return dict(ids=ids[:, :-1].contiguous(), pos=torch.arange(16, dtype=torch.int32).repeat(2, 1), targets=ids[:, 1:].contiguous())


def load(folder, model):
    if model.startswith("quantised/"): return load_blocks(folder)
    kind = AutoModelForSeq2SeqLM if model.startswith("t5") else AutoModelForMaskedLM if model.endswith("-tokens") else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **({"experts_implementation": "eager"} if "mo" in model or "mixtral" in model else {}))


def forward(model, rows):
    ids = rows["ids"].long()
    if "source.ids" in rows:
        mask = torch.arange(rows["source.ids"].shape[1])[None] < rows["source.lengths"][:, None]
        return model(input_ids=rows["source.ids"].long(), attention_mask=mask.long(), decoder_input_ids=ids)
    if "lengths" in rows and "types" in rows or "lengths" in rows:
        mask = torch.arange(ids.shape[1])[None] < rows["lengths"][:, None]
        more = dict(token_type_ids=rows["types"].long()) if "types" in rows else {}
        return model(input_ids=ids, attention_mask=mask.long(), **more)
    return model(input_ids=ids)


def loss_of(model, rows):
    targets = rows["targets"].long()
    targets = torch.where(targets < 0, torch.full_like(targets, IGNORE), targets)
    made = forward(model, rows)
    count = int((targets != IGNORE).sum())
    return total_loss(made.logits, targets) / count + router_loss(model.config, made), made.logits


def gradients(model):
    """By the names that PEFT's file has."""
    values = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    named = get_peft_model_state_dict(model, state_dict={**{k: v for k, v in model.state_dict().items()}, **values})
    return {f"grad:{k}": v.detach().clone().contiguous() for k, v in named.items() if not k.endswith(".base_layer.weight")}


class Exact(TorchFunctionMode):
    """Models narrow to float32 by name (norms, softmax, losses), meant as widening of bfloat16: with it, float64 stays float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(map(is_wide, args)):
            if func is torch.Tensor.float: return args[0]
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in kwargs.items()}
        made = func(*args, **kwargs)
        narrowed = isinstance(made, torch.Tensor) and made.dtype == torch.float32 and any(map(is_wide, args))
        assert not narrowed, f"{func} made float32 of float64"
        return made


def is_wide(value):
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def dequantised(module):
    """The weight of a module of bitsandbytes, whose own products have no float64."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(module.weight.data, module.weight.quant_state)


def widened(model):
    """A copy with parameters in float64. Buffers, which are rotary frequencies and constants, stay."""
    wide = copy.deepcopy(model)
    for module in wide.modules():
        if hasattr(module, "compute_dtype"): module.forward = functools.partial(torch.nn.functional.linear, weight=dequantised(module).double())
    for p in wide.parameters():
        if p.dtype == torch.float32: p.data = p.data.double()
    return wide


def first_step(model, rows, mode):
    """Logits and the gradients of what is trained."""
    with mode:
        loss, logits = loss_of(model, rows)
        loss.backward()
    return logits.detach(), gradients(model)


def adamw_losses(model, rows, mode):
    """The loss before each of STEPS updates."""
    wide = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    narrow = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=wide, weight_decay=WEIGHT_DECAY), dict(params=narrow, weight_decay=0.0)], foreach=False, **ADAMW)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with mode:
            loss, _ = loss_of(model, rows)
            loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses)


def has_signs(model):
    """False: rounding to float32 may turn the sign of some gradient, and with it AdamW's first step."""
    for p in model.parameters():
        if not p.requires_grad or p.grad is None: continue
        size, mean = p.grad.abs(), p.grad.pow(2).mean().sqrt()
        if ((size > ZERO * mean) & (size < UNDECIDED * mean)).any(): return False
    return True


def is_steady(model, rows, grads):
    """False: gradients depend on the last bit of the weights."""
    for _ in range(ROUNDINGS):
        rounded = copy.deepcopy(model)
        rounded.zero_grad()
        with torch.no_grad():
            for p in rounded.parameters():
                if is_wide(p): p.mul_(1 + (2 * torch.rand_like(p) - 1) * 2.0**-24)
        _, moved = first_step(rounded, rows, Exact())
        if not all(relative(moved[k], grads[k]) <= STEADY for k in grads): return False
    return True


def draw_adapter(folder, model_name, settings, seed):
    """A model with an adapter that changes it."""
    torch.manual_seed(seed)
    model = load(folder, model_name)
    model.config.use_cache = False
    task = "SEQ_2_SEQ_LM" if model_name.startswith("t5") else None if model_name.endswith("-tokens") else "CAUSAL_LM"
    model = get_peft_model(model, LoraConfig(task_type=task, **settings)).eval()
    with torch.no_grad():
        for layer in [m for m in model.modules() if isinstance(m, LoraLayer)]:
            for p in [*layer.lora_B.parameters(), *layer.lora_embedding_A.parameters()]: p.normal_(0, CHANGE / layer.scaling["default"])
            for p in layer.lora_magnitude_vector.parameters(): p.mul_(0.9 + 0.2 * torch.rand_like(p))
    return model


def draw(folder, rows, model_name, settings, seed):
    """The model, its widened copy, and the first step of that one."""
    for attempt in range(DRAWS):
        model = draw_adapter(folder, model_name, settings, seed + 1000 * attempt)
        wide = widened(model)
        logits, grads = first_step(wide, rows, Exact())
        assert all(is_wide(v) and v.isfinite().all() for v in (logits, *grads.values()))
        if has_signs(wide) and is_steady(wide, rows, grads): return model, wide, logits, grads
    raise SystemExit(f"{model_name}: {DRAWS} draws, and float32 can decide none of them")


def relative(have, want):
    """As golden_error of golden.c: the error itself where nothing is expected."""
    error, norm = torch.linalg.vector_norm(have.double() - want), torch.linalg.vector_norm(want)
    return error / norm if norm > 1e-7 else error


def without_padding(logits, rows):
    if "lengths" not in rows: return logits
    return logits * (torch.arange(logits.shape[1])[None] < rows["lengths"][:, None])[..., None]


def make(folder, base, name, model_name, settings, seed):
    path, out = os.path.join(base, model_name), os.path.join(folder, name)
    torch.manual_seed(seed)
    rows = rows_of(base, model_name)
    model, wide, logits, grads = draw(path, rows, model_name, settings, seed)
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    tidy(os.path.join(out, "adapter_config.json"), model_name)
    if os.path.exists(os.path.join(out, "README.md")): os.remove(os.path.join(out, "README.md"))
    with open(os.path.join(out, "MODEL"), "w") as f: f.write(model_name + "\n")
    losses = adamw_losses(wide, rows, Exact())
    expected = {"logits": logits, **grads, "losses": losses}
    expected = {**rows, **{k: v.float().contiguous() for k, v in expected.items()}}
    narrow_logits, narrow_grads = first_step(model, rows, contextlib.nullcontext())
    narrow_losses = adamw_losses(model, rows, contextlib.nullcontext())
    expected["fp32err:logits"] = relative(without_padding(narrow_logits, rows), without_padding(logits, rows)).float().reshape(1)
    expected["fp32err:gradients"] = max(relative(narrow_grads[k], grads[k]) for k in grads).float().reshape(1)
    expected["fp32err:losses"] = ((narrow_losses.double() - losses) / losses).abs().max().float().reshape(1)
    merged = {} if model_name.startswith("quantised/") else get_merged(load(path, model_name), out)
    for k, v in merged.items(): expected["merged:" + k] = v
    save_file(expected, os.path.join(out, "expected.safetensors"))


def tidy(path, model_name):
    """The same bytes wherever and whenever it is made."""
    with open(path) as f: config = json.load(f)
    config["base_model_name_or_path"] = model_name
    if isinstance(config["target_modules"], list): config["target_modules"].sort()
    with open(path, "w") as f: json.dump(config, f, indent=2, sort_keys=True)


def get_merged(model, adapter):
    """The sum of each weight's squares after PEFT has merged the adapter, of those that it changes."""
    from peft import PeftModel

    before = {k: v.clone() for k, v in model.state_dict().items()}
    after = PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict()
    return {k: torch.stack([v.double().pow(2).sum(), v.double().sum()]) for k, v in after.items() if k in before and not torch.equal(v, before[k])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=None, help="default: the committed cases, beside this file")
    parser.add_argument("--base", default=HERE, help="folder of the models' cases")
    parser.add_argument("--only", nargs="*", default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for seed, (name, (model, settings)) in enumerate(CASES.items(), 500):
        if args.only is not None and name not in args.only: continue
        if args.only is None and args.out is None and name not in COMMITTED: continue
        if args.out and model.startswith("quantised/") and not importlib.util.find_spec("bitsandbytes"): continue
        make(args.out or HERE, args.base, name, model, settings, seed)


if __name__ == "__main__":
    main()
