#!/usr/bin/env python3
# run-tests: slow
"""the resume matrix. Every key of the manifest is changed in turn: --resume refuses it in one line that names the key,
what it was and what it is; --resume --change KEY goes on with the new value, says so and records it. Keys that the shapes
of saved tensors depend on are refused either way. None is silent, and a key without a change in this table fails the test."""
import glob
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import encoder_jobs
import plim

TINY = dict(model__hidden_size=32, model__intermediate_size=48, model__num_layers=1, model__num_attention_heads=4, data__max_length=32,
            training__batch_size=4, training__steps=4, training__save_every=2)
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def tokenizer():
    vocab = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ<>. 0123456789")}
    vocab["[E]"] = len(vocab)
    added = [{"id": vocab["[E]"], "content": "[E]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}]
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "unk_token": None, "vocab": vocab, "merges": []}}


class Base:
    """A run that was stopped after step 2 of 4."""

    def __init__(self, root, name, make):
        self.folder = f"{root}/{name}"
        os.mkdir(self.folder)
        self.path = make(self.folder)
        self.run = f"{self.folder}/run"
        made = plim.run("train", self.path, "-q")
        plim.ok(made.returncode == 0, f"{name}: the run {made.stderr.strip()}")
        shutil.rmtree(f"{self.run}/checkpoint-00000004", ignore_errors=True)
        self.facts = json.load(open(f"{self.run}/checkpoint-00000002/manifest.json"))["run"]

    def resume(self, *args):
        run = f"{self.folder}/again"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.run, run)
        result = plim.run("train", self.path, "--json", "--resume", *args, "--set", f"output.dir={run}")
        manifests = sorted(glob.glob(f"{run}/*/manifest.json"))
        return result, json.load(open(manifests[-1]))


def bytes_base(folder):
    return plim.job(folder, data__validation=f"[{folder}/corpus.txt]", training__lr_scheduler="greedy", training__greedy__on="eval", **TINY)


def cosine_base(folder):
    return plim.job(folder, training__lr_scheduler="cosine", training__mixed_precision="bf16", **TINY)


def chat_base(folder):
    plim.job(folder)
    with open(f"{folder}/chat.jsonl", "w") as f:
        for i in range(60):
            f.write(json.dumps({"messages": [{"role": "user", "content": f"hello {i}"}, {"role": "assistant", "content": f"well {i}"}], "text": f"a text {i}",
                                "other": f"another text {i}", "p": "ask", "r": "answer", "talk": [{"role": "assistant", "content": "so"}]}) + "\n")
    json.dump(tokenizer(), open(f"{folder}/tokenizer.json", "w"))
    json.dump({"chat_template": TEMPLATE, "eos_token": "[E]"}, open(f"{folder}/tokenizer_config.json", "w"))
    return plim.job(folder, data__train=f"[{folder}/chat.jsonl]", data__tokenizer=folder, data__messages_field="messages", training__lr_scheduler="polynomial", **TINY)


def lines_base(folder):
    chat_base(folder)
    return plim.job(folder, data__train=f"[{folder}/chat.jsonl]", data__tokenizer=folder, training__lr_scheduler="wsd", **TINY)


