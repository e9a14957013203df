"""What bench/gpu/compare.py measures: models, cases, groups of cases, and the job file of each.

A case's name says it: model, then what is kept besides bf16 compute (nothing: fp32 master and moments with bf16
gradients; f32grad: fp32 gradients too, as PyTorch has under autocast; bf16: weights, moments and gradients all bf16; lora: an
adapter of rank 16 of all linear layers; nf4: the same over a base in 4 bits; fp8: products in fp8), then the budget in GiB where there is one.
"""
import json
import os
import random
import string
from dataclasses import dataclass

import base_folder
import token_file

GIB = 2**30
WARM_UP = 3  # steps before measuring, of us and of PyTorch
STEPS = 8  # steps measured unless --steps says otherwise, of us and of PyTorch

MODELS = {
    "llama1b": dict(architecture="llama", vocab=128256, hidden=2048, inter=8192, layers=16, heads=32, kv=8, tie=True),
    "llama8b": dict(architecture="llama", vocab=128256, hidden=4096, inter=14336, layers=32, heads=32, kv=8, tie=False),
    "llama70b": dict(architecture="llama", vocab=128256, hidden=8192, inter=28672, layers=80, heads=64, kv=8, tie=False),
    # T5 1.1 XL, FLAN-T5 XL: rows of `time` target tokens and as many source tokens.
    "t5xl": dict(architecture="t5", vocab=32128, hidden=2048, inter=5120, layers=24, heads=32, kv=32, head_dim=64, tie=False),
    "gpt2": dict(architecture="gpt2", vocab=50304, hidden=768, inter=3072, layers=12, heads=12, kv=12, tie=True),
}

# What is on for each way of running PyTorch; torch_step.py says what each means.
VARIANTS = {
    "compile": dict(compile=True),
    "compile-stock": dict(compile=True, stock=True),
    "compile-checkpointing": dict(compile=True, checkpointing=True),
    "checkpointing": dict(checkpointing=True),
    "peft": dict(peft=True),
    "peft-compile": dict(peft=True, compile=True),
    "peft-checkpointing": dict(peft=True, checkpointing=True),
}


@dataclass(frozen=True)
class Case:
    model: str
    batch: int
    time: int
    accumulation: int = 1
    state: str = "fp32"  # master and moments
    gradients: str = "bf16"  # of ours; PyTorch's are fp32 with an fp32 state and bf16 with a bf16 state
    budget_gib: float = None
    host_gib: float = None
    torch: tuple = ()  # variants measured beside it
    rival: str = None  # the case whose PyTorch it is compared with
    precision: str = "bf16"  # training.mixed_precision
    lora: int = 0  # rank of an adapter of all linear layers; 0: the model itself is trained
    weights: str = "as-is"  # of the base
    blank: bool = False  # the base is zeros in NF4: its numbers would not fit the disk, and turning them into 4 bits takes minutes
    seconds: float = 30  # about how long our run takes on an H200, the making of its base included: a guess until it was measured
    limit: float = None  # seconds for our run, where --limit is too few
    warm_up: int = WARM_UP  # steps before measuring
    most_steps: int = None  # steps measured, at most: where each takes many seconds

    def measured(self, steps):
        """Steps of ours that are measured when `steps` are asked for."""
        return min(steps, self.most_steps or steps)

    def tokens(self):
        """Tokens of targets, which are what a step of ours counts."""
        return self.batch * self.accumulation * self.time

    def sources(self):
        """Tokens of a step's sources, of an encoder-decoder."""
        return self.tokens() if MODELS[self.model]["architecture"] == "t5" else 0

    def words(self):
        """KEY=VALUE of our run that the mathematics of the case asks for."""
        if self.lora: return ["adapter.type=lora", f"adapter.r={self.lora}", f"adapter.alpha={2 * self.lora}", f"model.weights={self.weights}"]
        narrow = ["training.master_weights=none", "training.state_dtype=bf16"] if self.state == "bf16" else []
        return [f"training.grad_dtype={self.gradients}"] + narrow


LLAMA_1B, GPT2 = Case("llama1b", 4, 2048), Case("gpt2", 32, 1024)
LLAMA_8B = Case("llama8b", 8, 2048, 8, host_gib=100)


