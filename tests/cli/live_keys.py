#!/usr/bin/env python3
"""B8: what is trained is what is saved, for every key of every architecture: the loss that training measures at its end is
the loss of `eval` on the checkpoint and of transformers on the export. A key that config.json cannot say is refused.

Skips itself where torch is not installed (with_torch.py)."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import plim
from transformers import AutoConfig, AutoModelForCausalLM

ROWS, TIME = 4, 64
ARCHITECTURES = ("llama", "mistral", "qwen2", "gpt2")
BASE = {"llama": dict(), "mistral": dict(), "qwen2": dict(), "gpt2": dict(num_key_value_heads=4)}
# Key -> value other than the default, and the architectures whose config.json cannot say it.
KEYS = {
    "vocab_size": (300, ()), "hidden_size": (96, ()), "intermediate_size": (100, ()), "num_layers": (2, ()),
    "num_attention_heads": (2, ()), "num_key_value_heads": (1, ("gpt2",)), "head_dim": (24, ("gpt2",)),
    "max_position_embeddings": (200, ()), "sliding_window": (9, ("llama", "gpt2")), "rms_norm_eps": (0.03, ()),
    "rope_theta": (77.5, ("gpt2",)), "initializer_range": (0.2, ()), "tie_word_embeddings": ("false", ()),
}
# What only a config.json can ask for.
FILES = {
    "llama biases": dict(model_type="llama", attention_bias=True, mlp_bias=True),
    "llama linear": dict(model_type="llama", rope_scaling={"rope_type": "linear", "factor": 3.0}),
    "llama llama3": dict(model_type="llama", rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    "qwen2 late windows": dict(model_type="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "mistral without a window": dict(model_type="mistral", sliding_window=None),
}


def transformers_loss(folder):
    text = plim.CORPUS.encode()
    rows = torch.tensor([list(text[r * TIME:r * TIME + TIME + 1]) for r in range(ROWS)])
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    with torch.no_grad(): logits = model.eval()(rows[:, :-1]).logits.double()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()
    return loss, {k: v for k, v in info.items() if v}


def follow(name, folder, path, *more):
    """Train, evaluate, export, load elsewhere: one loss."""
    out = ["--set", f"output.dir={folder}/{name}"]
    trained = plim.run("train", path, "-q", *out, *more)
    if not plim.ok(trained.returncode == 0, f"{name}: trained {trained.stderr.strip()}"): return
    inside = [e["loss"] for e in plim.events(trained.stdout) if e["event"] == "eval"][-1]
    evaluated = json.loads(plim.run("eval", path, "-q", "--json", "--rows", ROWS, *out, *more).stdout)["loss"]
    plim.run("export", f"{folder}/{name}", "-o", f"{folder}/{name}-hf", "--dtype", "f32")
    theirs, strange = transformers_loss(f"{folder}/{name}-hf")
    same = abs(inside - theirs) < 1e-5 * theirs and abs(evaluated - inside) < 1e-7 * inside
    plim.ok(same and not strange, f"{name}: {inside:.7f} in training, {evaluated:.7f} in eval, {theirs:.7f} in transformers {strange or ''}")


with tempfile.TemporaryDirectory() as folder_:
    small = dict(training__steps=3, training__learning_rate="1e-2", training__eval_rows=ROWS,
                 data__validation=f"[{folder_}/corpus.txt]")
    for arch in ARCHITECTURES:
        path_ = plim.job(folder_, model__architecture=arch, **small, **{f"model__{k}": v for k, v in BASE[arch].items()})
        for key, (value, never) in KEYS.items():
            sets = ["--set", f"model.{key}={value}"]
            if (arch, key) == ("gpt2", "num_attention_heads"): sets += ["--set", f"model.num_key_value_heads={value}"]
            if arch in never:
                result = plim.run("train", path_, "-q", *sets, "--set", f"output.dir={folder_}/never")
                word = "head" if "head" in key else key
                plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and word in result.stderr, f"{arch} {key}: refused: {result.stderr.strip()}")
            else:
                follow(f"{arch}-{key}", folder_, path_, *sets)
    for name_, keys in FILES.items():
        config = AutoConfig.for_model(**keys, vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
                                      initializer_range=0.2)
        torch.manual_seed(1)
        model_ = AutoModelForCausalLM.from_config(config)
        for name, p in model_.named_parameters():
            if name.endswith("bias"): torch.nn.init.normal_(p, std=0.2)
        start = f"{folder_}/start"
        model_.save_pretrained(start)
        path_ = plim.job(folder_, **{f"model__{k}": '""' for k in ("architecture",)}, **small)
        follow(name_.replace(" ", "-"), folder_, path_, "--set", f"model.path={start}")
plim.done()
