#!/usr/bin/env python3
"""Encoder-decoders from a configuration: every pass has the same losses, a run goes on where it stopped, lengths of both sides are in the plan, planned is
ledger, and bad input is one line."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

T5 = dict(model__architecture="t5", model__num_layers=2, model__num_decoder_layers=3, model__num_key_value_heads=4, model__head_dim=24,
          model__feed_forward_proj="gated-gelu", model__tie_word_embeddings="false", data__max_length=20, data__max_source_length=32)
PASSES = ("recompute=full", "recompute=selective", "recompute_layers=4", "loss_chunks=2", "state_tier=disk", "state_tier=disk grad_tier=disk")


def train(path, *more):
    told = plim.run("train", path, "--json", "-q", *more)
    return told, plim.losses(told.stdout)


def refused(what, told, *words):
    line = told.stderr
    good = told.returncode != 0 and line.count("\n") == 1 and all(w in line for w in words)
    plim.ok(good, f"{what}: {line.strip()}")


def with_own_head(file):
    """The same weights, with the embedding once more as lm_head.weight."""
    with open(file, "rb") as f: raw = f.read()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    shared = header["shared.weight"]
    begin, end = shared["data_offsets"]
    header["lm_head.weight"] = {**shared, "data_offsets": [len(data), len(data) + end - begin]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as f: f.write(len(text).to_bytes(8, "little") + text + data + data[begin:end])


def unscaled_head(folder, data):
    """transformers 5 writes tie_word_embeddings: true for every T5; with scale_decoder_outputs: false the files say whose the head is."""
    path = plim.job(folder, **{**T5, "model__tie_word_embeddings": "true", "data__train": f"[{data}]", "data__validation": f"[{data}]", "output__dir": f"{folder}/tied"})
    train(path, "--steps", 1)
    plim.run("export", f"{folder}/tied", "-o", f"{folder}/scaled", "--dtype", "f32")
    for name in ("unscaled", "own"):
        shutil.copytree(f"{folder}/scaled", f"{folder}/{name}")
        with open(f"{folder}/{name}/config.json") as f: config = json.load(f)
        config.update(tie_word_embeddings=True, scale_decoder_outputs=False)
        with open(f"{folder}/{name}/config.json", "w") as f: json.dump(config, f)
    with_own_head(f"{folder}/own/model.safetensors")
    told = {name: plim.run("eval", path, "--model", f"{folder}/{name}", "--json", "-q") for name in ("scaled", "unscaled", "own")}
    loss = {name: json.loads(t.stdout)["loss"] if t.returncode == 0 else t.stderr for name, t in told.items()}
    plim.ok(loss["unscaled"] == loss["own"] != loss["scaled"], f"a tied head without its scale is read: {loss}")


with tempfile.TemporaryDirectory() as folder:
    data, bad = f"{folder}/pairs.jsonl", f"{folder}/bad.jsonl"
    with open(data, "w") as f:
        for i in range(24): f.write(json.dumps({"source": "abcdefghij "[i % 7:] * (1 + i % 3), "target": "xyzw"[: 1 + i % 4] * (1 + i % 5)}) + "\n")
        f.write(json.dumps({"source": "a", "target": "b"}) + "\n")
    with open(bad, "w") as f: f.write(json.dumps({"source": "abc", "answer": "b"}) + "\n")
    job = {**T5, "data__train": f"[{data}]", "data__validation": f"[{data}]"}
    path = plim.job(folder, **job)
    unscaled_head(folder, data)
    path = plim.job(folder, **job)
    told, reference = train(path, "--no-checkpoint", "--set", "training.micro_batch_size=4")
    plim.ok(len(reference) == 4, f"trains {told.stderr.strip()}")
    end = [e for e in plim.events(told.stdout) if e["event"] == "end"][-1]
    plim.ok(end["ledger_peak"] == end["planned_peak"], f"ledger {end['ledger_peak']} = planned {end['planned_peak']}")
    for pins in PASSES:
        sets = [w for pin in pins.split() for w in ("--set", f"training.{pin}")]
        told, losses = train(path, "--no-checkpoint", "--set", "training.micro_batch_size=4", *sets)
        plim.ok(losses == reference, f"{pins}: the same losses {told.stderr.strip()}")
    plain, _ = plim.plan(path, "--budget", "1GiB")
    wide, _ = plim.plan(path, "--budget", "1GiB", "--set", "data.max_source_length=512")
    plim.ok(wide["peak_bytes"]["total"] > plain["peak_bytes"]["total"] + (1 << 20), "a longer source takes more")

    train(path, "--set", "training.steps=2")
    _, rest = train(path, "--resume")
    plim.ok(rest and all(abs(rest[s] - reference[s]) < 2e-6 * reference[s] for s in rest) and 4 in rest, f"goes on {rest}")
    told = plim.run("inspect", f"{folder}/run/checkpoint-00000004")
    plim.ok(told.returncode == 0 and "EncDecAttention" in told.stdout + plim.run("inspect", f"{folder}/run/checkpoint-00000004", "--tensors").stdout,
            f"inspect shows it {told.stderr.strip()}")

    write = ["generate", f"{folder}/run", "--device", "cpu", "-n", 6, "-t", 0, "-q"]
    sources = ["abcdefghij", "a", "cde " * 4]
    for beams in (1, 3):
        alone = [json.loads(plim.run(*write, "--json", "--beams", beams, "-p", p).stdout) for p in sources]
        told = plim.run(*write, "--json", "--beams", beams, *[w for p in sources for w in ("-p", p)])
        together = json.loads(told.stdout) if told.returncode == 0 else {"answers": []}
        plim.ok([a["tokens"] for a in together["answers"]] == [a["tokens"] for a in alone] and together["parallel"] == 3,
                f"{beams} beams: several sources are answered as each alone {told.stderr.strip()}")
        memory = together["memory"]
        plim.ok(memory["ledger_peak"] == memory["planned_total"] and memory["positions"] == 6, f"{beams} beams: planned is ledger {memory}")
    asked = ["generate", f"{folder}/run", "--device", "cpu", "-n", 100, "-q", "--json", "--beams", 8]
    several = [*asked, *[w for p in sources for w in ("-p", p)]]
    one, three = (json.loads(plim.run(*args).stdout) for args in ([*asked, "-p", sources[2]], several))
    tight = json.loads(plim.run(*several, "--budget", (one["memory"]["planned_total"] + three["memory"]["planned_total"]) // 2).stdout)
    plim.ok(three["parallel"] == 3 and tight["parallel"] == 1 and [a["tokens"] for a in three["answers"]] == [a["tokens"] for a in tight["answers"]],
            f"a budget for one source answers them one after the other: {three['memory']} {tight['memory']}")
    told = plim.run(*write, "-p", "abc", "-p", "xyz")
    plim.ok(told.returncode == 0 and told.stdout.startswith("==> 1 <==\n") and "==> 2 <==\n" in told.stdout, "answers of several sources are told apart")
    refused("no room", plim.run(*write, "-p", "abc", "--budget", "1KiB"), "missing", "ask for fewer tokens")
    refused("a record without a target", plim.run("train", path, "--no-checkpoint", "--set", f"data.train={bad}", "--set", f"output.dir={folder}/x"),
            "bad.jsonl:1", "target")
    long = f"{folder}/long.jsonl"
    with open(long, "w") as f: f.write(json.dumps({"source": "ab", "target": "x"}) + "\n" + json.dumps({"source": "ab" * 40, "target": "x" * 37}) + "\n")
    overlong = ("--no-checkpoint", "--set", f"data.train={long}", "--set", f"output.dir={folder}/x", "--set", "training.steps=1")
    refused("a longer target", plim.run("train", path, *overlong), "long.jsonl:2", "37 tokens", "data.max_length is 20", "data.overlong: truncate")
    told = plim.run("train", path, *overlong, "--set", "data.overlong=truncate")
    plim.ok(told.returncode == 0, f"or is cut where that is asked for {told.stderr.strip()[-200:]}")
    llama = plim.job(folder, output__dir=f"{folder}/llama")
    refused("refuse for a decoder", plim.run("train", llama, "--no-checkpoint", "--set", "data.overlong=refuse"), "data.overlong", "source_target")
    path = plim.job(folder, **job)
    refused("next_token", plim.run("train", path, "--set", "training.objective=next_token", "--set", f"output.dir={folder}/x"), "source_target")
    refused("rope", plim.run("plan", path, "--set", "model.rope_theta=10000"), "rope_theta", "t5 does not have it")
    refused("beams of a decoder", plim.run("generate", f"{folder}/run", "-p", "abc", "--beams", 0), "--beams")
    llama = plim.job(folder, training__steps=1, output__dir=f"{folder}/llama")
    plim.run("train", llama, "-q")
    refused("beams of a decoder", plim.run("generate", f"{folder}/llama", "-p", "abc", "--beams", 4, "--device", "cpu"), "--beams", "llama")
    refused("decoder layers of a decoder", plim.run("plan", llama, "--set", "model.num_decoder_layers=2"), "num_decoder_layers")
plim.done()