def but(case, **changes):
    return Case(**{**case.__dict__, **changes})


def rivals(case, name, budgets, torch, state="fp32"):
    """A case beside PyTorch, and without it under budgets; with an fp32 state also with fp32 gradients."""
    out = {name: but(case, state=state, torch=torch, rival=name)}
    out |= {f"{name}-{int(gib)}": but(case, state=state, budget_gib=gib, rival=name) for gib in budgets}
    if state == "fp32":
        out |= {key.replace(name, f"{name}-f32grad"): but(c, gradients="fp32", torch=()) for key, c in out.items()}
    return out


T5_XL = Case("t5xl", 32, 256, state="bf16")

# Beside a base of 16 GiB in tmpfs a machine of 125 GiB has room for a host budget of 60 GiB.
LORA_1B, LORA_8B = but(LLAMA_1B, lora=16), Case("llama8b", 4, 2048, lora=16, host_gib=60, seconds=25)
NF4_8B = but(LORA_8B, weights="nf4", seconds=60)
NF4_70B = Case("llama70b", 1, 2048, lora=16, blank=True, host_gib=60, seconds=150, limit=400, warm_up=1, most_steps=3)

GROUPS = {
    "lora": {
        "llama1b-lora": but(LORA_1B, torch=("peft", "peft-compile"), rival="llama1b-lora"),
        "llama1b-lora-12": but(LORA_1B, budget_gib=12, rival="llama1b-lora"),
        "llama8b-lora-40": but(LORA_8B, budget_gib=40, torch=("peft-compile", "peft-checkpointing"), rival="llama8b-lora-40"),
        "llama8b-lora-24": but(LORA_8B, budget_gib=24, rival="llama8b-lora-40"),
        "llama8b-lora-64k-24": but(LORA_8B, batch=1, time=65536, budget_gib=24, seconds=90, warm_up=1, most_steps=2),
        "llama8b-nf4-12": but(NF4_8B, budget_gib=12),
        "llama8b-nf4-7": but(NF4_8B, batch=1, accumulation=4, budget_gib=7),
        "llama8b-nf4-5": but(NF4_8B, batch=1, accumulation=4, budget_gib=5),
        "llama70b-nf4-48": but(NF4_70B, budget_gib=48),
        "llama70b-nf4-24": but(NF4_70B, budget_gib=24),
    },
    "t5": {
        # Everything bf16: PyTorch with checkpointing stays within 24 GiB at this batch.
        "t5xl-bf16-24": but(T5_XL, budget_gib=24, torch=("checkpointing", "compile-checkpointing"), rival="t5xl-bf16-24"),
        # The job of the system that is replaced: fp32 master and moments, effective batch 128.
        "t5xl-128-28": but(T5_XL, state="fp32", accumulation=4, budget_gib=28, host_gib=100),
    },
    "table": {
        **rivals(LLAMA_1B, "llama1b", (21.5, 18.8), tuple(VARIANTS)),
        **rivals(LLAMA_1B, "llama1b-bf16", (13.7, 11), ("compile", "compile-stock"), state="bf16"),
        "llama1b-16x4": but(LLAMA_1B, batch=16, accumulation=4, state="bf16", budget_gib=24),
    },
    "gpt2": rivals(GPT2, "gpt2-124m", (9,), ("compile", "compile-stock")),
    "budgets": {
        **{f"llama1b-at-{gib}": but(LLAMA_1B, budget_gib=gib) for gib in (24, 20, 16, 12, 10, 8, 6, 4, 3)},
        **{f"llama1b-f32grad-at-{gib}": but(LLAMA_1B, gradients="fp32", budget_gib=gib) for gib in (24, 20)},
    },
    "fp8": {
        "llama1b-fp8-16x4": but(LLAMA_1B, batch=16, accumulation=4, state="bf16", budget_gib=24, precision="fp8"),
        "llama8b-bf16": but(LLAMA_8B, state="bf16", warm_up=1, most_steps=2),
        "llama8b-fp8": but(LLAMA_8B, state="bf16", precision="fp8", warm_up=1, most_steps=2),
    },
    "8b": {
        "llama8b": LLAMA_8B,
        "llama8b-80": but(LLAMA_8B, budget_gib=80),
        "llama8b-24": but(LLAMA_8B, budget_gib=24),
    },
}
CASES = {name: case for group in GROUPS.values() for name, case in group.items()}


