#!/usr/bin/env python3
"""Exported folders load in transformers, with our loss and our text.

Skips itself where torch is not installed (with_torch.py)."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from with_torch import torch
import plim
from transformers import AutoModelForCausalLM

MODELS = {
    "llama": dict(),
    "mistral": dict(model__architecture="mistral", model__sliding_window=24),
    "qwen2": dict(model__architecture="qwen2"),
    "gpt2": dict(model__architecture="gpt2", model__num_key_value_heads=4, model__max_position_embeddings=256),
    "qwen3": dict(model__architecture="qwen3", model__head_dim=24, model__sliding_window=24, model__tie_word_embeddings="false"),
    "gemma2": dict(model__architecture="gemma2", model__sliding_window=24, model__attn_logit_softcapping=20, model__final_logit_softcapping=10),
    "gemma3": dict(model__architecture="gemma3", model__sliding_window=24, model__sliding_window_pattern=2, model__final_logit_softcapping=10),
    "phi3": dict(model__architecture="phi3", model__partial_rotary_factor=0.75, model__sliding_window=24, model__tie_word_embeddings="false"),
    "olmo2": dict(model__architecture="olmo2", model__tie_word_embeddings="false"),
    "smollm3": dict(model__architecture="smollm3", model__no_rope_layer_interval=2, model__sliding_window=24),
    "granite": dict(model__architecture="granite", model__embedding_multiplier=6, model__attention_multiplier=0.1, model__residual_multiplier=0.4, model__logits_scaling=3),
    "mixtral": dict(model__architecture="mixtral", model__num_experts=5, model__sliding_window=24, model__tie_word_embeddings="false"),
    "qwen3_moe": dict(model__architecture="qwen3_moe", model__num_experts=6, model__num_experts_per_tok=3, model__norm_topk_prob="true",
                      model__head_dim=24, model__intermediate_size=72, model__tie_word_embeddings="false"),
    "qwen2_moe": dict(model__architecture="qwen2_moe", model__num_experts=6, model__num_experts_per_tok=2, model__intermediate_size=40,
                      model__shared_expert_intermediate_size=56, model__tie_word_embeddings="false"),
    "olmoe": dict(model__architecture="olmoe", model__num_experts=9, model__num_experts_per_tok=2, model__intermediate_size=72,
                  model__tie_word_embeddings="false"),
}
ROWS, TIME = 8, 64

with tempfile.TemporaryDirectory() as folder:
    for name, changes in MODELS.items():
        path = plim.job(folder, training__mixed_precision="bf16", training__steps=30, training__learning_rate="3e-3",
                        output__dir=f"{folder}/{name}", **changes)
        trained = plim.run("train", path, "-q")
        if not plim.ok(trained.returncode == 0, f"{name}: trained {trained.stderr.strip()}"): continue
        for dtype, shard in (("f32", "5GB"), ("bf16", "150KB"), ("f16", "5GB")):
            out = f"{folder}/{name}-{dtype}"
            plim.run("export", f"{folder}/{name}", "-o", out, "--dtype", dtype, "--shard-size", shard)
            model, info = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True, attn_implementation="eager")
            strange = {k: v for k, v in info.items() if v}
            plim.ok(not strange, f"{name} {dtype}: transformers finds every tensor and no other {strange}")
            text = plim.CORPUS.encode()
            with torch.no_grad():
                rows = torch.tensor([list(text[r * TIME:r * TIME + TIME + 1]) for r in range(ROWS)])
                logits = model.eval()(rows[:, :-1]).logits.double()
                theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()
                made = model.generate(rows[:1, :40], max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None)[0, 40:].tolist()
            ours = json.loads(plim.run("eval", path, "--json", "-q", "--rows", ROWS, "--model", out,
                                       "--set", "training.mixed_precision=fp32").stdout)["loss"]
            plim.ok(abs(ours - theirs) < 1e-5 * theirs, f"{name} {dtype}: loss {ours:.7f}, transformers says {theirs:.7f}")
            if dtype != "f32": continue
            mine = json.loads(plim.run("generate", "--device", "cpu", out, "-p", text[:40].decode(), "-n", 20, "-t", 0, "-q", "--json").stdout)["tokens"]
            plim.ok(mine == made[:len(mine)] and mine, f"{name}: the likeliest text is the same")


def start_and_row(folder, changes):
    """A model in a folder of its own, and a job that trains it on one row alone, so that every step's gradient is that row's."""
    path = plim.job(folder, training__steps=1, output__dir=f"{folder}/seed", **changes)
    plim.run("train", path, "-q")
    plim.run("export", f"{folder}/seed", "-o", f"{folder}/start", "--dtype", "f32")
    row = plim.CORPUS.encode()[:TIME + 1]
    path = plim.job(folder, training__steps=3, training__optimizer="adafactor", training__batch_size=1, training__gradient_accumulation_steps=1,
                    training__weight_decay=0, training__max_grad_norm=0, training__learning_rate="1e-3", output__dir=f"{folder}/run")
    lines = [line for line in open(path) if line.split(":")[0].strip() not in MODEL_KEYS]
    open(path, "w").write("".join(f"model:\n  path: {folder}/start\n" if line == "model:\n" else line for line in lines))
    open(f"{folder}/corpus.txt", "wb").write(row)
    return path, torch.tensor([list(row)])


MODEL_KEYS = ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads",
              "tie_word_embeddings")
for name in ("llama", "qwen2", "gpt2", "phi3", "gemma2"):
    from transformers.optimization import Adafactor
    with tempfile.TemporaryDirectory() as folder:
        path, row = start_and_row(folder, MODELS[name])
        done = plim.run("train", path, "-q")
        plim.run("export", f"{folder}/run", "-o", f"{folder}/out", "--dtype", "f32")
        if not plim.ok(os.path.isdir(f"{folder}/out"), f"{name}: trained {done.stderr.strip()}"): continue
        load = lambda which: AutoModelForCausalLM.from_pretrained(f"{folder}/{which}", dtype=torch.float32, attn_implementation="eager")
        start, model, mine = load("start").state_dict(), load("start"), load("out").state_dict()
        optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False, clip_threshold=1.0, decay_rate=-0.8, beta1=None, weight_decay=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(row[:, :-1]).logits.flatten(0, 1), row[:, 1:].flatten()).backward()
            optimizer.step()
        # GPT-2 has no rotary positions, so a bias of the keys changes nothing: its gradient is rounding alone.
        worst = max((((mine[k] - v).norm() / (v - start[k]).norm()).item(), k) for k, v in model.state_dict().items() if (v - start[k]).norm() > 0 and not k.endswith("c_attn.bias"))
        plim.ok(worst[0] < 2e-3, f"{name}: Adafactor's updates are transformers', each parameter factored by itself: {worst[0]:.2e} at {worst[1]}")
plim.done()