def file_base(arch, **keys):
    def make(folder):
        start = plim.job(folder, model__architecture=arch, output__dir=f"{folder}/start", **TINY)
        plim.run("train", start, "-q", "--steps", 1)
        plim.run("export", f"{folder}/start", "-o", f"{folder}/model", "-q")
        edit(f"{folder}/model/config.json", **keys)
        path = plim.job(folder, model__path=f"{folder}/model", **TINY)
        text = open(path).read().split("\n")
        keep = [line for line in text if not any(line.startswith(f"  {k}:") for k in
                ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings"))]
        open(path, "w").write("\n".join(keep))
        return path
    return make


def adapter_base(folder):
    path = file_base("llama")(folder)
    with open(path, "a") as f: f.write("adapter: {type: lora, r: 4, targets: [q_proj, v_proj]}\n")
    return path


def preference_base(objective):
    def make(folder):
        with open(f"{folder}/preferences.jsonl", "w") as f:
            for i in range(40):
                f.write(json.dumps({"prompt": f"ask {i}", "chosen": f"well {i}", "rejected": f"no {i}", "completion": f"well {i}", "label": i % 2 == 0,
                                    "better": f"fine {i}", "worse": f"bad {i}", "sign": i % 2 == 1, "response": f"well {i}"}) + "\n")
        return plim.job(folder, data__train=f"[{folder}/preferences.jsonl]", training__objective=objective, **TINY)
    return make


def prompts_base(folder):
    path = preference_base("sft")(folder)
    with open(path) as f: text = f.read()
    with open(path, "w") as f: f.write(text.replace("data:\n", "data:\n  prompt_field: prompt\n  response_field: response\n"))
    return path


def keys_base(arch):
    return lambda folder: plim.job(folder, model__architecture=arch, **TINY)


def edit(path, **keys):
    values = json.load(open(path))
    values.update(keys)
    json.dump(values, open(path, "w"))


def in_file(name, **keys):
    """Another value in a JSON file of the base's folder."""
    return lambda base: edit(f"{base.folder}/{name}", **keys)


def same_size(name):
    """A letter in the middle of a file is another one; its size and both ends stay."""
    def change(base):
        path = f"{base.folder}/{name}"
        data = bytearray(open(path, "rb").read())
        at = data.index(b"e", len(data) // 2)
        data[at] = ord("i")
        open(path, "wb").write(data)
    return change


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 0.5}
LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.0, 4.0], "attention_factor": 1.5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
def encoder_base(objective):
    return lambda folder: encoder_jobs.job(folder, objective, training__steps=4, training__save_every=2)


BASES = {"bytes": bytes_base, "labels": encoder_base("token_labels"), "pairs": encoder_base("sentence_pairs"), "cosine": cosine_base, "chat": chat_base, "lines": lines_base, "file": file_base("llama", rope_scaling=LLAMA3),
         "window": file_base("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0),
         "adapter": adapter_base, "dpo": preference_base("dpo"), "kto": preference_base("kto"), "prompts": prompts_base, "gemma2": keys_base("gemma2"), "gemma3": keys_base("gemma3"),
         "yarn": file_base("smollm3", rope_scaling=YARN, no_rope_layers=[0], bos_token_id=1, eos_token_id=2, pad_token_id=0),
         "long": file_base("phi3", rope_scaling=LONG, partial_rotary_factor=0.5, original_max_position_embeddings=16)}


def rope(base=LLAMA3, **keys): return in_file("model/config.json", rope_scaling={**base, **keys})


SHAPE = "shape"  # refused either way
# key: (base, value for --set or a function that edits files [, SHAPE]); several at once where one would not be a job
MATRIX = {
    "model.architecture": ("bytes", "mistral", SHAPE), "model.vocab_size": ("bytes", 300, SHAPE), "model.hidden_size": ("bytes", 64, SHAPE),
    "model.intermediate_size": ("bytes", 64, SHAPE), "model.num_layers": ("bytes", 2, SHAPE), "model.num_attention_heads": ("bytes", 2, SHAPE),
    "model.num_key_value_heads": ("bytes", 4, SHAPE), "model.head_dim": ("bytes", 16, SHAPE), "model.tie_word_embeddings": ("bytes", "false", SHAPE),
    "model.attention_bias": ("file", in_file("model/config.json", attention_bias=True), SHAPE),
    "model.attention_output_bias": ("file", in_file("model/config.json", attention_bias=True), SHAPE),
    "model.mlp_bias": ("file", in_file("model/config.json", mlp_bias=True), SHAPE),
    "model.max_position_embeddings": ("bytes", 4096), "model.rms_norm_eps": ("bytes", 1e-5), "model.rope_theta": ("bytes", 5000),
    "model.initializer_range": ("bytes", 0.5), "model.attention_dropout": ("bytes", {"model.dropout": 0.25}),
    "model.rope_scaling.rope_type": ("file", in_file("model/config.json", rope_scaling=None)), "model.rope_scaling.factor": ("file", rope(factor=4.0)),
    "model.rope_scaling.low_freq_factor": ("file", rope(low_freq_factor=2.0)), "model.rope_scaling.high_freq_factor": ("file", rope(high_freq_factor=5.0)),
    "model.rope_scaling.original_max_position_embeddings": ("file", rope(original_max_position_embeddings=32)),
    "model.sliding_window": ("window", in_file("model/config.json", sliding_window=9)),
    "model.max_window_layers": ("window", in_file("model/config.json", max_window_layers=1)),
    "model.bos_token_id": ("file", in_file("model/config.json", bos_token_id=7)), "model.pad_token_id": ("file", in_file("model/config.json", pad_token_id=7)),
    "model.rope_local_base_freq": ("gemma3", 500), "model.query_pre_attn_scalar": ("gemma2", 5), "model.attn_logit_softcapping": ("gemma2", 5),
    "model.final_logit_softcapping": ("gemma2", 5), "model.no_rope_layers": ("yarn", in_file("model/config.json", no_rope_layers=[1])),
    "model.rope_scaling.beta_fast": ("yarn", rope(YARN, beta_fast=9.0)), "model.rope_scaling.beta_slow": ("yarn", rope(YARN, beta_slow=2.0)),
    "model.rope_scaling.mscale": ("yarn", rope(YARN, mscale=0.7)), "model.rope_scaling.mscale_all_dim": ("yarn", rope(YARN, mscale_all_dim=0.7)),
    "model.rope_scaling.truncate": ("yarn", rope(YARN, truncate=False)), "model.rope_scaling.attention_factor": ("yarn", rope(YARN, attention_factor=1.25)),
    "model.rope_scaling.short_factor": ("long", rope(LONG, short_factor=[1.0, 1.25])), "model.rope_scaling.long_factor": ("long", rope(LONG, long_factor=[1.0, 3.0])),
    "model.partial_rotary_factor": ("long", in_file("model/config.json", partial_rotary_factor=0.6)),
    "model.eos_token_id": ("file", in_file("model/config.json", eos_token_id=[7, 8])),
    "model.task": ("labels", {"training.objective": "masked_tokens"}, SHAPE), "model.num_labels": ("labels", {"data.labels": "B-LOC,B-PER,O,X"}, SHAPE),
    "model.type_vocab_size": ("labels", None),  # needs another config.json
    "model.hidden_dropout_prob": ("pairs", {"model.dropout": 0.25}), "model.attention_probs_dropout_prob": ("pairs", {"model.dropout": 0.25}),
    "model.embd_pdrop": ("long", {"model.dropout": 0.25}), "model.resid_pdrop": ("long", {"model.dropout": 0.25}),
    "model.classifier_dropout": ("pairs", {"model.dropout": 0.25}), "model.pooling": ("pairs", "cls"),
    "data.train": ("bytes", same_size("corpus.txt")), "data.validation": ("bytes", same_size("corpus.txt")),
    "data.tokenizer": ("lines", in_file("tokenizer_config.json", eos_token="a")), "data.chat_template": ("chat", in_file("tokenizer_config.json", chat_template="." + TEMPLATE)),
    "data.format": ("bytes", "lines"), "data.max_length": ("bytes", 16), "data.field": ("lines", "other"),
    "data.prompt_field": ("lines", {"data.prompt_field": "p", "data.response_field": "r"}), "data.response_field": ("lines", {"data.prompt_field": "p", "data.response_field": "r"}),
    "data.source_field": ("lines", {"data.source_field": "p", "data.target_field": "r"}), "data.target_field": ("lines", {"data.source_field": "p", "data.target_field": "r"}),
    "data.messages_field": ("chat", "talk"), "data.rows": ("lines", "stream"), "data.packing": ("lines", "true"), "data.overlong": ("lines", "split"),
    "data.add_special": ("lines", "false"), "data.append_eos": ("lines", "false"), "data.shuffle_buffer": ("lines", 8), "data.shuffle_bytes": ("lines", "8KiB"),
    "data.first_field": ("lines", "p"), "data.second_field": ("lines", "r"), "data.labels": ("lines", "[a,b]"), "data.max_source_length": ("lines", 16),
    "data.padding": ("lines", "longest"), "data.group_by_length": ("lines", "false"),
    "training.learning_rate": ("cosine", 1e-4), "training.lr_scheduler": ("cosine", "linear"), "training.steps": ("cosine", 6), "training.epochs": ("bytes", 1), "training.warmup_steps": ("cosine", 2), "training.warmup_ratio": ("cosine", 0.5),
    "training.warmup_type": ("cosine", "log"), "training.warmup_min_lr": ("cosine", 1e-5),
    "training.decay_steps": ("lines", 2), "training.stable_steps": ("lines", 2), "training.decay_type": ("lines", "1-sqrt"), "training.min_lr": ("cosine", 1e-5), "training.min_lr_ratio": ("cosine", 0.1),
    "training.lr_cycles": ("cosine", 1.5), "training.lr_power": ("chat", 2), "training.lr_timescale": ("cosine", {"training.lr_scheduler": "inverse_sqrt", "training.lr_timescale": 50}),
    "training.greedy.factor": ("bytes", 0.5), "training.greedy.patience": ("bytes", 2),
    "training.greedy.threshold": ("bytes", 0.5), "training.greedy.relative": ("bytes", "true"), "training.greedy.cooldown": ("bytes", 3),
    "training.greedy.warmup": ("bytes", 3), "training.greedy.max_lr": ("bytes", 0.5), "training.greedy.eps": ("bytes", 1e-5), "training.greedy.smooth": ("bytes", "true"),
    "training.greedy.window_size": ("bytes", 5), "training.greedy.reset_start": ("bytes", 5), "training.greedy.on": ("bytes", "step"),
    "training.mixed_precision": ("bytes", "bf16", SHAPE), "training.optimizer": ("bytes", "sgd", SHAPE), "training.master_weights": ("cosine", "none", SHAPE),
    "training.state_dtype": ("bytes", "bf16", SHAPE), "training.loss_scale": ("bytes", 1024), "training.loss_scale_window": ("bytes", 5),
    "training.loss_scale_hysteresis": ("bytes", 2), "training.min_loss_scale": ("bytes", 4),
    "training.fp8_gradients": ("bytes", None),  # needs fp8; tests/cli/fp8.py
    "training.grad_dtype": ("cosine", "bf16"), "training.beta1": ("bytes", 0.8), "training.beta2": ("bytes", 0.9), "training.eps": ("bytes", 1e-6),
    "training.weight_decay": ("bytes", 0.1), "training.max_grad_norm": ("bytes", 1), "training.seed": ("bytes", 8), "training.deterministic": ("bytes", "true"),
    "performance.float32_matmul_precision": ("bytes", "high"), "training.batch_size": ("bytes", 2), "training.eval_every": ("bytes", 1), "training.eval_rows": ("bytes", 3),
    "training.device": ("bytes", None),  # needs a second device
    "training.freeze": ("bytes", "[embed_tokens]", SHAPE), "training.train_only": ("bytes", "[norm]", SHAPE),
    "training.completion_only_loss": ("prompts", "false"), "training.assistant_only_loss": ("chat", "false"),
    "adapter.type": ("adapter", "rslora", SHAPE), "adapter.r": ("adapter", 8, SHAPE), "adapter.alpha": ("adapter", 64, SHAPE), "adapter.dropout": ("adapter", 0.1, SHAPE),
    "adapter.targets": ("adapter", "q_proj", SHAPE), "adapter.bias": ("adapter", "lora_only", SHAPE), "adapter.modules_to_save": ("adapter", "norm", SHAPE),
    "adapter.rank_pattern": ("adapter", "v_proj=2", SHAPE), "adapter.alpha_pattern": ("adapter", "v_proj=2", SHAPE),
    "adapter.exclude_modules": ("adapter", "v_proj", SHAPE), "adapter.layers_to_transform": ("adapter", "0", SHAPE), "adapter.layers_pattern": ("adapter", {"adapter.layers_to_transform": 0, "adapter.layers_pattern": "layers"}, SHAPE),
    "adapter.use_rslora": ("adapter", "true", SHAPE), "adapter.use_dora": ("adapter", "true", SHAPE), "adapter.init_lora_weights": ("adapter", "gaussian", SHAPE),
    "adapter.path": ("adapter", None),  # another folder; tests/cli/adapters.py
    "data.pair_length": ("dpo", 48), "data.chosen_field": ("dpo", "better"), "data.rejected_field": ("dpo", "worse"), "data.label_field": ("kto", "sign"), "data.tools_field": ("chat", "tools2"),
    "training.beta": ("dpo", 0.2), "training.loss_type": ("dpo", "hinge"), "training.label_smoothing": ("dpo", 0.1), "training.sft_weight": ("dpo", 0.5),
    "training.desirable_weight": ("kto", 2), "training.undesirable_weight": ("kto", 2),
    "training.pair_scale": ("bytes", 10), "training.objective": ("dpo", "orpo"),
}


def changed(base, key, change):
    """(arguments, a function that takes the change of files back)"""
    if not callable(change):
        values = change if isinstance(change, dict) else {key: change}
        if change == "mistral": values["model.num_key_value_heads"] = 2
        return [a for k, v in values.items() for a in ("--set", f"{k}={v}")], lambda: None
    kept = {p: open(p, "rb").read() for p in glob.glob(f"{base.folder}/*") + glob.glob(f"{base.folder}/model/*.json") if os.path.isfile(p)}
    change(base)
    return [], lambda: [open(p, "wb").write(data) for p, data in kept.items()]


def test_key(base, key, change, shape):
    args, restore = changed(base, key, change)
    result, manifest = base.resume(*args)
    line = result.stderr.strip()
    named = key in line and f"was {base.facts[key]}"[:40] in line or f"more:" in line and key in line
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and named and not plim.losses(result.stdout), f"{key} is refused: {line[line.find('was made') if 'was made' in line else 0:][:150]}")
    accept = ["--change", key]
    if key.startswith(("model.rope_scaling", "data.")) or key in ("training.lr_scheduler", "training.lr_timescale", "training.greedy.on", "model.architecture") or key.endswith(("_dropout_prob", "classifier_dropout", "_pdrop")):
        accept = [a for k in base.facts for a in ("--change", k) if k.split(".")[0] == key.split(".")[0]]  # several change with it
    result, manifest = base.resume(*args, *accept)
    if shape:
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and not plim.losses(result.stdout), f"{key} cannot be accepted: {result.stderr.strip()[-90:]}")
    else:
        notes = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note" and key in e["text"]]
        fine = result.returncode == 0 and len(plim.losses(result.stdout)) >= 2 and notes and manifest["run"][key] != base.facts[key]
        plim.ok(fine, f"--change {key} is honoured: {(notes or [result.stderr.strip()])[0]}")
    restore()


