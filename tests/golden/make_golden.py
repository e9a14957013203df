#!/usr/bin/env python3
"""Golden numbers from PyTorch and transformers, for the parity tests.

    python tests/golden/make_golden.py            # rewrites every case beside this file
    python tests/golden/make_golden.py --out DIR  # writes them elsewhere, for a comparison

Each case is a folder with config.json and model.safetensors as transformers would save them, and
expected.safetensors with what the reference computed from them (see README.md for the names).
Everything runs in float32 on one CPU thread from fixed seeds, so a second run writes the same bytes.
"""

import argparse
import copy
import json
import os
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

IGNORE = -100
STEPS = 10
DRAWS = 48
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
WEIGHT_DECAY = 0.1

LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)

CASES = {
    # Grouped heads, scaled rotary frequencies, output projection tied to the embedding.
    "llama-tied": dict(
        make=lambda: LlamaForCausalLM(
            LlamaConfig(
                vocab_size=128,
                hidden_size=64,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=128,
                rms_norm_eps=1e-5,
                rope_parameters=LLAMA3_ROPE,
                tie_word_embeddings=True,
            )
        ),
        batch=2,
        time=32,
    ),
    # One key head per query head, own output projection, vocabulary and rows off the vector widths.
    "llama-untied": dict(
        make=lambda: LlamaForCausalLM(
            LlamaConfig(
                vocab_size=157,
                hidden_size=48,
                intermediate_size=72,
                num_hidden_layers=2,
                num_attention_heads=3,
                max_position_embeddings=64,
                rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type="default", rope_theta=500000.0),
                tie_word_embeddings=False,
            )
        ),
        batch=2,
        time=29,
    ),
    # Window far smaller than the row; heads * head_dim differs from hidden_size.
    "mistral": dict(
        make=lambda: MistralForCausalLM(
            MistralConfig(
                vocab_size=128,
                hidden_size=32,
                intermediate_size=56,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                max_position_embeddings=64,
                rms_norm_eps=1e-5,
                rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                sliding_window=8,
                tie_word_embeddings=False,
            )
        ),
        batch=2,
        time=40,
    ),
    # Biases on query, key and value; the window is configured and switched off, as in the released models.
    "qwen2": dict(
        make=lambda: Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=128,
                hidden_size=48,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=6,
                num_key_value_heads=2,
                max_position_embeddings=64,
                rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
                use_sliding_window=False,
                sliding_window=8,
                max_window_layers=1,
                tie_word_embeddings=True,
            )
        ),
        batch=2,
        time=24,
    ),
    # LayerNorm, learned positions, Conv1D weights, tanh GELU.
    "gpt2": dict(
        make=lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=128,
                n_positions=48,
                n_embd=48,
                n_layer=2,
                n_head=3,
                n_inner=96,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=0,
                eos_token_id=0,
            )
        ),
        batch=2,
        time=32,
    ),
    # Norms of each head, heads wider than the hidden size, a window on the late layers; nothing is a multiple of 8.
    "qwen3": dict(
        make=lambda: Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=107,
                hidden_size=36,
                intermediate_size=50,
                num_hidden_layers=3,
                num_attention_heads=6,
                num_key_value_heads=2,
                head_dim=10,
                max_position_embeddings=64,
                rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
                use_sliding_window=True,
                sliding_window=7,
                max_window_layers=2,
                tie_word_embeddings=False,
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=29,
    ),
    # Sandwich norms of 1 + w, scaled embeddings, GeGLU, both soft-caps, windows on every other layer.
    "gemma2": dict(
        make=lambda: Gemma2ForCausalLM(
            Gemma2Config(
                vocab_size=104,
                hidden_size=40,
                intermediate_size=56,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                max_position_embeddings=64,
                query_pre_attn_scalar=10,
                sliding_window=6,
                attn_logit_softcapping=5.0,
                final_logit_softcapping=8.0,
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=27,
    ),
    # Norms of heads, two sets of rotary frequencies, one of them scaled.
    "gemma3": dict(
        make=lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(
                vocab_size=111,
                hidden_size=36,
                intermediate_size=44,
                num_hidden_layers=4,
                num_attention_heads=3,
                num_key_value_heads=1,
                head_dim=12,
                max_position_embeddings=64,
                query_pre_attn_scalar=20,
                sliding_window=5,
                layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                rope_parameters=dict(
                    sliding_attention=dict(rope_type="default", rope_theta=100.0),
                    full_attention=dict(rope_type="linear", rope_theta=10000.0, factor=8.0),
                ),
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=26,
    ),
    # Fused projections, heads rotated in part, longrope beyond the original length.
    "phi3": dict(
        make=lambda: Phi3ForCausalLM(
            Phi3Config(
                vocab_size=105,
                hidden_size=48,
                intermediate_size=50,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=96,
                original_max_position_embeddings=16,
                rope_parameters=dict(
                    rope_type="longrope",
                    rope_theta=10000.0,
                    partial_rotary_factor=0.5,
                    short_factor=[1.0, 1.1, 1.3],
                    long_factor=[1.0, 2.5, 5.5],
                ),
                sliding_window=15,
                eos_token_id=3,
                pad_token_id=0,
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=30,
    ),
    # Norms behind attention and feed-forward part, and over all queries and all keys.
    "olmo2": dict(
        make=lambda: Olmo2ForCausalLM(
            Olmo2Config(
                vocab_size=113,
                hidden_size=36,
                intermediate_size=52,
                num_hidden_layers=2,
                num_attention_heads=6,
                num_key_value_heads=3,
                max_position_embeddings=64,
                rope_parameters=dict(rope_type="default", rope_theta=500000.0),
                eos_token_id=3,
                pad_token_id=0,
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=25,
    ),
    # Layers without rotation, yarn.
    "smollm3": dict(
        make=lambda: SmolLM3ForCausalLM(
            SmolLM3Config(
                vocab_size=106,
                hidden_size=40,
                intermediate_size=48,
                num_hidden_layers=3,
                num_attention_heads=5,
                num_key_value_heads=1,
                max_position_embeddings=128,
                no_rope_layer_interval=2,
                rope_parameters=dict(
                    rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32
                ),
                bos_token_id=1,
                eos_token_id=2,
                pad_token_id=0,
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=28,
    ),
    # Experts whose weights add up to 1, a window, the load-balancing loss.
    "mixtral": dict(
        make=lambda: MixtralForCausalLM(
            MixtralConfig(
                vocab_size=96,
                hidden_size=40,
                intermediate_size=44,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                sliding_window=9,
                num_local_experts=4,
                num_experts_per_tok=2,
                output_router_logits=True,
                router_aux_loss_coef=0.05,
                attn_implementation="eager",
                experts_implementation="eager",
            )
        ),
        batch=2,
        time=23,
    ),
    # Norms of each head, weights that add up to 1 because the config says so, both losses of the router.
    "qwen3_moe": dict(
        make=lambda: Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                vocab_size=101,
                hidden_size=36,
                intermediate_size=50,
                moe_intermediate_size=26,
                num_hidden_layers=3,
                num_attention_heads=6,
                num_key_value_heads=2,
                head_dim=10,
                max_position_embeddings=64,
                num_experts=7,
                num_experts_per_tok=3,
                norm_topk_prob=True,
                output_router_logits=True,
                router_aux_loss_coef=0.02,
                router_z_loss_coef=0.01,
                attn_implementation="eager",
                experts_implementation="eager",
            )
        ),
        batch=2,
        time=21,
    ),
    # Norms over all queries and all keys, weights as the softmax left them; more experts than some have tokens.
    "olmoe": dict(
        make=lambda: OlmoeForCausalLM(
            OlmoeConfig(
                vocab_size=103,
                hidden_size=36,
                intermediate_size=24,
                num_hidden_layers=2,
                num_attention_heads=6,
                num_key_value_heads=3,
                max_position_embeddings=64,
                num_experts=12,
                num_experts_per_tok=2,
                output_router_logits=True,
                router_aux_loss_coef=0.03,
                eos_token_id=3,
                pad_token_id=0,
                attn_implementation="eager",
                experts_implementation="eager",
            )
        ),
        batch=2,
        time=19,
    ),
    # An expert that every token has, behind its gate; a layer without experts.
    "qwen2_moe": dict(
        make=lambda: Qwen2MoeForCausalLM(
            Qwen2MoeConfig(
                vocab_size=98,
                hidden_size=36,
                intermediate_size=46,
                moe_intermediate_size=22,
                shared_expert_intermediate_size=30,
                num_hidden_layers=3,
                num_attention_heads=6,
                num_key_value_heads=2,
                max_position_embeddings=64,
                num_experts=6,
                num_experts_per_tok=2,
                mlp_only_layers=[1],
                output_router_logits=True,
                router_aux_loss_coef=0.02,
                attn_implementation="eager",
                experts_implementation="eager",
            )
        ),
        batch=2,
        time=22,
    ),
    # Attention over blocks, ours alone: torch has it as a mask.
    "llama-sparse": dict(
        make=lambda: LlamaForCausalLM(
            LlamaConfig(
                vocab_size=104,
                hidden_size=32,
                intermediate_size=40,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                tie_word_embeddings=False,
                attention_type="sparse",
                sparse_block_size=5,
                num_local_blocks=2,
                num_global_blocks=1,
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=30,
    ),
    # Scores divided by the number of the layer.
    "gpt2-by-layer": dict(
        make=lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=104,
                n_positions=32,
                n_embd=32,
                n_layer=3,
                n_head=2,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                scale_attn_by_inverse_layer_idx=True,
                bos_token_id=0,
                eos_token_id=0,
            )
        ),
        batch=2,
        time=24,
    ),
    # Factors of embeddings, scores, branches and logits.
    "granite": dict(
        make=lambda: GraniteForCausalLM(
            GraniteConfig(
                vocab_size=108,
                hidden_size=40,
                intermediate_size=52,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                rms_norm_eps=1e-5,
                embedding_multiplier=6.0,
                attention_multiplier=0.125,
                residual_multiplier=0.4,
                logits_scaling=3.0,
                tie_word_embeddings=True,
                attn_implementation="eager",
            )
        ),
        batch=2,
        time=26,
    ),
}
PACKED_LENGTHS = (13, 19)


def randomise(model, generator):
    """Weights large enough that every path matters; the usual 0.02 would leave attention nearly uniform."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() >= 2:
                embedding = "embed" in name or "wte" in name or "wpe" in name
                p.copy_(noise * (0.5 if embedding else 1.5 / p.shape[-1] ** 0.5))
            else:
                around_zero = name.endswith("bias") or model.config.model_type.startswith("gemma")
                p.copy_(noise * 0.1 + (0.0 if around_zero else 1.0))


def make_batch(config, batch, time, generator):
    """Token ids and the labels already shifted to the row that predicts them; some are ignored.

    The padding token does not occur: torch gives its embedding no gradient."""
    ids = torch.randint(0, config.vocab_size, (batch, time), generator=generator)
    if config.pad_token_id is not None: ids[ids == config.pad_token_id] = config.vocab_size - 1
    targets = torch.cat([ids[:, 1:], torch.full((batch, 1), IGNORE)], dim=1)
    targets[0, 3:6] = IGNORE
    return ids, targets


def file_tensors(model, tensors):
    """As checkpoints have them: experts, which transformers keeps in one tensor, are tensors of their own."""
    mixtral = model.config.model_type == "mixtral"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for name, value in tensors.items():
        block, _, part = name.partition(".mlp.experts.")
        if mixtral: name, block = name.replace(".mlp.gate", ".block_sparse_moe.gate"), block + ".block_sparse_moe"
        else: block += ".mlp"
        if not part:
            out[name] = value
            continue
        for e, of in enumerate(value):
            pieces = zip(names, of.chunk(2)) if part == "gate_up_proj" else [(names[2], of)]
            for key, piece in pieces: out[f"{block}.experts.{e}.{key}.weight"] = piece
    return out


def mask_of(model, time):
    """What torch is given beside the ids: nothing, or the mask of attention over blocks."""
    config = model.config
    if getattr(config, "attention_type", None) != "sparse": return {}
    block = torch.arange(time) // config.sparse_block_size
    back = block[:, None] - block[None, :]
    past = torch.arange(time)[:, None] >= torch.arange(time)[None, :]
    sees = past & ((back < config.num_local_blocks) | (block[None, :] < config.num_global_blocks))
    hidden = torch.full((time, time), torch.finfo(model.dtype).min, dtype=model.dtype).masked_fill(sees, 0)
    return dict(attention_mask=hidden[None, None])


def total_loss(logits, targets):
    flat = logits.float().reshape(-1, logits.shape[-1])
    return F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORE, reduction="sum")


def router_loss(config, out):
    """What the router's losses add: load balancing as transformers has it, and the z-loss of ST-MoE."""
    if getattr(out, "router_logits", None) is None: return 0.0
    z = torch.cat([torch.logsumexp(x.float(), -1) for x in out.router_logits]).pow(2).mean()
    return config.router_aux_loss_coef * out.aux_loss + getattr(config, "router_z_loss_coef", 0.0) * z


def run(model, samples):
    """Mean loss over all samples, logits in packing order, gradient of every parameter."""
    model.zero_grad()
    count = sum(int((t != IGNORE).sum()) for _, t in samples)
    logits, total = [], 0.0
    for ids, targets in samples:
        made = model(input_ids=ids, **mask_of(model, ids.shape[1]))
        out = made.logits
        loss = total_loss(out, targets) / count + router_loss(model.config, made)
        loss.backward()
        total += loss.detach()
        logits.append(out.detach().float())
    grads = file_tensors(model, {n: p.grad.detach().clone().float() for n, p in model.named_parameters()})
    return total, torch.cat(logits, dim=1), grads


def adamw_groups(model):
    """AdamW that decays matrices only."""
    wide = [p for p in model.parameters() if p.dim() >= 2]
    narrow = [p for p in model.parameters() if p.dim() < 2]
    groups = [dict(params=wide, weight_decay=WEIGHT_DECAY), dict(params=narrow, weight_decay=0.0)]
    return torch.optim.AdamW(groups, foreach=False, **ADAMW)


def adamw_losses(model, samples):
    """The loss before each of STEPS updates on the same batch."""
    optimizer = adamw_groups(model)
    losses = []
    for _ in range(STEPS):
        losses.append(run(model, samples)[0])
        optimizer.step()
    return torch.stack(losses)


def relative(a, b):
    return (torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b).clamp_min(1e-30)).reshape(1)


def narrowed(model):
    """A bfloat16 copy; the rotary frequencies stay float32, as they do in a model loaded in bfloat16."""
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    if hasattr(model.base_model, "rotary_emb"):
        narrow.base_model.rotary_emb = copy.deepcopy(model.base_model.rotary_emb)
    return narrow


def frequencies(rotary):
    """Of a model with two sets both: of layers without a window and with one; for short rows and for long ones."""
    names = [("full_attention_inv_freq", "sliding_attention_inv_freq"), ("original_inv_freq", "long_inv_freq")]
    pair = next((p for p in names if hasattr(rotary, p[1])), ("inv_freq",))
    return torch.cat([getattr(rotary, name).detach().clone() for name in pair])


def expected(model, samples, pos):
    """Every number of one case, by the name README.md gives it."""
    loss, logits, grads = run(model, samples)
    _, narrow_logits, narrow_grads = run(narrowed(model), samples)
    out = {
        "ids": torch.cat([i for i, _ in samples], dim=1).to(torch.int32),
        "targets": torch.cat([t for _, t in samples], dim=1).to(torch.int32),
        "pos": pos.to(torch.int32),
        "loss": loss.reshape(1),
        "logits": logits,
        "losses": adamw_losses(copy.deepcopy(model), samples),
        "bf16err:logits": relative(narrow_logits, logits),
    }
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is not None:
        out["inv_freq"] = frequencies(rotary)
    for name, grad in grads.items():
        out["grad:" + name] = grad
        out["bf16err:" + name] = relative(narrow_grads[name], grad)
    out["bf16err:all gradients"] = relative(as_one(narrow_grads), as_one(grads))
    return {name: value.contiguous() for name, value in out.items()}


def as_one(grads):
    return torch.cat([grads[name].float().flatten() for name in sorted(grads)])


def routed_deviation(case, seed, draws):
    """How far PyTorch's own bf16 run may lie from its fp32 run where a rounding may send a token to another expert: the most of `draws` models
    and batches of the case's shape, of logits and of all gradients as one vector. One draw has such a token, another has none; the gradients of an
    expert that few tokens come to would be nothing in one run and something in the other."""
    logits, grads = [], []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(seed + draw)
        model = case["make"]().eval()
        randomise(model, generator)
        samples = [make_batch(model.config, case["batch"], case["time"], generator)]
        _, wide, wide_grads = run(model, samples)
        _, narrow, narrow_grads = run(narrowed(model), samples)
        logits.append(relative(narrow, wide))
        grads.append(relative(as_one(narrow_grads), as_one(wide_grads)))
    return {"bf16most:logits": torch.cat(logits).amax(0, True), "bf16most:gradients": torch.cat(grads).amax(0, True)}


def save_model(model, folder):
    """config.json and weights in the names and the tying of a real checkpoint."""
    config = model.config.to_diff_dict()
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "float32"
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    weights = file_tensors(model, {n: p.detach() for n, p in model.named_parameters()})
    weights = {n: p.contiguous() for n, p in weights.items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def check_own_loss(model, ids, targets):
    """transformers shifts labels itself; its loss must be ours."""
    labels = torch.cat([torch.full((ids.shape[0], 1), IGNORE), targets[:, :-1]], dim=1)
    mask = mask_of(model, ids.shape[1])
    theirs = model(input_ids=ids, labels=labels, **mask).loss
    made = model(input_ids=ids, **mask)
    ours = total_loss(made.logits, targets) / (targets != IGNORE).sum()
    if getattr(made, "aux_loss", None) is not None: ours += model.config.router_aux_loss_coef * made.aux_loss
    assert torch.allclose(theirs, ours, rtol=1e-5), (theirs, ours)


def fresh(root, name):
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def plain_case(root, name, case, seed, draws):
    """draws: of the limit for a model with experts; 0: it gets none."""
    generator = torch.Generator().manual_seed(seed)
    model = case["make"]().eval()
    randomise(model, generator)
    ids, targets = make_batch(model.config, case["batch"], case["time"], generator)
    check_own_loss(model, ids, targets)
    pos = torch.arange(case["time"]).expand(case["batch"], -1)
    folder = fresh(root, name)
    save_model(model, folder)
    out = expected(model, [(ids, targets)], pos)
    if draws and "num_experts_per_tok" in model.config.to_dict(): out.update(routed_deviation(case, 5000 + 100 * seed, draws))
    save_file(out, os.path.join(folder, "expected.safetensors"))
    return model


def packed_case(root, model, seed):
    """Two samples in one row, positions restarting; the reference runs them one by one."""
    generator = torch.Generator().manual_seed(seed)
    samples = [make_batch(model.config, 1, n, generator) for n in PACKED_LENGTHS]
    pos = torch.cat([torch.arange(n) for n in PACKED_LENGTHS]).reshape(1, -1)
    folder = fresh(root, "llama-packed")
    save_file(expected(model, samples, pos), os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "MODEL"), "w", encoding="utf-8") as f:
        f.write("llama-tied\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--only", nargs="*", default=None, help="of the plain cases")
    parser.add_argument("--seed", type=int, default=0, help="other weights and tokens, for a live comparison")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the limit for models with experts in bf16; 0: no limit, where many seeds are compared")
    args = parser.parse_args()
    root = args.out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    models = {}
    for seed, (name, case) in enumerate(CASES.items(), args.seed):
        if args.only is not None and name not in args.only: continue
        torch.manual_seed(seed)
        models[name] = plain_case(root, name, case, 1000 + seed, args.draws)
    if args.only is None: packed_case(root, models["llama-tied"], 2000 + args.seed)


if __name__ == "__main__":
    main()
