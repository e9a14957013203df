#!/usr/bin/env python3
"""A real server of 1.2 B parameters on a card, at budgets from a little more than the weights to the whole card: it comes up at each, the
driver's figure stays below the budget, requests are answered under load, and more budget never means less service: not in
context, requests at once and predicted tokens/s, and not in measured ones beyond noise.

    tests/gpu/serve_budgets.py [GIB...]        budgets (3 4 6 8 16 24 40 80 120 130)
"""
# run-tests: serial, slow, timeout=900
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import json
import tempfile
import time

import gpu
import llama_folder
import plim
from plim import ok
import server

plim.need_gpu()
SIZES = dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
             num_key_value_heads=8, head_dim=64, max_position_embeddings=131072)
BUDGETS = [float(b) for b in sys.argv[1:]] or [3, 4, 6, 8, 16, 24, 40, 80, 120, 130]
CLIENTS, TOKENS = 32, 32
# Part of a smaller budget's value that a larger one must have at least.
PROMISES = dict(context=1, parallel=1, step_tokens=1, prefill_tokens_per_second=0.99, decode_tokens_per_second=0.99,
                decode_tokens_per_second_full=0.99)


def ask(s, n):
    code, r = s.post("/v1/completions", {"prompt": f"{n} " * (1 + 37 * n % 400), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True})
    return code, r["usage"]["completion_tokens"] if code == 200 else r


def load(s):
    """All clients at once: their answers, the card's memory at its peak, tokens/s."""
    start, peak = time.monotonic(), 0
    threads = [server.background(ask, s, n) for n in range(CLIENTS)]
    while any(t.is_alive() for t in threads):
        peak = max(peak, gpu.card_used())
        time.sleep(0.02)
    return [t.result for t in threads], peak, CLIENTS * TOKENS / (time.monotonic() - start)


def compare(small, large):
    """The reasons why a larger budget's plan is worse."""
    return [k for k, part in PROMISES.items() if small and large[k] < part * small[k]]


def main():
    total = gpu.card_total()
    with tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/m", bf16=True, **SIZES)
        before, best, fastest = gpu.card_used(), None, 0
        for gib in BUDGETS:
            if gib * (1 << 30) > total: continue
            start = time.monotonic()
            with server.Server(model, "--device", "cuda", "--budget", f"{gib}GiB", program=plim.PLIMSOLL) as s:
                ready = time.monotonic() - start
                p = json.loads(s.get("/hold")[1])
                plan, rounds = p["plan"], [load(s) for _ in range(2)]
                mine, rate = max(r[1] for r in rounds) - before, max(r[2] for r in rounds)
                ok(mine <= gib * (1 << 30), f"{gib} GiB: {mine >> 20} MiB by the driver, planned {plan['total'] >> 20} MiB, rung {p['rung']}, "
                   f"{plan['parallel']} requests, context {plan['context']}, ready after {ready:.1f} s")
                bad = [a for answers, _, _ in rounds for a in answers if a != (200, TOKENS)]
                ok(not bad, f"{gib} GiB: {len(bad)} of {2 * CLIENTS} not answered in full {bad[:2]}")
                ok(not compare(best, plan), f"{gib} GiB: no less service than with less {compare(best, plan)}")
                ok(rate >= fastest / 2, f"{gib} GiB: {rate:.0f} tokens/s measured, {fastest:.0f} with less")
                ok(s.stop() == 0, "stops with 0")
                best, fastest = plan, max(fastest, rate)
    plim.done()


main()
