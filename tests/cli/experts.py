#!/usr/bin/env python3
"""Mixtures of experts in every command: one expert is the dense model, budgets change nothing, faults are one line."""
import json
import os
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

EXPERTS = plim.EXPERTS


def steps(path, *args):
    result = plim.run("train", path, "-q", "--json", *args)
    return [e for e in plim.events(result.stdout) if e["event"] == "step"], result


def rewrite(folder, change):
    """The tensors of a folder under other names, or without those whose name becomes None."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    tensors, kept, at = {}, [], 0
    for name, t in head.items():
        if name == "__metadata__" or change(name) is None: continue
        piece = data[t["data_offsets"][0]:t["data_offsets"][1]]
        tensors[change(name)] = dict(t, data_offsets=[at, at + len(piece)])
        kept.append(piece)
        at += len(piece)
    text = json.dumps(tensors).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(kept))


def join(folder):
    """Experts in two tensors of a layer, as transformers 5 has them in memory."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    tensors, kept, at = {}, {}, 0
    for name, t in sorted(head.items(), key=lambda item: (item[0].partition(".experts.")[0], item[0])):
        if name == "__metadata__": continue
        block, _, rest = name.partition(".block_sparse_moe.experts.")
        piece, new = data[t["data_offsets"][0]:t["data_offsets"][1]], name.replace("block_sparse_moe", "mlp")
        shape = t["shape"]
        if rest:
            w = rest.split(".")[1]
            new = block + (".mlp.experts.down_proj" if w == "w2" else ".mlp.experts.gate_up_proj")
            shape = [5, shape[0] * (1 if w == "w2" else 2), shape[1]]
            order = int(rest.split(".")[0]) * 10 + int(w[1])
        kept.setdefault(new, dict(shape=shape, pieces={}))["pieces"][order if rest else 0] = piece
    for name, t in kept.items():
        t["data"] = b"".join(t["pieces"][k] for k in sorted(t["pieces"]))
        tensors[name] = dict(dtype="F32", shape=t["shape"], data_offsets=[at, at + len(t["data"])])
        at += len(t["data"])
    text = json.dumps(tensors).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t["data"] for t in kept.values()))


def loss_of(path, model, precision):
    result = plim.run("eval", path, "-q", "--json", "--model", model, "--set", f"training.mixed_precision={precision}")
    return (json.loads(result.stdout)["loss"] if result.returncode == 0 else None), result.stderr.strip()


def dense_name(name):
    for old, new in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
        name = name.replace(f"block_sparse_moe.experts.0.{old}", f"mlp.{new}")
    return None if "block_sparse_moe.gate" in name else name


def same_config(folder, **changes):
    path = os.path.join(folder, "config.json")
    with open(path) as f: config = json.load(f)
    config.update(changes)
    with open(path, "w") as f: json.dump(config, f)


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, **EXPERTS)
    told, result = steps(path)
    last = told[-1] if told else {}
    plim.ok(len(told) == 4, f"trains {result.stderr.strip()}")
    parts = last.get("token_loss", 0) + last.get("router_balance_loss", 0) + last.get("router_z_loss", 0)
    plim.ok(last and abs(parts - last["loss"]) < 1e-9 and last["router_balance_loss"] > 0 and last["router_z_loss"] > 0,
            f"losses add up: {last.get('loss')}")
    load = last.get("expert_load", [])
    plim.ok(len(load) == 3 and all(len(l) == 5 and sum(l) == 8 * 64 * 2 for l in load), f"load of each layer: {load}")
    plain = plim.run("train", path, "--overwrite", "-v", "--log", f"{folder}/log")
    plim.ok("layer 2: expert " in plain.stdout + plain.stderr, "-v tells of each layer's experts")

    # Budgets: what is offloaded, recomputed or sliced changes no bit; the micro-batch is pinned, for the balance is its own.
    pin = "training.micro_batch_size=4"
    wide, _ = steps(path, "--overwrite", "--set", pin)
    least = plim.smallest(path, "--set", pin) + 256 * 1024  # by which the program's size differs from start to start
    for budget in (least, least + (2 << 20), least + (8 << 20)):
        tight, result = steps(path, "--overwrite", "--set", pin, "--budget", budget)
        plim.ok([e["loss"] for e in tight] == [e["loss"] for e in wide], f"{budget}: the same losses {result.stderr.strip()}")
    for optimizer in ("adafactor", "adamw8bit", "sgd"):
        whole, _ = steps(path, "--overwrite", "--set", f"training.optimizer={optimizer}")
        steps(path, "--overwrite", "--set", f"training.optimizer={optimizer}", "--steps", "2")
        rest, result = steps(path, "--resume", "--set", f"training.optimizer={optimizer}", "--change", "training.steps")
        plim.ok(rest and [e["loss"] for e in rest] == [e["loss"] for e in whole[2:]], f"{optimizer} resumes {result.stderr.strip()}")

    steps(path, "--overwrite")
    model = f"{folder}/run/checkpoint-00000004"
    made = plim.run("generate", model, "--prompt", "The ", "--max-tokens", "6", "-q", "--device", "cpu")
    plim.ok(made.returncode == 0, f"generates {made.stderr.strip()}")
    exported = plim.run("export", model, "--output", f"{folder}/hf", "-q")
    looked = plim.run("inspect", f"{folder}/hf")
    plim.ok(exported.returncode == 0 and looked.returncode == 0, f"exports {exported.stderr.strip()}{looked.stderr.strip()}")

    shutil.copytree(f"{folder}/hf", f"{folder}/joint")
    join(f"{folder}/joint")
    for precision in ("fp32", "bf16"):
        want, _ = loss_of(path, f"{folder}/hf", precision)
        got, why = loss_of(path, f"{folder}/joint", precision)
        plim.ok(want is not None and got == want, f"{precision}: experts in two tensors are the same model: {got} {why}")

    # Faults.
    shutil.copytree(f"{folder}/hf", f"{folder}/holes")
    rewrite(f"{folder}/holes", lambda name: None if ".experts.3." in name else name)
    for what, args, words in (
            ("missing tensors", ("--set", "model.architecture=", "--set", f"model.path={folder}/holes"), "experts.3.w1.weight"),
            ("too many per token", ("--set", "model.num_experts_per_tok=6"), "num_experts_per_tok"),
            ("no such thing", ("--set", "model.architecture=llama"), "num_experts"),
            ("a coefficient", ("--set", "model.router_aux_loss_coef=-1"), "router_aux_loss_coef")):
        result = plim.run("train", path, "--overwrite", "-q", *args)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and words in result.stderr,
                f"{what}: {result.stderr.strip()}")
    for key, value in (("mlp_only_layers", [1]), ("decoder_sparse_step", 2), ("router_jitter_noise", 0.1)):
        shutil.copytree(f"{folder}/hf", f"{folder}/{key}")
        same_config(f"{folder}/{key}", **{key: value})
        result = plim.run("train", path, "--overwrite", "-q", "--set", "model.architecture=", "--set", f"model.path={folder}/{key}")
        plim.ok(result.returncode != 0 and result.stderr.count("\n") == 1 and key in result.stderr, f"{key}: {result.stderr.strip()}")

