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
    plan = json.loads(plim.run("serve", model, "--plan", "--json", *flags).stdout)["plan"]
    with server.Server(model, *flags[2:], "--budget", plan["total"], program=plim.PLIMSOLL) as s:
        if s.process.poll() is not None: return ok(False, f"{weights}: does not come up: {s.log()[-300:]}")
        now, most = server.resident(s.process)
        total = json.loads(s.get("/hold")[1])["plan"]["total"]
        ok(now <= most <= total <= plan["total"], f"{weights}: at most {most / MIB:.1f} MiB while it came up, {now / MIB:.1f} now, planned {total / MIB:.1f}")
        return now


def streamed(model, folder):
    """Half of the parameters do not fit: they are read from disk for each step, below the cache folder or one that is named, and the text is
    the same."""
    ask = {"prompt": "The ship", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with server.Server(model, *FLAGS[2:], program=plim.PLIMSOLL) as s:
        wanted, plan = s.post("/v1/completions", ask)[1]["choices"][0]["text"], json.loads(s.get("/hold")[1])["plan"]
    budget = plan["parameters"]
    small = plim.run("serve", model, "--plan", *FLAGS, "--budget", budget, "--scratch", "none")
    ok(small.returncode == 3 and "missing" in small.stderr, f"without a folder for them: {small.stderr.splitlines()[-1]}")
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
    text = plim.run("plan", "--serve", model, *FLAGS, "--budget", budget)
    ok(text.returncode == 0 and "live on disk" in text.stdout, f"plan --serve says so: {text.stderr}")
    for flags, where in (((), f"{folder}/cache/plimsoll"), (("--scratch", folder), folder)):
        with server.Server(model, *FLAGS[2:], "--budget", budget, *flags, program=plim.PLIMSOLL) as s:
            if s.process.poll() is not None: return ok(False, f"does not come up: {s.log()[-300:]}")
            got, hold = s.post("/v1/completions", ask)[1]["choices"][0]["text"], json.loads(s.get("/hold")[1])
            most = server.resident(s.process)[1]
            ok(hold["rung"] == "streamed" and hold["plan"]["streamed"] > 0 and got == wanted, f"{flags}: {hold['plan']['streamed'] / MIB:.1f} MiB on disk, the same text {got!r}")
            ok(most <= hold["plan"]["total"] <= budget, f"at most {most / MIB:.1f} MiB, planned {hold['plan']['total'] / MIB:.1f}, budget {budget / MIB:.1f}")
            ok("performance will be limited" in s.log() and s.log().count(f"below {where} (--scratch)") == 1, "and it says so, and where")


def main():
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/m", bf16=True, vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, head_dim=64, num_attention_heads=8, num_key_value_heads=8)
        as_is, q8, q4 = load(model, "as-is"), load(model, "q8"), load(model, "q4")
        ok(as_is > q8 + 15 * MIB and q8 > q4 + 4 * MIB, f"and what is held is smaller: {[n // MIB for n in (as_is, q8, q4)]} MiB")
        streamed(model, folder)
    plim.done()


main()