with tempfile.TemporaryDirectory() as root_:
    bases = {name: Base(root_, name, make) for name, make in BASES.items()}
    keys_ = sorted({k for b in bases.values() for k in b.facts})
    plim.ok(set(keys_) == set(MATRIX), f"the matrix has every key of the manifests and no other {set(keys_) ^ set(MATRIX)}")
    for b in bases.values():
        same, _ = b.resume()
        notes_ = [line for line in same.stdout.splitlines() if '"note"' in line and "conversion skipped" not in line]  # an adapter's base is loaded again
        plim.ok(same.returncode == 0 and len(plim.losses(same.stdout)) == 2 and not notes_, f"unchanged, it goes on without a word {same.stderr.strip()}")
    for key_, (name_, change_, *shape_) in MATRIX.items():
        if change_ is not None: test_key(bases[name_], key_, change_, bool(shape_))
    b = bases["bytes"]
    moved = f"{b.folder}/elsewhere.txt"
    shutil.copy(f"{b.folder}/corpus.txt", moved)
    free = ["--set", f"data.train={moved}", "--set", "data.workers=0", "--set", "training.threads=1", "--set", "training.recompute=full", "--set", "output.keep_checkpoints=5",
            "--set", "training.batch_size=2", "--set", "training.gradient_accumulation_steps=4", "--budget", "1GiB"]
    result_, _ = b.resume(*free)
    plim.ok(result_.returncode == 0 and len(plim.losses(result_.stdout)) == 2, f"what decides nothing may change: {result_.stderr.strip()}")
    for name_, words in (("training.sed", ["did you mean training.seed"]), ("training.threads", ["does not affect the result"]), ("nothing", ["no such key"])):
        result_, _ = b.resume("--change", name_)
        plim.ok(result_.returncode == 2 and result_.stderr.count("\n") == 1 and all(w in result_.stderr for w in words), f"--change {name_}: {result_.stderr.strip()}")
    result_ = plim.run("train", b.path, "-q", "--change", "training.seed", "--overwrite")
    plim.ok(result_.returncode == 2 and "--resume" in result_.stderr, f"--change without --resume: {result_.stderr.strip()}")
    alias, _ = b.resume("--set", "training.gradient_accumulation_steps=1", "--change", "training.gradient_accumulation_steps")
    plim.ok(alias.returncode == 0 and "changed: training.batch_size was 8, is 4" in alias.stdout, f"a key by its other name {alias.stderr.strip()}")
plim.done()