# One expert: every token is its own, with weight 1, and the router has nothing to learn of the load (but of its z-loss it
# would). The feed-forward part's width is one block of a product's sums, so x + down(h) is the same sum in both.
with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, **dict(EXPERTS, model__num_experts=1, model__num_experts_per_tok=1,
                                 model__router_z_loss_coef=0, training__steps=1))
    steps(path)
    plim.run("export", f"{folder}/run/checkpoint-00000001", "--output", f"{folder}/one", "-q")
    shutil.copytree(f"{folder}/one", f"{folder}/dense")
    rewrite(f"{folder}/dense", dense_name)
    same_config(f"{folder}/dense", model_type="mistral", architectures=["MistralForCausalLM"])
    losses = {}
    for name in ("one", "dense"):
        plim.job(folder, model__architecture="", model__path=f"{folder}/{name}", **{k: v for k, v in EXPERTS.items() if k.startswith("model__") and k not in ("model__architecture", "model__num_experts", "model__num_experts_per_tok", "model__router_aux_loss_coef", "model__router_z_loss_coef")}, training__steps=6, training__max_grad_norm=0)
        told, result = steps(path, "--overwrite", "--set", "training.mixed_precision=fp32")
        losses[name] = [e.get("token_loss", e["loss"]) for e in told]
    plim.ok(len(losses["one"]) == 6 and losses["one"] == losses["dense"], f"one expert is Mistral, bit for bit: {losses['one'][-1:]} {losses['dense'][-1:]} {result.stderr.strip()}")

# Rows of any length: a step has as many passes as its rows need, whatever the plan's micro-batch is. The router's losses are the
# mean of the passes, each with a balance of its own, and padding is no load.
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/rows.jsonl", "w") as f:
        for i in range(256): f.write(json.dumps({"text": plim.CORPUS[i:i + 12]}) + "\n")
    path = plim.job(folder, **dict(EXPERTS, model__router_aux_loss_coef=5, data__train=f"[{folder}/rows.jsonl]", training__batch_size=256,
                                 training__gradient_accumulation_steps=1, training__steps=1, training__optimizer="sgd", training__max_grad_norm=1e6))
    whole, *cut = (steps(path, "--no-checkpoint", "--set", f"data.padding={padding}", "--set", f"training.micro_batch_size={micro}")[0][0]
                   for padding, micro in (("max_length", 256), ("longest", 256), ("longest", 32)))
    norms = [e["grad_norm"] for e in (whole, *cut)]
    plim.ok(all(abs(n - norms[0]) < 0.02 * norms[0] for n in norms), f"every padding and every plan has the same gradient: {norms}")
    plim.ok(all(abs(e["loss"] - whole["loss"]) < 1e-3 * whole["loss"] for e in cut), f"and the same loss: {whole['loss']} {cut[0]['loss']} {cut[1]['loss']}")
    plim.ok(all(sum(layer) == 2 * e["tokens"] for e in (whole, *cut) for layer in e["expert_load"]), f"padding is no load: {whole['expert_load']}")

plim.done()
