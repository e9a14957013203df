#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Truth (not under sanitizers, whose resident memory means nothing): the plan's bytes, the ledger's and the operating system's are the same, from 13 MiB to 3.2 GiB.

For each point: ledger peak == planned peak to the byte, and the process's own peak RSS, read by this script from
/proc while it runs, within max(1 %, 6 MiB) of peak_bytes.total as `plimsoll plan` printed it before the run.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20
BIG = dict(model__hidden_size=512, model__intermediate_size=1408, model__num_layers=8, model__num_attention_heads=8,
           model__num_key_value_heads=4)
POINTS = [
    ("tiny fp32", "16MiB", dict()),
    ("bf16, full recompute", "40MiB", dict(training__mixed_precision="bf16", training__recompute="full", model__hidden_size=192, model__intermediate_size=512, model__num_layers=6, data__max_length=128)),
    ("issue sample bf16", "64MiB", dict(training__mixed_precision="bf16", model__hidden_size=384, model__intermediate_size=1024, model__num_layers=4, model__num_attention_heads=6, data__max_length=256, training__batch_size=2, training__steps=2)),
    ("fp16 with clipping", "160MiB", dict(training__mixed_precision="fp16", training__max_grad_norm=1, model__hidden_size=256, model__intermediate_size=768, data__max_length=128)),
    ("state on disk", "48MiB", dict(training__state_tier="disk", model__hidden_size=256, model__intermediate_size=768)),
    ("gpt2 sgd", "200MiB", dict(model__architecture="gpt2", model__num_key_value_heads=4, model__hidden_size=256, model__intermediate_size=1024, training__optimizer="sgd", data__max_length=128)),
    ("0.8 GiB fp32, no tricks", "1400MiB", dict(training__recompute="none", training__micro_batch_size=8, training__steps=1, data__max_length=256, **BIG)),
    ("3.2 GiB bf16, large vocabulary, no tricks", "4600MiB", dict(training__mixed_precision="bf16", model__vocab_size=65536, training__loss_chunks=1, training__recompute="none", training__micro_batch_size=96, training__batch_size=96, training__gradient_accumulation_steps=1, data__max_length=256, training__steps=1)),
]

for name, budget, changes in POINTS:
    with tempfile.TemporaryDirectory() as folder:
        changes = {"training__steps": 2, **changes}
        path = plim.job(folder, **changes)
        planned, result = plim.plan(path, "--budget", budget)
        if not plim.ok(planned and planned["fits"], f"{name}: plans inside {budget} {result.stderr.strip()}"):
            continue
        total = planned["peak_bytes"]["total"]
        events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", budget, "--no-checkpoint")
        end = events[-1] if events else {}
        if not plim.ok(code == 0 and end.get("event") == "end", f"{name}: trains {stderr.strip()}"):
            continue
        plim.ok(end["ledger_peak"] == end["planned_peak"], f"{name}: ledger peak {end['ledger_peak']} = planned peak {end['planned_peak']}")
        limit = max(0.01 * total, 6 * MIB)
        plim.ok(abs(peak - total) <= limit,
                f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB ({(peak - total) / MIB:+.2f} MiB, {100 * (peak / total - 1):+.2f} %)")
plim.done()
