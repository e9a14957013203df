"""One training case in PyTorch on a GPU: prints one JSON line with tokens/s, memory, losses and versions.

usage: torch_step.py CASE_JSON   (model, B, T, accumulation, mode, tokens, warm_up, steps, and what is on: see below)

mode      amp: fp32 weights, states and gradients, bf16 autocast. bf16: everything bf16
compile   torch.compile of the loss (else eager)
checkpointing   every layer is recomputed in backward
peft      an adapter of rank `lora` of all linear layers, in fp32 as PEFT makes it, under bf16 autocast; the base is frozen
stock     torch.compile of transformers' model as it comes, with its masks (attention()) and graph breaks

Set up to be fast: transformers' model classes, scaled_dot_product_attention without a mask, fused AdamW, expandable
segments, gradients set to None; compiling and the first steps are not measured, and nothing waits for the GPU between
measured steps. Ids are on the GPU before the first step.
"""
import json
import os
import statistics
import sys

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch
import torch._dynamo.utils
import transformers
from transformers import (AttentionInterface, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config,
                          T5ForConditionalGeneration)
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def attention(c):
    """The name of the attention to use. Under torch.compile transformers' "sdpa" cannot see that rows are plain and
    builds a [B,1,T,T] mask, with which shared keys are repeated and nothing is skipped; in eager mode it looks for packed
    rows, which waits for the GPU in every step. Under a name of its own the same function gets no mask and says is_causal
    instead."""
    if c.get("stock"): return "sdpa"
    AttentionInterface.register("causal_sdpa", sdpa_attention_forward)
    return "causal_sdpa"


def make_t5(c, m):
    """T5 has a bias in its scores: transformers computes it eagerly, with no attention kernel that could take it."""
    config = T5Config(vocab_size=m["vocab"], d_model=m["hidden"], d_kv=m["head_dim"], d_ff=m["inter"], num_layers=m["layers"],
                      num_heads=m["heads"], feed_forward_proj="gated-gelu", tie_word_embeddings=m["tie"], dropout_rate=0,
                      use_cache=False, decoder_start_token_id=0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.float32 if c["mode"] == "amp" else torch.bfloat16)
        model = T5ForConditionalGeneration(config)
        if not m["tie"]: model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
        torch.set_default_dtype(torch.float32)
    if c.get("checkpointing"): model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def make_model(c, m):
    if m["architecture"] == "t5": return make_t5(c, m)
    common = dict(vocab_size=m["vocab"], attn_implementation=attention(c), use_cache=False, tie_word_embeddings=m["tie"])
    if m["architecture"] == "gpt2":
        config = GPT2Config(n_layer=m["layers"], n_head=m["heads"], n_embd=m["hidden"], n_positions=c["T"], resid_pdrop=0,
                            embd_pdrop=0, attn_pdrop=0, **common)
    else:
        config = LlamaConfig(hidden_size=m["hidden"], intermediate_size=m["inter"], num_hidden_layers=m["layers"],
                             num_attention_heads=m["heads"], num_key_value_heads=m["kv"], max_position_embeddings=8192,
                             rope_theta=500000.0, **common)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.float32 if c["mode"] == "amp" else torch.bfloat16)
        model = (GPT2LMHeadModel if m["architecture"] == "gpt2" else LlamaForCausalLM)(config)
        torch.set_default_dtype(torch.float32)
    # GPT-2's class does not name its loss; transformers warns and takes this one, but the warning cuts a compiled graph.
    if not c.get("stock"): model.loss_type = "ForCausalLM"
    if c.get("checkpointing"): model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def add_adapter(c, model):
    import peft
    if c.get("checkpointing"): model.enable_input_require_grads()
    settings = peft.LoraConfig(r=c["lora"], lora_alpha=2 * c["lora"], target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, settings)


def read_ids(c, m):
    """All rows of the run on the GPU: [micro-batches, B, T]."""
    count = (c["warm_up"] + c["steps"] + 1) * c["accumulation"]
    with open(c["tokens"], "rb") as f: data = bytearray(f.read())
    width = int.from_bytes(data[16:20], "little")
    have = int.from_bytes(data[32:40], "little")
    ids = torch.frombuffer(data, dtype=torch.uint16 if width == 2 else torch.int32, offset=256, count=have).long()
    want = count * c["B"] * c["T"]
    return ids.repeat(-(-want // have))[:want].view(count, c["B"], c["T"]).cuda()


def make_step(c, model, ids):
    """A function that does one optimizer step on the next rows and returns the loss, still on the GPU."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0, fused=True)
    called = torch.compile(model) if c.get("compile") and c.get("stock") else model

    def loss_of(rows):
        with torch.autocast("cuda", torch.bfloat16, enabled=c["mode"] == "amp" or bool(c.get("peft"))):
            more = dict(attention_mask=torch.ones_like(rows)) if c["model"]["architecture"] == "t5" else {}
            return called(input_ids=rows, labels=rows, **more).loss

    # Compiled as a whole, the logits are nobody's result and their memory can be used again in backward.
    run = torch.compile(loss_of) if c.get("compile") and not c.get("stock") else loss_of
    rows, share = iter(ids), 1 / c["accumulation"]

    def step():
        total = 0
        for _ in range(c["accumulation"]):
            loss = run(next(rows)) * share
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def attention_kernels(step):
    """Names of the kernels of one step that do attention, the longest running first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    words = ("flash", "fmha", "attention", "sdpa", "cudnn_generated")
    rows = [e for e in seen.key_averages() if any(w in e.key.lower() for w in words)]
    return [e.key[:90] for e in sorted(rows, key=lambda e: -e.device_time_total)][:4]


def measure(c):
    m = c["model"]
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    model = make_model(c, m)
    if c.get("peft"): model = add_adapter(c, model)
    step = make_step(c, model, read_ids(c, m))
    losses = [step() for _ in range(c["warm_up"])]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(c["steps"] + 1)]
    marks[0].record()
    for mark in marks[1:]:
        losses.append(step())
        mark.record()
    torch.cuda.synchronize()
    speeds = [1e3 * c["B"] * c["T"] * c["accumulation"] / a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    free, total = torch.cuda.mem_get_info()
    out = dict(tokens_per_s=statistics.median(speeds), tokens_per_s_min=min(speeds), tokens_per_s_max=max(speeds),
               steps=c["steps"], warm_up=c["warm_up"], gradients="fp32" if c["mode"] == "amp" else "bf16",
               allocated_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved(),
               driver_bytes=total - free, loss_first=round(losses[0].item(), 4), loss_last=round(losses[-1].item(), 4),
               torch=torch.__version__, torch_cuda=torch.version.cuda, torch_cudnn=torch.backends.cudnn.version(),
               transformers=transformers.__version__,
               graph_breaks=sum(torch._dynamo.utils.counters["graph_break"].values()))
    try:
        out["attention_kernels"] = attention_kernels(step)
    except Exception as e:  # what is measured is measured; only the kernels' names are missing
        out["attention_kernels"] = [f"not told: {type(e).__name__}"]
    return out


if __name__ == "__main__":
    try:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
    except torch.cuda.OutOfMemoryError:
        print(json.dumps(dict(error="out of memory")))
