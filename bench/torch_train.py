"""One training run of a LLaMA in PyTorch on the CPU: prints one JSON line with tokens/s, CPU seconds of a step and peak RSS.

usage: torch_train.py CONFIG_JSON   (vocab, hidden, inter, layers, heads, kv, T, B, steps, mode, compile, attention, threads)
mode: fp32, autocast (bf16 compute, fp32 weights), bf16 (everything bf16), mixed (bf16 weights, fp32 adapter: PEFT's default)
lora: rank of an adapter of all linear layers (PEFT) of the model in the folder `path`; checkpoint: recompute activations
"""
import json
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

c = json.loads(sys.argv[1])
torch.set_num_threads(c["threads"])
torch.manual_seed(0)
config = LlamaConfig(vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inter"],
                     num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv"],
                     max_position_embeddings=c["T"], tie_word_embeddings=True, use_cache=False,
                     attn_implementation=c["attention"])
narrow = c["mode"] in ("bf16", "mixed")
if c.get("lora"):
    import peft
    model = LlamaForCausalLM.from_pretrained(c["path"], dtype=torch.bfloat16 if narrow else torch.float32,
                                             attn_implementation=c["attention"], use_cache=False)
    settings = peft.LoraConfig(r=c["lora"], lora_alpha=2 * c["lora"], target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, settings, autocast_adapter_dtype=c["mode"] == "mixed")
else:
    model = LlamaForCausalLM(config)
    if narrow:
        model = model.to(torch.bfloat16)
model.train()
if c.get("checkpoint"):
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
forward = torch.compile(model) if c["compile"] else model
ids = torch.randint(0, 256, (c["B"], c["T"]))


def step():
    with torch.autocast("cpu", torch.bfloat16, enabled=c["mode"] == "autocast"):
        loss = forward(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


step()
times, cpu = [], time.process_time()
for _ in range(c["steps"]):
    start = time.perf_counter()
    loss = step()
    times.append(time.perf_counter() - start)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
seconds = sorted(times)[len(times) // 2]
print(json.dumps(dict(tokens_per_s=c["B"] * c["T"] / seconds, rss=peak, loss=loss, cpu=(time.process_time() - cpu) / c["steps"],
                      parameters=sum(p.numel() for p in model.parameters()), torch=torch.__version__)))