def chosen(text):
    """Names of "a,b,group"; ValueError for a name that is neither a case nor a group."""
    out = []
    for word in text.split(","):
        names = CASES if word == "all" else GROUPS.get(word, [word])
        for name in names:
            if name not in CASES: raise ValueError(f"'{name}' is no case and no group (--list shows them)")
            if name not in out: out.append(name)
    return out


def tokens_path(folder, case, steps):
    """The token file of a case's vocabulary, made when it is first asked for, long enough for every case."""
    vocab = MODELS[case.model]["vocab"]
    path = os.path.join(folder, f"{vocab}.tok")
    if not os.path.exists(path):
        longest = max(c.tokens() for c in CASES.values() if MODELS[c.model]["vocab"] == vocab)
        token_file.write_random(path, vocab, longest * (WARM_UP + steps) + 1)
    return path


def pairs_path(folder, case, steps):
    """Sources and targets of random bytes, each exactly as long as a row: as bytes they are the tokens."""
    path = os.path.join(folder, f"pairs-{case.time}.jsonl")
    if os.path.exists(path): return path
    rows = max(c.batch * c.accumulation for c in CASES.values() if c.sources()) * (WARM_UP + steps) + 1
    draw = random.Random(1)
    with open(path, "w") as f:
        for _ in range(rows):
            source, target = ("".join(draw.choices(string.ascii_letters, k=case.time)) for _ in range(2))
            f.write(json.dumps(dict(source=source, target=target)) + "\n")
    return path


def data_of(folder, case, steps):
    if case.sources():
        return f"{{train: [{pairs_path(folder, case, steps)}], max_length: {case.time}, max_source_length: {case.time}}}"
    return f"{{train: [{tokens_path(folder, case, steps)}], max_length: {case.time}}}"


def base_path(folder, case, dry):
    """The folder that adapters begin with, made when it is first asked for; dry: only its header is right."""
    path = os.path.join(folder, f"{case.model}-base")
    longest = max(c.time for c in CASES.values() if c.model == case.model)
    if not os.path.exists(path): base_folder.make(path, MODELS[case.model], longest, dry, case.blank)
    return path


def model_of(folder, case, dry):
    m = MODELS[case.model]
    if case.lora: return f"{{path: {base_path(folder, case, dry)}}}"
    kv = f"num_key_value_heads: {m['kv']}, rope_theta: 500000.0," if m["architecture"] == "llama" else ""
    if case.sources(): kv = f"head_dim: {m['head_dim']}, feed_forward_proj: gated-gelu,"
    return f"""{{architecture: {m['architecture']}, vocab_size: {m['vocab']}, hidden_size: {m['hidden']},
  intermediate_size: {m['inter']}, num_layers: {m['layers']}, num_attention_heads: {m['heads']}, {kv}
  tie_word_embeddings: {str(m['tie']).lower()}}}"""


def write_job(folder, name, steps, dry=False):
    """The job file of our run; its path."""
    case, path = CASES[name], os.path.join(folder, f"{name}.yaml")
    host = f"host_budget: {int(case.host_gib * GIB)}\n" if case.host_gib else ""
    with open(path, "w") as f:
        f.write(f"""model: {model_of(folder, case, dry)}
data: {data_of(folder, case, steps)}
training: {{batch_size: {case.batch}, gradient_accumulation_steps: {case.accumulation}, steps: {case.warm_up + case.measured(steps)},
  learning_rate: 1e-4, mixed_precision: {case.precision}, max_grad_norm: 1.0, device: cuda}}
output: {{dir: {folder}/run}}
{host}""")
    return path


def torch_config(folder, name, variant, steps):
    """What torch_step.py is told."""
    case = CASES[name]
    return dict(model=MODELS[case.model], lora=case.lora, B=case.batch, T=case.time, accumulation=case.accumulation,
                mode="bf16" if case.lora or case.state == "bf16" else "amp", tokens=tokens_path(folder, case, steps), warm_up=WARM_UP,
                steps=steps, **VARIANTS[variant])
