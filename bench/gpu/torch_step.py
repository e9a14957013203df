"""One training case in PyTorch on a GPU: prints one JSON line with tokens/s and peak memory.

usage: torch_step.py CASE_JSON   (model, B, T, accumulation, mode: amp|bf16, checkpointing, compile, clip, budget_gib, steps)

As people run it: transformers' model classes, sdpa attention, fused AdamW, expandable segments, gradient clipping.
amp: fp32 weights and states, bf16 autocast. bf16: everything bf16.
"""
import json
import os
import sys
import time

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

c = json.loads(sys.argv[1])
m = c["model"]
torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(0)
if c.get("budget_gib"):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, c["budget_gib"] * 2**30 / total))
if m["architecture"] == "gpt2":
    config = GPT2Config(n_layer=m["layers"], n_head=m["heads"], n_embd=m["hidden"], vocab_size=m["vocab"],
                        n_positions=c["T"], attn_implementation="sdpa", use_cache=False, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0)
    kind = GPT2LMHeadModel
else:
    config = LlamaConfig(vocab_size=m["vocab"], hidden_size=m["hidden"], intermediate_size=m["inter"],
                         num_hidden_layers=m["layers"], num_attention_heads=m["heads"], num_key_value_heads=m["kv"],
                         max_position_embeddings=8192, rope_theta=500000.0, tie_word_embeddings=m["tie"],
                         attn_implementation="sdpa", use_cache=False)
    kind = LlamaForCausalLM
amp = c["mode"] == "amp"
try:
    with torch.device("cuda"):
        torch.set_default_dtype(torch.float32 if amp else torch.bfloat16)
        model = kind(config)
        torch.set_default_dtype(torch.float32)
    if c.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if c.get("compile") else model
    ids = torch.randint(0, m["vocab"], (c["B"], c["T"]), device="cuda")
    accumulation = c.get("accumulation", 1)

    def step():
        for _ in range(accumulation):
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = forward(input_ids=ids, labels=ids).loss
            (loss / accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), c.get("clip", 1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(c.get("steps", 10)):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    seconds = sorted(times)[len(times) // 2]
    print(json.dumps(dict(tokens_per_s=c["B"] * c["T"] * accumulation / seconds, ms=seconds * 1e3,
                          peak_gib=torch.cuda.max_memory_allocated() / 2**30,
                          reserved_gib=torch.cuda.max_memory_reserved() / 2**30, torch=torch.__version__)))
except torch.cuda.OutOfMemoryError:
    print(json.dumps(dict(error="out of memory")))
