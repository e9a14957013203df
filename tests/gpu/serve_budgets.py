#!/usr/bin/env python3
"""A real server of 1.2 B parameters on a card, at budgets from a little more than the weights to the whole card: it comes up at each, the
driver's figure stays below the line, more budget never means less service, and requests are answered under load.

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
CLIENTS = 32


def ask(s, n):
    code, r = s.post("/v1/completions", {"prompt": f"{n} " * (1 + 37 * n % 400), "max_tokens": 32, "temperature": 0, "ignore_eos": True})
    return code, r["usage"]["completion_tokens"] if code == 200 else r


def main():
    total = gpu.card_total()
    with tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/m", bf16=True, **SIZES)
        before, best = gpu.card_used(), None
        for gib in BUDGETS:
            if gib * (1 << 30) > total: continue
            start = time.monotonic()
            with server.Server(model, "--device", "cuda", "--budget", f"{gib}GiB", program=plim.PLIMSOLL) as s:
                ready = time.monotonic() - start
                p = json.loads(s.get("/hold")[1])
                threads = [server.background(ask, s, n) for n in range(CLIENTS)]
                peak = gpu.card_used()
                while any(t.is_alive() for t in threads):
                    peak = max(peak, gpu.card_used())
                    time.sleep(0.02)
                answers = [t.result for t in threads]
                mine, plan = peak - before, p["plan"]
                good = sum(a == (200, 32) for a in answers)
                ok(mine <= gib * (1 << 30), f"{gib} GiB: {mine >> 20} MiB by the driver, planned {plan['total'] >> 20} MiB, rung {p['rung']}, "
                   f"{plan['parallel']} requests, context {plan['context']}, ready after {ready:.1f} s")
                ok(good == CLIENTS, f"{gib} GiB: {good} of {CLIENTS} answered in full {[a for a in answers if a != (200, 32)][:2]}")
                worse = [k for k in ("context", "parallel", "step_tokens") if best and plan[k] < best[k]]
                ok(not worse, f"{gib} GiB: no less service than with less {worse}")
                ok(s.stop() == 0, "stops with 0")
                best = plan
    plim.done()


main()
