#!/usr/bin/env python3
"""generate with several prompts: the same answers as one by one, however many run at once and however little room there is."""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def generate(*args):
    result = plim.run("generate", "--device", "cpu", *args, "-q", "--json")
    return (json.loads(result.stdout) if result.returncode == 0 else {}), result.stderr.strip()


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=8, training__learning_rate="5e-3", training__mixed_precision="bf16", output__dir=f"{folder}/run")
    plim.run("train", path, "-q")
    rng = random.Random(3)
    prompts = [plim.CORPUS[a:a + rng.randrange(1, 150)].replace("\n", " ") for a in (rng.randrange(300) for _ in range(12))]
    prompts[5] = prompts[4] + " and on"
    singles = [generate(path, "-p", p, "-n", 24, "--seed", 5)[0]["tokens"] for p in prompts]

    def check(name, *args):
        told, err = generate(path, "-n", 24, "--seed", 5, *args)
        plim.ok([a["tokens"] for a in told.get("answers", [])] == singles, f"{name}: the answers that each prompt gets alone {err}")
        memory = told.get("memory", {"ledger_peak": 0, "planned_total": 1, "rss_peak": 1})
        plim.ok(memory["ledger_peak"] == memory["planned_total"], f"{name}: ledger = plan")
        if not plim.SANITIZED: plim.ok(memory["rss_peak"] <= memory["planned_total"], f"{name}: {memory['rss_peak']} within {memory['planned_total']}")
        return told

    given = [word for p in prompts for word in ("-p", p)]
    wide = check("all at once", *given, "--parallel", 12)
    check("eight at once", *given)
    check("one after the other", *given, "--parallel", 1)
    check("three threads", *given, "--threads", 3)
    with open(f"{folder}/prompts.txt", "w", newline="") as f: f.writelines(p + ("\r\n" if i % 2 else "\n") for i, p in enumerate(prompts))
    with open(f"{folder}/prompts.jsonl", "w") as f: f.writelines(json.dumps({"id": i, "prompt": p}) + "\n" for i, p in enumerate(prompts))
    check("a file of lines", "--prompts-file", f"{folder}/prompts.txt")
    check("a file of JSON lines", "--prompts-file", f"{folder}/prompts.jsonl")
    m = wide["memory"]
    tight = m["planned_total"] - m["cache_bytes"] * 3 // 4
    check("a quarter of the blocks", *given, "--parallel", 12, "-b", tight)

    text = plim.run("generate", "--device", "cpu", path, *given[:4], "-n", 8, "-t", 0)
    plim.ok(text.returncode == 0 and text.stdout.startswith("==> 1 <==\n") and "\n==> 2 <==\n" in text.stdout and "2 answers" in text.stderr,
            f"as text, one after the other: {text.stderr.strip()[:100]}")
    for name, args, word in (("no such file", ["--prompts-file", f"{folder}/none"], "none"), ("no prompt in it", ["--prompts-file", "/dev/null"], "no prompt"),
                             ("a line that is no record", ["--prompts-file", f"{folder}/bad.jsonl"], "bad.jsonl:2"), ("-1 at once", ["-p", "x", "--parallel", -1], "--parallel")):
        open(f"{folder}/bad.jsonl", "w").write('{"prompt": "x"}\n{"text": 1}\n')
        result = plim.run("generate", "--device", "cpu", path, *args)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and word in result.stderr, f"{name}: {result.stderr.strip()}")
plim.done()
