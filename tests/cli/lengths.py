#!/usr/bin/env python3
"""Rows of any length as a user meets them: losses are those of rows padded to the maximum, a stopped run goes on bit for bit, the
smallest budget that a plan states is held, and what was padding is said."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

SMALL = dict(model__hidden_size=32, model__intermediate_size=48, model__num_layers=2, model__num_attention_heads=4, data__max_length=128,
             training__batch_size=32, training__steps=6, data__append_eos="false")
LONGEST = ("--set", "data.padding=longest")


def data(folder):
    with open(f"{folder}/rows.jsonl", "w") as f:
        for i in range(200):
            f.write(json.dumps({"text": "the quick brown fox "[i % 7:] * (1 + (i * i) % (31 if i % 9 == 0 else 5))}) + "\n")
    return f"{folder}/rows.jsonl"


with tempfile.TemporaryDirectory() as folder_:
    path = plim.job(folder_, data__train=f"[{data(folder_)}]", data__validation=f"[{folder_}/rows.jsonl]", **SMALL)

    def train(*args): return plim.run("train", path, "--json", *args)

    whole = train("--no-checkpoint")
    short = train("--no-checkpoint", *LONGEST, "--set", "data.group_by_length=false")
    a, b = plim.losses(whole.stdout), plim.losses(short.stdout)
    plim.ok(len(a) == 6 and a.keys() == b.keys() and all(abs(a[k] - b[k]) < 1e-5 * a[k] for k in a), f"losses are those of padded rows {short.stderr.strip()}")
    ends = [plim.events(r.stdout)[-1] for r in (whole, short)]
    plim.ok(ends[0]["rows"] == ends[1]["rows"] == 384 and ends[0]["positions"] == 384 * 128 and ends[1]["padding"] < ends[0]["padding"] < 1,
            f"padding is told: {ends[0]['padding']:.3f} and {ends[1]['padding']:.3f} of the positions")
    plim.ok(all(e["planned_peak"] == e["ledger_peak"] for e in ends), "planned and booked bytes agree")

    drop = ("--set", "model.dropout=0.1")
    once = train(*LONGEST, *drop, "--set", f"output.dir={folder_}/once")
    half = train(*LONGEST, *drop, "--steps", 3, "--set", f"output.dir={folder_}/half")
    rest = train(*LONGEST, *drop, "--resume", "--set", f"output.dir={folder_}/half")
    parts = {**plim.losses(half.stdout), **plim.losses(rest.stdout)}
    plim.ok(len(parts) == 6 and parts == plim.losses(once.stdout), f"a run that was stopped goes on bit for bit {rest.stderr.strip()}")

    alone = ("--set", "data.group_by_length=false", "--no-checkpoint")
    a2, b2 = plim.losses(train(*drop, *alone).stdout), plim.losses(train(*LONGEST, *drop, *alone).stdout)
    plim.ok(len(a2) == 6 and all(abs(a2[k] - b2[k]) < 1e-5 * a2[k] and a2[k] != a[k] for k in a2), f"dropout's bits do not know of padding: {a2[6]} {b2[6]}")

    plan, _ = plim.plan(path, *LONGEST)
    plim.ok(plan["epoch"]["rows"] == 200 and plan["epoch"]["exact"] and plan["epoch"]["predicted_s"] > 0 and plan["predicted"]["run_s"] > 0,
            f"a plan says how long an epoch and the run take: {plan['epoch']}")
    plan, _ = plim.plan(path, *LONGEST, "--budget", "1MiB")
    least = plan["budget_bytes"] + plan["missing_bytes"]
    tight = train("--no-checkpoint", *LONGEST, "--set", "data.group_by_length=false", "--budget", least)
    c = plim.losses(tight.stdout)
    plim.ok(tight.returncode == 0 and a.keys() == c.keys() and all(abs(a[k] - c[k]) < 1e-5 * a[k] for k in a), f"the smallest budget that is stated runs: {least} bytes {tight.stderr.strip()}")

    epochs = train("--no-checkpoint", *LONGEST, "--set", "training.epochs=2.5")
    plim.ok(len(plim.losses(epochs.stdout)) == 10, f"two and a half epochs of 200 rows are 10 steps of at most 64 {len(plim.losses(epochs.stdout))} {epochs.stderr.strip()}")
    judged = [json.loads(plim.run("eval", path, "--json", "--model", f"{folder_}/once", "--set", f"data.padding={p}", "--set", "training.eval_batch_size=4").stdout)
              for p in ("longest", "max_length")]
    plim.ok(abs(judged[0]["loss"] - judged[1]["loss"]) < 1e-5 * judged[1]["loss"] and judged[0]["padding"] < judged[1]["padding"] and judged[1]["batch"] <= 4,
            f"and so is evaluation: {judged[0]['loss']} {judged[1]['loss']}")

# Both sides of an encoder-decoder.
with tempfile.TemporaryDirectory() as folder_:
    with open(f"{folder_}/pairs.jsonl", "w") as f:
        for i in range(96):
            f.write(json.dumps({"source": plim.CORPUS[i:i + 1 + i * i % (250 if i % 11 == 0 else 40)], "target": plim.CORPUS[7 * i:7 * i + 1 + i * 3 % 23]}) + "\n")
    path = plim.job(folder_, **{**plim.T5, **SMALL, "data__train": f"[{folder_}/pairs.jsonl]", "data__validation": f"[{folder_}/pairs.jsonl]",
                                "data__max_source_length": 256, "data__max_length": 64, "model__head_dim": 8, "training__steps": 3, "training__gradient_accumulation_steps": 1})
    for dropout in (0, 0.1):
        runs = [plim.run("train", path, "--json", "--no-checkpoint", "--set", f"data.padding={p}", "--set", "data.group_by_length=false",
                         "--set", f"model.dropout={dropout}") for p in ("max_length", "longest")]
        a, b = (plim.losses(r.stdout) for r in runs)
        plim.ok(len(a) == 3 and a.keys() == b.keys() and all(abs(a[k] - b[k]) < 1e-5 * a[k] for k in a), f"t5, dropout {dropout}: losses are those of padded rows {runs[1].stderr.strip()} {a} {b}")
        ends = [plim.events(r.stdout)[-1] for r in runs]
        used = [round(e["positions"] * (1 - e["padding"])) for e in ends]
        plim.ok(ends[0]["positions"] == 96 * (64 + 256) and used[0] == used[1] and ends[1]["positions"] * 3 < ends[0]["positions"] * 2,
                f"t5: both sides are counted and shorter: {ends[0]['padding']:.3f} and {ends[1]['padding']:.3f} of the positions are padding")
        plim.ok(all(e["planned_peak"] == e["ledger_peak"] for e in ends), "t5: planned and booked bytes agree")
    evals = [[e["loss"] for e in plim.events(r.stdout) if e["event"] == "eval"] for r in runs]
    plim.ok(evals[0] and all(abs(x - y) < 1e-5 * x for x, y in zip(*evals)), f"t5: evaluations too {evals}")
plim.done()
