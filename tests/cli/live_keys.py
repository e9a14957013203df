#!/usr/bin/env python3
"""what is trained is what is saved, for every key of every architecture: the loss that training measures at its end is
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
# The other decoders: keys that only some of them have, and what they make of those that all have.
EXTRAS = {
    "qwen3": dict(head_dim=24, sliding_window=9, rope_theta=77.5, rms_norm_eps=0.03),
    "gemma2": dict(head_dim=24, sliding_window=9, sliding_window_pattern=3, query_pre_attn_scalar=5, attn_logit_softcapping=2,
                   final_logit_softcapping=0, tie_word_embeddings="false", num_attention_heads=2),
    "gemma3": dict(sliding_window=0, sliding_window_pattern=3, rope_local_base_freq=55, query_pre_attn_scalar=5, final_logit_softcapping=3),
    "phi3": dict(sliding_window=9, partial_rotary_factor=0.5, head_dim=24, intermediate_size=101),
    "olmo2": dict(rms_norm_eps=0.03, num_key_value_heads=1, rope_theta=77.5),
    "smollm3": dict(no_rope_layer_interval=0, sliding_window=9, tie_word_embeddings="false"),
    "granite": dict(embedding_multiplier=6, attention_multiplier=0.1, residual_multiplier=0.4, logits_scaling=3, num_key_value_heads=1),
    "mixtral": dict(num_experts=3, num_experts_per_tok=1, sliding_window=9, intermediate_size=60),
    "qwen3_moe": dict(num_experts=9, num_experts_per_tok=4, norm_topk_prob="true", intermediate_size=60, rms_norm_eps=0.03),
    "qwen2_moe": dict(num_experts=5, num_experts_per_tok=2, shared_expert_intermediate_size=44, intermediate_size=60, norm_topk_prob="true"),
    "olmoe": dict(num_experts=9, num_experts_per_tok=5, norm_topk_prob="true", num_key_value_heads=1, intermediate_size=60),
}
NEVER = {"llama": ("sliding_window_pattern=2", "query_pre_attn_scalar=5", "final_logit_softcapping=5", "no_rope_layer_interval=2"),
         "qwen3": ("partial_rotary_factor=0.5", "attn_logit_softcapping=5"), "gemma3": ("attn_logit_softcapping=5",),
         "phi3": ("rope_local_base_freq=55", "sliding_window_pattern=2"), "olmo2": ("sliding_window=9",)}
LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.4, 1.5, 1.7, 1.9, 2.5], "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0}
# What only a config.json can ask for.
FILES = {
    "llama yarn": dict(model_type="llama", rope_scaling=dict(YARN)),
    "qwen2 yarn": dict(model_type="qwen2", rope_scaling=dict(YARN, mscale=0.8, mscale_all_dim=0.4)),
    "qwen3 biases and mixed windows": dict(model_type="qwen3", attention_bias=True, use_sliding_window=True, sliding_window=9, head_dim=16,
                                           layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "gemma3 scaled": dict(model_type="gemma3_text", head_dim=16, sliding_window=9, rope_local_base_freq=50.0, rope_theta=5000.0,
                          layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "phi3 long": dict(model_type="phi3", original_max_position_embeddings=32, rope_scaling=dict(LONG), pad_token_id=0, eos_token_id=2),
    "phi3 short": dict(model_type="phi3", original_max_position_embeddings=128, rope_scaling=dict(LONG), pad_token_id=0, eos_token_id=2),
    "olmo2 biases": dict(model_type="olmo2", attention_bias=True, pad_token_id=0, eos_token_id=2),
    "smollm3 listed": dict(model_type="smollm3", no_rope_layers=[0, 1, 1], mlp_bias=True, rope_scaling=dict(YARN, attention_factor=1.5), pad_token_id=0,
                           bos_token_id=1, eos_token_id=2),
    "llama biases": dict(model_type="llama", attention_bias=True, mlp_bias=True),
    "llama linear": dict(model_type="llama", rope_scaling={"rope_type": "linear", "factor": 3.0}),
    "llama llama3": dict(model_type="llama", rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    "qwen2 late windows": dict(model_type="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "mistral without a window": dict(model_type="mistral", sliding_window=None),
}


SIZES = dict(vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256, tie_word_embeddings=False, initializer_range=0.2)


def transformers_loss(folder):
    text = plim.CORPUS.encode()
    rows = torch.tensor([list(text[r * TIME:r * TIME + TIME + 1]) for r in range(ROWS)])
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager")
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
    for arch, values in EXTRAS.items():
        path_ = plim.job(folder_, model__architecture=arch, **small)
        for key, value in values.items(): follow(f"{arch}-{key}", folder_, path_, "--set", f"model.{key}={value}")
    for arch, assignments in NEVER.items():
        path_ = plim.job(folder_, model__architecture=arch, **small)
        for never in assignments:
            result = plim.run("train", path_, "-q", "--set", f"model.{never}", "--set", f"output.dir={folder_}/never")
            plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and never.split("=")[0] in result.stderr, f"{arch} {never}: refused: {result.stderr.strip()}")
    for name_, keys in FILES.items():
        config = AutoConfig.for_model(**{**SIZES, **keys})
        torch.manual_seed(1)
        model_ = AutoModelForCausalLM.from_config(config)
        for name, p in model_.named_parameters():
            if name.endswith("bias"): torch.nn.init.normal_(p, std=0.2)
        start = f"{folder_}/start"
        model_.save_pretrained(start)
        path_ = plim.job(folder_, model__architecture='""', model__tie_word_embeddings="false", **small)
        follow(name_.replace(" ", "-"), folder_, path_, "--set", f"model.path={start}")
plim.done()
