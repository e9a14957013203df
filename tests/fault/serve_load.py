#!/usr/bin/env python3
"""While a server loads a model, as it is or rounded to 8 or 4 bits by several threads, its memory as the system sees it stays inside the plan:
a server whose budget is the plan's own total comes up without ever having had more."""
# run-tests: timeout=300, not=asan, not=tsan
import json
import os
import sys
import tempfile

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import llama_folder
import plim
from plim import ok
import server

MIB = 1 << 20
FLAGS = ("--device", "cpu", "--max-context", 64, "--parallel", 2, "--max-connections", 64, "--max-body", "64KiB")


def load(model, weights):
    flags = (*FLAGS, "--weights", weights)
    plan = json.loads(plim.run("plan", "--serve", model, "--json", *flags).stdout)
    with server.Server(model, *flags[2:], "--budget", plan["total"], program=plim.PLIMSOLL) as s:
        if s.process.poll() is not None: return ok(False, f"{weights}: does not come up: {s.log()[-300:]}")
        now, most = server.resident(s.process)
        total = json.loads(s.get("/hold")[1])["plan"]["total"]
        ok(now <= most <= total <= plan["total"], f"{weights}: at most {most / MIB:.1f} MiB while it came up, {now / MIB:.1f} now, planned {total / MIB:.1f}")
        return now


def main():
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/m", bf16=True, vocab_size=16384, hidden_size=512, intermediate_size=1536, num_hidden_layers=6, head_dim=64, num_attention_heads=8, num_key_value_heads=8)
        as_is, q8, q4 = load(model, "as-is"), load(model, "q8"), load(model, "q4")
        ok(as_is > q8 + 15 * MIB and q8 > q4 + 4 * MIB, f"and what is held is smaller: {[n // MIB for n in (as_is, q8, q4)]} MiB")
    plim.done()


main()
