#!/usr/bin/env python3
# run-tests: serial, not=asan, not=tsan
"""State, gradients, parameters and activations in host memory give the losses of everything on the device, to the bit, whoever updates.

The second job is all head: one layer below a large tied vocabulary, so that the copies, not the kernels, are what takes
long and anything that does not wait for them shows.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim

COMMON = dict(training__device="cuda", training__deterministic="true", training__batch_size=4, training__micro_batch_size=4,
              training__gradient_accumulation_steps=2, training__recompute="none", training__loss_chunks=1,
              training__optimizer_in_backward="false", training__steps=8, data__max_length=128,
              training__mixed_precision="bf16")
JOBS = {
    "8 layers": dict(model__hidden_size=512, model__intermediate_size=1536, model__num_layers=8, model__num_attention_heads=8),
    "one layer, large head": dict(model__vocab_size=65536, model__hidden_size=512, model__intermediate_size=512,
                                  model__num_layers=1, model__num_attention_heads=8),
}
TIERS = ["state_tier=host grad_tier=device host_update=0", "state_tier=host grad_tier=device host_update=1",
         "state_tier=host grad_tier=host host_update=0.5", "state_tier=device grad_tier=host",
         "state_tier=host grad_tier=device param_tier=host host_update=0.5", "state_tier=host grad_tier=host param_tier=host host_update=1",
         "state_tier=host grad_tier=device host_update=0.5 optimizer_in_forward=true",
         "state_tier=host grad_tier=host param_tier=host host_update=0.5 optimizer_in_forward=true",
         "state_tier=device grad_tier=device offload_layers=3", "state_tier=host grad_tier=device host_update=0.5 offload_layers=8"]

plim.need_gpu()
with tempfile.TemporaryDirectory() as folder:
    for name, changes in JOBS.items():
        path = plim.job(folder, **{**COMMON, **changes})
        for optimizer in ("optimizer=adamw", "optimizer=adamw_8bit", "optimizer=adamw max_grad_norm=1.0 grad_dtype=bf16"):
            near = gpu.train(path, *gpu.sets(f"{optimizer} state_tier=device grad_tier=device"))
            for tiers in TIERS:
                far = gpu.train(path, *gpu.sets(f"{optimizer} {tiers}"))
                gpu.same(near.losses(), far.losses(), f"{name}, {optimizer}, {tiers}")
                if "state_tier=device grad_tier=host" in tiers: continue  # a gradient is whole on the device while it is made
                arenas = [r.of("plan")[0]["arena_bytes"] if r.of("plan") else 0 for r in (near, far)]
                if "offload_layers" in tiers and "one layer" in name: continue  # backward begins with the only one
                plim.ok(arenas[1] < arenas[0], f"{name}, {optimizer}, {tiers}: arena {arenas[0] / gpu.MIB:.0f} -> {arenas[1] / gpu.MIB:.0f} MiB")
    # Updates by the host before the norm is known: clipping that binds never, always and by turns.
    BEFORE = "state_tier=host grad_tier=host optimizer_in_forward=true"
    for name, changes in JOBS.items():
        path = plim.job(folder, **{**COMMON, **changes, "training__micro_batch_size": 8})
        for math in ("optimizer=adamw max_grad_norm=1000", "optimizer=adamw max_grad_norm=0.01 grad_dtype=bf16", "optimizer=adamw max_grad_norm=1.0",
                     "optimizer=sgd max_grad_norm=1.0"):
            near = gpu.train(path, *gpu.sets(f"{math} state_tier=device grad_tier=device"))
            for shares in ("host_update=1 update_before_norm=1", "host_update=0.5 update_before_norm=0.5"):
                far = gpu.train(path, *gpu.sets(f"{math} {BEFORE} {shares}"))
                gpu.same(near.losses(), far.losses(), f"{name}, {math}, {shares}")
                plim.ok(far.of("plan")[0]["knobs"]["before_norm_share"] > 0, f"{name}, {math}, {shares}: in the plan")
plim.done()
