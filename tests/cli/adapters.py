#!/usr/bin/env python3
"""Adapters as users meet them: --lora, PEFT folders in and out, merging, frozen parameters, and what is refused."""
import json
import os
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gguf_file
import llama_folder
import plim


def header(path):
    with open(path, "rb") as f: return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def floats(path):
    """Every fp32 tensor of a file."""
    with open(path, "rb") as f: data = f.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return {k: struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}f", data[start + v["data_offsets"][0]:start + v["data_offsets"][1]]) for k, v in header(path).items() if k != "__metadata__"}


def refused(folder, text, *args, **keys):
    """One line with that text, exit 2, and nothing else."""
    path = plim.job(folder, **{**BASE, **keys})
    result = plim.run("train", path, "-q", *args)
    plim.ok(result.returncode == 2 and text in result.stderr and result.stderr.count("\n") == 1, f"refused: {text} ({result.returncode}) {result.stderr.strip()[-220:]}")


def loss(folder, *args):
    result = plim.run("eval", f"{folder}/job.yaml", "--json", "--rows", "8", "-q", *args)
    return json.loads(result.stdout)["loss"] if result.returncode == 0 else result.stderr


with tempfile.TemporaryDirectory() as folder:
    model = llama_folder.make(f"{folder}/base", hidden_size=32, intermediate_size=48)
    BASE = {f"model__{k}": None for k in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")}
    BASE.update(model__path=model, training__learning_rate=None)
    path = plim.job(folder, **BASE)

    # One flag.
    planned, result = plim.plan(path, "--lora")
    plim.ok(planned and planned["trained_parameters"] == 2 * 16 * (96 + 64 + 64 + 96 + 80 + 80 + 80), f"plan --lora: {planned and planned['trained_parameters']} parameters are trained {result.stderr.strip()}")
    whole, _ = plim.plan(path)
    narrow, result = plim.plan(path, "--lora", "--base", "q8")
    plim.ok(narrow and narrow["by_class"]["param"] < planned["by_class"]["param"], f"--base q8: a smaller base {result.stderr.strip()}")
    plim.ok(planned["by_class"]["state"] == 8 * planned["trained_parameters"] < whole["by_class"]["state"], "an adapter has state for itself alone")
    trained = plim.run("train", path, "--lora", "r=4,alpha=8,targets=q_proj,v_proj,down_proj", "--set", "training.learning_rate=0.02", "--steps", "12", "-q")
    run = f"{folder}/run/checkpoint-00000012"
    names = header(f"{run}/adapter_model.safetensors") if trained.returncode == 0 else {}
    plim.ok(set(names) - {"__metadata__"} == {f"base_model.model.model.layers.{i}.{m}.lora_{x}.weight" for i in range(2) for m in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj") for x in "AB"}, f"PEFT's names and no others: {sorted(names)[:3]} {trained.stderr.strip()[-200:]}")
    plim.ok(names.get("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", {}).get("shape") == [4, 32], "A is [r,in]")
    config = json.load(open(f"{run}/adapter_config.json"))
    plim.ok(config["peft_type"] == "LORA" and config["r"] == 4 and config["lora_alpha"] == 8 and config["target_modules"] == ["q_proj", "v_proj", "down_proj"] and config["base_model_name_or_path"] == os.path.realpath(model), f"adapter_config.json: {config}")

    # The run's folder is used like a model; merged, or with --adapter, the numbers are the same.
    own, plain, given = loss(folder), loss(folder, "--model", model), loss(folder, "--model", model, "--adapter", run)
    plim.ok(own == given and own < plain, f"eval: {own} of the run, {given} with --adapter, {plain} of the base")
    merged = plim.run("export", f"{folder}/run", "-o", f"{folder}/merged", "--merge")
    other = plim.run("export", model, "-o", f"{folder}/merged2", "--adapter", run)
    same = merged.returncode == 0 and other.returncode == 0 and open(f"{folder}/merged/model.safetensors", "rb").read() == open(f"{folder}/merged2/model.safetensors", "rb").read()
    plim.ok(same, f"export --merge is export --adapter {merged.stderr.strip()} {other.stderr.strip()}")
    plim.ok(loss(folder, "--model", f"{folder}/merged") == own, "the merged model has the loss of the run")
    before, after, adapter = floats(f"{model}/model.safetensors"), floats(f"{folder}/merged/model.safetensors"), floats(f"{run}/adapter_model.safetensors")
    key = "model.layers.1.mlp.down_proj"
    a, b, w = adapter[f"base_model.model.{key}.lora_A.weight"], adapter[f"base_model.model.{key}.lora_B.weight"], list(before[f"{key}.weight"])
    for o in range(32):
        for i in range(48): w[o * 48 + i] += 2.0 * sum(b[o * 4 + k] * a[k * 48 + i] for k in range(4))
    plim.ok(max(abs(x - y) for x, y in zip(w, after[f"{key}.weight"])) < 1e-6 and before["model.embed_tokens.weight"] == after["model.embed_tokens.weight"], "W + s B A, and the rest as it was")
    folder_of = plim.run("export", f"{folder}/run", "-o", f"{folder}/peft", "--dtype", "f32")
    plim.ok(folder_of.returncode == 0 and sorted(os.listdir(f"{folder}/peft")) == ["adapter_config.json", "adapter_model.safetensors"], f"export without --merge: a PEFT folder {folder_of.stderr.strip()}")
    texts = [plim.run("generate", m, *more, "-p", "The old", "-n", "8", "-q", "--temperature", "0").stdout for m, more in ((f"{folder}/run", ()), (f"{folder}/merged", ()), (model, ("--adapter", f"{folder}/peft")))]
    plim.ok(len(set(texts)) == 1 and texts[0], f"generate: the run, the merged model and --adapter agree: {texts}")

    # A GGUF file of it: names and order of rows as llama.cpp reads them, and the same merged weights.
    made = plim.run("export", f"{folder}/run", "-o", f"{folder}/lora.gguf", "--dtype", "f32", "-q")
    meta, tensors = gguf_file.read(f"{folder}/lora.gguf") if made.returncode == 0 else ({}, {})
    plim.ok(meta == {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}, f"GGUF: metadata {meta} {made.stderr.strip()}")
    plim.ok(set(tensors) == {f"blk.{i}.{m}.weight.lora_{x}" for i in range(2) for m in ("attn_q", "attn_v", "ffn_down") for x in "ab"}, f"GGUF: names {sorted(tensors)[:3]}")
    exact = floats(f"{folder}/peft/adapter_model.safetensors")
    b = exact["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"]  # 4 heads of 16 rows: 0, 8, 1, 9, ...
    rows = [b[4 * r:4 * r + 4] for h in range(4) for i in range(8) for r in (16 * h + i, 16 * h + 8 + i)]
    plim.ok(tensors.get("blk.1.attn_q.weight.lora_b") == ([64, 4], tuple(x for row in rows for x in row)) and any(b), "GGUF: rows of queries are paired")
    plim.ok(tensors.get("blk.1.ffn_down.weight.lora_a") == ([4, 48], exact["base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"]), "GGUF: A is [r,in]")
    both = [plim.run("export", model, "-o", f"{folder}/by-{k[:4]}", "--adapter", f"{folder}/{k}") for k in ("lora.gguf", "peft")]
    same = all(r.returncode == 0 for r in both) and open(f"{folder}/by-lora/model.safetensors", "rb").read() == open(f"{folder}/by-peft/model.safetensors", "rb").read()
    plim.ok(same, f"GGUF: merged like the PEFT folder {both[0].stderr.strip()} {both[1].stderr.strip()}")
    plim.ok(plim.run("generate", model, "--adapter", f"{folder}/lora.gguf", "-p", "The old", "-n", "8", "-q", "--temperature", "0").stdout == texts[0], "GGUF: generate agrees, too")
    for args, words in ((("export", f"{folder}/run", "-o", f"{folder}/lora.gguf"), "exists; choose another target"), (("export", model, "-o", f"{folder}/model.gguf"), "of an adapter alone"),
                        (("generate", model, "--adapter", f"{model}/model.safetensors", "-p", "x"), "adapter_config.json"),
                        (("generate", llama_folder.make(f"{folder}/other", num_hidden_layers=1), "--adapter", f"{folder}/lora.gguf", "-p", "x", "-q"), "lora_A.weight' is [4,32], but")):
        wrong = plim.run(*args)
        plim.ok(wrong.returncode == 2 and words in wrong.stderr and wrong.stderr.count("\n") == 1, f"GGUF, refused: {wrong.returncode} {wrong.stderr.strip()}")

    # A module with a scale of its own has it in its B: the file has one alpha.
    job = plim.job(folder, **{**BASE, "adapter__type": "rslora", "adapter__r": 4, "adapter__targets": "[q_proj, o_proj]", "adapter__rank_pattern": '["o_proj=2"]', "training__learning_rate": 0.02, "output__dir": f"{folder}/scales"})
    trained = plim.run("train", job, "-q")
    for kind in ("gguf-scales.gguf", "peft-scales"):
        plim.run("export", f"{folder}/scales", "-o", f"{folder}/{kind}", "--dtype", "f32", "-q")
        plim.run("export", model, "-o", f"{folder}/by-{kind[:4]}-scales", "--adapter", f"{folder}/{kind}", "-q")
    got, want, start = (floats(f"{folder}/{k}/model.safetensors") for k in ("by-gguf-scales", "by-peft-scales", "base"))
    worst = max(abs(x - y) for k in want for x, y in zip(got[k], want[k]))
    plim.ok(worst < 1e-7 and want != start, f"GGUF: rsLoRA and a rank of its own: {worst} apart {trained.stderr.strip()}")
    dora = plim.run("train", plim.job(folder, **{**BASE, "adapter__type": "dora", "output__dir": f"{folder}/dora-run", "training__steps": 1}), "-q")
    wrong = plim.run("export", f"{folder}/dora-run", "-o", f"{folder}/dora.gguf", "-q")
    plim.ok(wrong.returncode == 2 and "lora_magnitude_vector' has no place in a GGUF adapter" in wrong.stderr and not os.path.exists(f"{folder}/dora.gguf"), f"GGUF: DoRA is refused: {wrong.stderr.strip()} {dora.stderr.strip()}")

    # Going on from a PEFT folder.
    plim.job(folder, **{**BASE, "adapter__path": f"{folder}/peft", "output__dir": f"{folder}/more"})
    more = plim.run("train", path, "-q", "--json", "--steps", "1")
    first = next((e["loss"] for e in plim.events(more.stdout) if e.get("event") == "step"), None)
    fresh = plim.run("train", plim.job(folder, **BASE), "-q", "--json", "--steps", "1", "--lora", "--set", f"output.dir={folder}/fresh")
    start = next((e["loss"] for e in plim.events(fresh.stdout) if e.get("event") == "step"), None)
    plim.ok(more.returncode == 0 and first < start, f"adapter.path begins where it ended: {first}, not {start} {more.stderr.strip()[-200:]}")

    # DoRA, resumed; freezing, resumed.
    for name, keys in (("dora", dict(adapter__type="dora", training__mixed_precision="bf16", adapter__dropout=0.1)), ("freeze", dict(training__freeze='[embed_tokens, "layers.0"]'))):
        job = plim.job(folder, **{**BASE, **keys, "training__steps": 6, "training__save_every": 3, "output__dir": f"{folder}/{name}"})
        once = plim.losses(plim.run("train", job, "-q", "--json").stdout)
        shutil.rmtree(f"{folder}/{name}/checkpoint-00000006", ignore_errors=True)
        again = plim.losses(plim.run("train", job, "-q", "--json", "--resume").stdout)
        plim.ok(len(once) == 6 and len(again) == 3 and all(once[s] == again[s] for s in again), f"{name}: resumed bit for bit: {again}")

    # An adapter of the output projection: slices of the loss change nothing, in supervised training and with preferences; merged, it computes the same.
    untied = llama_folder.make(f"{folder}/untied", hidden_size=32, intermediate_size=48, tie_word_embeddings=False)
    with open(f"{folder}/pairs.jsonl", "w") as f:
        for i in range(16): f.write(json.dumps({"prompt": f"ask {i}", "chosen": f"well {i}", "rejected": f"no {i}"}) + "\n")
    dpo = dict(training__objective="dpo", data__train=f"[{folder}/pairs.jsonl]")
    for name, keys, kind, targets in (("sft", {}, "lora", "[lm_head, v_proj]"), ("dpo", dpo, "lora", "[lm_head, v_proj]"), ("sft dora", {}, "dora", "[lm_head, embed_tokens, v_proj]"), ("dpo dora", dpo, "dora", "[lm_head, embed_tokens]")):
        job = plim.job(folder, **{**BASE, **keys, "model__path": untied, "adapter__type": kind, "adapter__targets": targets, "training__learning_rate": 0.01, "training__steps": 4, "training__micro_batch_size": 4,
                                  "data__max_length": 256, "training__eval_rows": 8, "data__validation": f"[{folder}/{'pairs.jsonl' if keys else 'corpus.txt'}]", "output__dir": f"{folder}/head"})
        runs = [plim.run("train", job, "-q", "--json", "--overwrite", "--set", f"training.loss_chunks={n}", "--set", f"training.recompute={how}") for n, how in ((1, "none"), (2, "none"), (4, "full"))]
        seen = [plim.losses(r.stdout) for r in runs]
        plim.ok(len(seen[0]) == 4 and seen[0][4] < seen[0][1] and all(s == seen[0] for s in seen), f"{name}: an adapter of lm_head in slices: {seen[0]} {runs[0].stderr.strip()[-200:]} {runs[1].stderr.strip()[-200:]}")
        if not keys:
            scores, merged = [e["loss"] for e in plim.events(runs[0].stdout) if e["event"] == "eval"], loss(folder)
            plim.ok(scores and abs(scores[-1] - merged) < 1e-6 * merged, f"lm_head: {scores[-1:]} with the adapter's ops, {merged} merged")

    # An embedding's adapter, resumed, with PEFT's names; and DoRA leaves the base alone at first, however the base lies.
    job = plim.job(folder, **{**BASE, "model__path": untied, "adapter__type": "lora", "adapter__r": 4, "adapter__targets": "[embed_tokens]", "training__steps": 6, "training__save_every": 3, "training__mixed_precision": "bf16",
                              "training__learning_rate": 0.05, "output__dir": f"{folder}/embed"})
    once = plim.losses(plim.run("train", job, "-q", "--json").stdout)
    shutil.rmtree(f"{folder}/embed/checkpoint-00000006", ignore_errors=True)
    again = plim.losses(plim.run("train", job, "-q", "--json", "--resume").stdout)
    plim.ok(len(once) == 6 and once[6] < once[1] and len(again) == 3 and all(once[s] == again[s] for s in again), f"embedding: resumed bit for bit: {once} {again}")
    names = {k: v["shape"] for k, v in header(f"{folder}/embed/checkpoint-00000006/adapter_model.safetensors").items() if k != "__metadata__"}
    plim.ok(names == {"base_model.model.model.embed_tokens.lora_embedding_A": [4, 256], "base_model.model.model.embed_tokens.lora_embedding_B": [32, 4]}, f"embedding: PEFT's names and shapes: {names}")
    for name, keys in (("embedding and head", dict(model__path=untied, adapter__targets="[embed_tokens, lm_head, q_proj]")), ("base in 8 bits", dict(model__weights="q8")), ("base in 4 bits", dict(model__weights="nf4", model__path=llama_folder.make(f"{folder}/wide")))):
        first = [plim.losses(plim.run("train", plim.job(folder, **{**BASE, **keys, "adapter__type": kind, "training__steps": 1, "output__dir": f"{folder}/first"}), "-q", "--json", "--overwrite").stdout).get(1, 0) for kind in ("lora", "dora")]
        plim.ok(first[0] > 0 and abs(first[0] - first[1]) < 1e-5 * first[0], f"DoRA, {name}: begins where LoRA does: {first}")

    # Experts: the adapter's own ops compute what the merged weights do.
    base = plim.run("train", plim.job(folder, **{**plim.EXPERTS, "training__steps": 1, "output__dir": f"{folder}/moe"}), "-q")
    made = plim.run("export", f"{folder}/moe", "-o", f"{folder}/moe-base", "-q")
    job = plim.job(folder, **{**BASE, "model__path": f"{folder}/moe-base", "adapter__type": "lora", "adapter__targets": "['.*experts\\..*w[123]', k_proj]", "training__learning_rate": 0.01,
                              "training__steps": 6, "training__eval_rows": 8, "data__validation": f"[{folder}/corpus.txt]", "output__dir": f"{folder}/experts"})
    result = plim.run("train", job, "-q")
    scores = [e["loss"] for e in plim.events(result.stdout) if e["event"] == "eval"]
    merged = loss(folder)
    plim.ok(result.returncode == 0 and scores and abs(scores[-1] - merged) < 1e-6 * merged, f"experts: {scores[-1:]} with the adapter's ops, {merged} merged {result.stderr.strip()[-200:]}")

    # Queries, keys and values are one pair of matrices in memory where they have one rank: files and first values are as with each of them alone.
    def first_values(**keys):
        made = plim.run("train", plim.job(folder, **{**BASE, "adapter__type": "lora", "adapter__r": 4, "training__steps": 1, "training__learning_rate": 1e-30, "output__dir": f"{folder}/qkv", **keys}), "-q", "--overwrite")
        plim.ok(made.returncode == 0, f"{keys}: {made.stderr.strip()}")
        return floats(f"{folder}/qkv/checkpoint-00000001/adapter_model.safetensors")
    together, apart = first_values(adapter__targets="[q_proj, k_proj, v_proj]"), first_values(adapter__targets="[q_proj, k_proj, v_proj]", adapter__rank_pattern='["layers.1.self_attn.k_proj=2"]')
    same = [k for k in together if len(apart.get(k, ())) == len(together[k])]
    plim.ok(together.keys() == apart.keys() and len(same) == 10 and all(together[k] == apart[k] for k in same), f"one rank or several: {len(same)} tensors begin alike")
    plim.ok(all((max(map(abs, together[k])) > 1e-3) == (".lora_A." in k) for k in together), "B begins with zeros, A does not")

    # A base in 4 bits is what makes an adapter fit; that is told.
    wide = llama_folder.make(f"{folder}/remedy", hidden_size=256, intermediate_size=1024, num_hidden_layers=4)
    pinned = plim.job(folder, **{**BASE, "model__path": wide, "adapter__type": "lora", "training__param_tier": "device", "training__batch_size": 1})
    least = [plim.plan(pinned, *more, "--device", "rtx-4090", "--budget", "601MiB") for more in ((), ("--base", "nf4"))]
    least = [p["budget_bytes"] + p["missing_bytes"] for p, _ in least]
    between, result = plim.plan(pinned, "--device", "rtx-4090", "--budget", str(sum(least) // 2))
    plim.ok(result.returncode == 3 and any(r["change"] == "model.weights: nf4" for r in between["remedies"]), f"4 bits are offered: {[r['change'] for r in between['remedies']]}")

    # Refusals.
    refused(folder, "'adapter.r' needs adapter.type", adapter__r=4)
    refused(folder, "pattern '*('", adapter__type="lora", adapter__targets='["*("]')
    refused(folder, "'qq_proj' matches no module", adapter__type="lora", adapter__targets="[qq_proj]")
    refused(folder, "input_layernorm has no adapter: it is neither linear nor an embedding", adapter__type="lora", adapter__targets="[input_layernorm]")
    refused(folder, "model.embed_tokens has no adapter: it is also the output projection (tie_word_embeddings)", adapter__type="lora", adapter__targets="[embed_tokens]")
    refused(folder, "shared has no adapter: encoder and decoder share it", adapter__type="lora", adapter__targets="[shared]", model__path=os.path.join(plim.SRC_DIR, "tests", "golden", "t5-v11"), data__max_length=16)
    refused(folder, "DoRA cannot adapt model.layers.0.block_sparse_moe.experts.0.w2, a matrix of each expert", adapter__type="dora", adapter__targets="['.*experts\\..*w2']", model__path=f"{folder}/moe-base")
    refused(folder, "'x_proj=4' matches no module", adapter__type="lora", adapter__rank_pattern='["x_proj=4"]')
    refused(folder, "write NAME=NUMBER", adapter__type="lora", adapter__alpha_pattern='["q_proj"]')
    refused(folder, "layers 0 to 1", adapter__type="lora", adapter__layers_to_transform="[2]")
    refused(folder, "exclude each other", adapter__type="lora", training__freeze="[lm_head]")
    refused(folder, "has the adapter's settings", adapter__path=f"{folder}/peft", adapter__r=4)
    small = llama_folder.make(f"{folder}/small", hidden_size=64)
    wrong = plim.run("generate", small, "--adapter", f"{folder}/peft", "-p", "x", "-q")
    plim.ok(wrong.returncode == 2 and "q_proj.lora_A.weight' is [4,32], but model.layers.0.self_attn.q_proj.weight of this model is [64,64]" in wrong.stderr, f"an adapter of another model: {wrong.stderr.strip()}")
    refused(folder, "q_proj.lora_A.weight' is [4,32], but the job's adapter needs [4,64]", "--overwrite", adapter__path=f"{folder}/peft", model__path=small)
    shallow = llama_folder.make(f"{folder}/shallow", hidden_size=32, intermediate_size=48, num_hidden_layers=1)
    for args in (("generate", shallow, "-p", "x", "--adapter", f"{folder}/peft", "-q"), ("train", plim.job(folder, **{**BASE, "adapter__path": f"{folder}/peft", "model__path": shallow}), "-q", "--overwrite")):
        wrong = plim.run(*args)
        plim.ok(wrong.returncode == 2 and "model.layers.1." in wrong.stderr and "has no module in this model" in wrong.stderr and wrong.stderr.count("\n") == 1, f"{args[0]}: an adapter with more layers than its base: {wrong.stderr.strip()}")
    shutil.copytree(f"{folder}/peft", f"{folder}/nan")
    with open(f"{folder}/nan/adapter_model.safetensors", "r+b") as f:
        f.seek(8 + struct.unpack("<Q", f.read(8))[0])
        f.write(struct.pack("<f", float("nan")))
    refused(folder, "element 0 is not finite", "--overwrite", adapter__path=f"{folder}/nan")
    config["use_qalora"] = True
    json.dump(config, open(f"{folder}/peft/adapter_config.json", "w"))
    wrong = plim.run("generate", model, "--adapter", f"{folder}/peft", "-p", "x", "-q")
    plim.ok(wrong.returncode == 2 and "'use_qalora' is not supported" in wrong.stderr, f"a setting that is not understood: {wrong.stderr.strip()}")
    wrong = plim.run("export", model, "-o", f"{folder}/nothing", "--merge")
    plim.ok(wrong.returncode == 2 and "nothing to merge" in wrong.stderr and not os.path.exists(f"{folder}/nothing"), f"nothing to merge: {wrong.stderr.strip()}")
    none = plim.run("train", plim.job(folder, adapter__type="lora"), "-q", "--overwrite")
    plim.ok(none.returncode == 2 and "write model.path" in none.stderr, f"an adapter of no model: {none.stderr.strip()}")
plim.done()
