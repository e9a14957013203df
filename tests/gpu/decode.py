#!/usr/bin/env python3
# run-tests: serial, not=asan, not=tsan
"""Text from a GPU: the likeliest tokens are the CPU's, the budget is of the card and holds, and a budget that the driver
alone exceeds falls back to the CPU where nobody asked for the card by name."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim

SLACK = 32 * gpu.MIB


def generate(folder, *args):
    result = plim.run("generate", folder, "-p", "The old ship left the harbour at ", "-n", 40, "-t", 0, "-q", "--json", *args)
    if result.returncode:
        plim.ok(False, f"generate {args}: {result.stderr.strip()}")
        plim.done()
    return json.loads(result.stdout), result.stderr


plim.need_gpu()
with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_, model__hidden_size=256, model__intermediate_size=768, model__num_attention_heads=4,
                     model__num_key_value_heads=2, data__max_length=128, training__batch_size=8, training__device="cuda",
                     training__learning_rate=1e-3)
    for precision in ("fp32", "bf16"):
        run_ = f"{folder_}/{precision}"
        result_ = plim.run("train", path_, "-q", "--steps", 60, "--set", f"output.dir={run_}", *gpu.sets(f"mixed_precision={precision}"))
        plim.ok(result_.returncode == 0, f"{precision}: a model to ask {result_.stderr.strip()}")
        cpu, _ = generate(run_, "--device", "cpu")
        card, _ = generate(run_, "--device", "cuda")
        again, _ = generate(run_, "--device", "cuda")
        same = sum(a == b for a, b in zip(cpu["tokens"], card["tokens"]))
        plim.ok(cpu["device"] == "cpu" and card["device"] == "cuda" and card["tokens"] == again["tokens"], f"{precision}: on the device asked for, twice the same")
        # One token that two devices round differently changes all that follow.
        plim.ok(same == 40 if precision == "fp32" else same >= 8, f"{precision}: {same} of 40 tokens are the CPU's; {card['tokens_per_s']:.0f} tokens/s")
        memory = card["memory"]
        plim.ok(memory["planned_total"] - SLACK <= memory["device_used"] <= memory["planned_total"] + 2 * gpu.MIB,
                f"{precision}: planned {memory['planned_total'] >> 20} MiB, the driver says {memory['device_used'] >> 20}")
        small, words = generate(run_, "--budget", "64MiB")
        plim.ok(small["device"] == "cpu" and "using the CPU" in words and small["tokens"] == cpu["tokens"], f"{precision}: 64 MiB are too few for a card, which is not even tried {words.strip()}")
    refused = plim.run("generate", run_, "-p", "x", "--device", "cuda", "--budget", "64MiB")
    plim.ok(refused.returncode != 0 and "budget" in refused.stderr, f"asked for by name it is refused: {refused.stderr.strip()}")
plim.done()
