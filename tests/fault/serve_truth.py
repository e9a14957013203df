#!/usr/bin/env python3
"""Truth of a server under full load, at five budgets: planned = ledger to the byte, the process never above the line, and what it has, read
from outside, not more than 2 % below what the plan says without the bound for connections and requests, of which most of the time hardly any is used. (A plan
counts a little more than that bound where a slightly larger budget would raise it: server_share.)

    python3 tests/fault/serve_truth.py --minutes 1 --model FOLDER 4GiB 6GiB"""
# run-tests: serial, timeout=300, not=asan, not=tsan
import argparse
import json
import os
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import lora_folder
import plim
from plim import ok
import server

MIB = 1 << 20


def load(s, until, seed, bad):
    while time.time() < until:
        try:
            code, headers, text = s.request("POST", "/v1/completions", {**({"model": "abc"[seed % 3]} if seed % 4 and s.adapters else {}), "prompt": "x" * (1 + seed * 37 % 200), "max_tokens": 8 + seed % 40, "stream": seed % 2 == 0, "logprobs": 5})
            if code not in (200, 429): bad.append((code, text[:200]))
        except OSError as e:
            bad.append(repr(e))


def measure(folder, budget, seconds, *flags):
    bad, most, clients = [], 0, []
    with server.Server(folder, "--budget", budget, *flags, "--parallel", 16, "--max-connections", 64, "--max-body", "64KiB", program=plim.PLIMSOLL) as s:
        if s.process.poll() is not None: return ok(False, f"{budget}: does not come up: {s.log()[-300:]}")
        s.adapters = "--adapter" in flags
        until = time.time() + seconds
        clients = [threading.Thread(target=load, args=(s, until, i, bad)) for i in range(24)]
        for c in clients: c.start()
        while any(c.is_alive() for c in clients):
            most = max(most, server.resident(s.process)[0])
            time.sleep(0.02)
        hold, beside = json.loads(s.get("/hold")[1]), s.metric("server_bytes_most")
        most = max(most, server.resident(s.process)[1])
    total, line = hold["plan"]["total"], hold["budget"]
    beside += hold["plan"]["requests"]
    firm = total - beside
    ok(not bad and hold["generated_tokens"] > 0, f"{budget}: everybody is answered, {hold['generated_tokens']} tokens {bad[:2]}")
    ok(hold["used"] == total <= line, f"{budget}: ledger {hold['used']} = planned {total}, inside {line}")
    ok(0.98 * firm <= most <= total,
       f"{budget}: RSS at most {most / MIB:.2f} MiB; planned {firm / MIB:.2f} MiB ({(most - firm) / MIB:+.2f} MiB, {100 * (most / firm - 1):+.2f} %) and {beside / MIB:.2f} MiB for connections and requests")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=0.6 / 60)
    parser.add_argument("--model")
    parser.add_argument("budgets", nargs="*", default=["96MiB", "112MiB", "128MiB", "160MiB", "180MiB"])
    args = parser.parse_args()
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or server.blank_model(f"{folder}/m")
        for budget in args.budgets: measure(model, budget, 60 * args.minutes)
        if not args.model:
            sizes = {k: server.BLANK[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")}
            adapters = [lora_folder.make(f"{folder}/{name}", r=64, seed=i, head_dim=32, **sizes) for i, name in enumerate(("a", "b", "c"))]
            for slots in (3, 1): measure(model, "128MiB", 60 * args.minutes, *(x for a in adapters for x in ("--adapter", f"{os.path.basename(a)}={a}")), "--max-adapters", slots)
    plim.done()


main()
