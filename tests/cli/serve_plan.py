#!/usr/bin/env python3
"""plimsoll plan --serve: the very plan that serve commits, also for devices that are not here; and what is kept of it for the next
start."""
# run-tests: timeout=300
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import glob
import json
import tempfile

import llama_folder
import plim
from plim import ok
import server

server.need_http()


def plan(model, *flags, device="cpu"):
    return plim.run("plan", "--serve", model, "--json", "--device", device, *flags)


def served(model, *flags):
    """The plan of a server, and what it holds."""
    with server.Server(model, *flags, program=plim.PLIMSOLL) as s:
        hold = json.loads(s.get("/hold")[1])
        s.stop()
    return hold


def same_plans(model):
    for flags in ([], ["--budget", "96MiB"], ["--budget", "52MiB"], ["--budget", "300MiB", "--parallel", 3, "--max-context", 200]):
        p = json.loads(plan(model, *flags).stdout)
        hold = served(model, *flags)
        different = {k: (v, hold["plan"][k]) for k, v in p["plan"].items() if hold["plan"][k] != v and k != "remembered"}
        ok(not different and p["rung"] == hold["rung"] and p["plan"]["total"] == hold["used"] and hold["plan"]["remembered"],
           f"{flags}: planned and committed are the same bytes, {hold['used']}, rung {p['rung']} {different}")
        parts = p["plan"]["parameters"] + p["plan"]["pool"] + p["plan"]["transient"] + p["plan"]["overhead"]
        ok(0 <= p["plan"]["total"] - parts < 64 << 10 and p["plan"]["decode_tokens_per_second"] > 0 and p["plan"]["prefill_tokens_per_second"] > 0,
           f"its parts make it up, speed is predicted: {p['plan']}")
        ok(p["budget"] == 0 or p["plan"]["total"] <= p["budget"], "inside the budget")


def absent(model):
    p = json.loads(plan(model, "--budget", "2GiB", device="a10g").stdout)
    ok(p["device"] == "a10g" and p["plan"]["total"] <= 2 << 30 and p["plan"]["host"] > 0, f"on a card that is not here: {p}")
    few, many = (json.loads(plan(model, "--parallel", n, "--max-context", 512, "--budget", "4GiB", device="h200").stdout)["plan"] for n in (256, 1024))
    beside = [x["total"] - x["arena"] for x in (few, many)]
    ok(beside[1] - beside[0] > 100 << 20, f"so many requests have many shapes of steps, and each is recorded on the card: {beside}")
    text = plim.run("plan", "--serve", model, "--device", "a10g").stdout
    ok(all(w in text for w in ("serving on a10g, no budget", "parameters", "keys and values", "at once of 512 tokens", "predicted tokens/s")), f"as text:\n{text}")
    tight = json.loads(plan(model, "--budget", "506MiB", device="a10g").stdout)
    ok(tight["rung"] in ("fewer", "streamed"), f"a card that is nearly too small: rung {tight['rung']}")


def types(model):
    """--dtype is the type of weights, cache and activations, also of the server's answers."""
    plain, narrow = (json.loads(plan(model, *flags).stdout)["plan"] for flags in ([], ["--dtype", "bf16"]))
    ok(plain["precision"] == "fp32" and narrow["precision"] == "bf16" and narrow["kv_type"] == "bf16" and 2 * narrow["parameters"] == plain["parameters"],
       f"--dtype bf16: {narrow['parameters']} of {plain['parameters']} bytes")
    hold = served(model, "--dtype", "bf16", "--disable-cudagraphs")
    ok(hold["plan"]["precision"] == "bf16" and hold["plan"]["parameters"] == narrow["parameters"], "and serves so")
    r = plim.run("plan", "--serve", model, "--dtype", "int3")
    ok(r.returncode == 2 and "--dtype" in r.stderr and r.stderr.count("\n") == 1, f"bad type: {r.stderr.strip()}")


def refusals(model):
    r = plan(model, "--budget", "3MiB")
    ok(r.returncode == 3 and r.stderr.count("\n") == 1 and "missing" in r.stderr and not r.stdout, f"nothing fits: {r.stderr.strip()}")
    for flags, words in ((["--device", "a11g"], "--device"), (["--parallel", "-1"], "--parallel"), (["--allow-degraded", "x"], "--allow-degraded")):
        r = plim.run("plan", "--serve", model, *flags)
        ok(r.returncode == 2 and words in r.stderr and r.stderr.count("\n") == 1, f"{flags}: {r.stderr.strip()}")
    r = plim.run("serve", model, "--json")
    ok(r.returncode == 2 and "--plan" in r.stderr, f"--json without --plan: {r.stderr.strip()}")


def environment(model, narrow):
    """Variables act as flags do, which are stronger, or are refused by their value."""
    def planned(which, *flags, device="cpu", **env):
        r = plim.run("plan", "--serve", which, "--json", "--device", device, *flags, env=env)
        return (json.loads(r.stdout)["plan"] if r.returncode == 0 else {}), r
    for env, flags, want in (({}, [], None), ({"MAX_BATCH_SIZE": "3"}, [], 3), ({"MAX_BATCH_SIZE": "3"}, ["--parallel", 5], 5)):
        p, r = planned(model, "--budget", "300MiB", *flags, **env)
        ok(p and (p["parallel"] == want if want else p["parallel"] > 5), f"{env} {flags}: {p.get('parallel')} requests at once {r.stderr.strip()}")
    precision = lambda which, device, **env: planned(which, device=device, **env)[0].get("precision")
    ok([precision(narrow, "cpu"), precision(narrow, "cpu", ENABLE_MIXED_PRECISION="false"), precision(model, "a10g"), precision(model, "a10g", ENABLE_MIXED_PRECISION="true"), precision(model, "t4", ENABLE_MIXED_PRECISION="1"),
        precision(model, "a10g", ENABLE_MIXED_PRECISION="0"), precision(narrow, "a10g", ENABLE_MIXED_PRECISION="true")] == ["bf16", "fp32", "fp32", "bf16", "fp16", "fp32", "bf16"], "ENABLE_MIXED_PRECISION is the type that is computed in")
    whole, half = (planned(model, device="a10g", **env)[0].get("total", 0) for env in ({}, {"CUDA_MEMORY_FRACTION": "0.04"}))
    ok(0 < half <= 0.04 * 24e9 and half < whole, f"CUDA_MEMORY_FRACTION is a GPU's budget: {half} of {whole}")
    for name, value in (("MAX_BATCH_SIZE", "many"), ("MAX_BATCH_SIZE", "0"), ("ENABLE_MIXED_PRECISION", "perhaps"), ("CUDA_MEMORY_FRACTION", "7")):
        r = plim.run("serve", model, "--port", 0, env={name: value})
        ok(r.returncode == 2 and name in r.stderr and value in r.stderr and r.stderr.count("\n") == 1 and not r.stdout, f"{name}={value}: {r.stderr.strip()}")
    os.environ["ENABLE_MIXED_PRECISION"] = "false"
    with server.Server(narrow, "--parallel", 2, program=plim.PLIMSOLL) as s:
        answer = s.post("/generate", {"prompt": "abc", "max_tokens": 4})
        s.stop()
    del os.environ["ENABLE_MIXED_PRECISION"]
    ok(answer[0] == 200, f"a server that computes bf16 weights in fp32 answers: {answer[0]}")


def cache(model, folder):
    files = lambda: sorted(glob.glob(f"{folder}/cache/plimsoll/serve-*.json"))
    for f in files(): os.remove(f)
    flags = ["--budget", "96MiB"]
    first, second = (json.loads(plan(model, *flags).stdout)["plan"] for _ in range(2))
    ok(not first.pop("remembered") and second.pop("remembered") and first == second and len(files()) == 1, f"what stood is kept and is the same {files()}")
    for damage in (b"", b"{", b'{"key": "x"}', None):
        with open(files()[0], "rb+") as f:
            good = f.read()
            f.seek(0)
            f.truncate()
            f.write(good.replace(b'"step": ', b'"step": -') if damage is None else damage)
        r = plan(model, *flags)
        p = json.loads(r.stdout)["plan"]
        ok(r.returncode == 0 and not p["remembered"] and {k: v for k, v in p.items() if k in ("context", "parallel", "step_tokens")} ==
           {k: v for k, v in first.items() if k in ("context", "parallel", "step_tokens")} and len(files()) == 1, f"a damaged file is passed over: {damage}")
    os.utime(f"{model}/model.safetensors")
    ok(not json.loads(plan(model, *flags).stdout)["plan"]["remembered"], "another model in the same folder has another plan")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        model = llama_folder.make(f"{folder}/m", hidden_size=128, head_dim=128, num_attention_heads=8, num_key_value_heads=8)
        same_plans(model)
        absent(model)
        types(model)
        refusals(model)
        environment(model, llama_folder.make(f"{folder}/narrow", bf16=True, hidden_size=128, head_dim=128, num_attention_heads=8, num_key_value_heads=8))
        cache(model, folder)
    plim.done()


main()
