#!/usr/bin/env python3
"""plimsoll config: what is shown is a job file that plans the same, keys are explained, other trainers' files become ours."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

ARGS = {"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "num_train_epochs": 2.0, "max_steps": -1, "learning_rate": 2e-5,
        "optim": "adamw_torch_fused", "bf16": True, "fp16": False, "tf32": None, "lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "warmup_steps": 0, "weight_decay": 0.1,
        "gradient_checkpointing": False, "eval_strategy": "steps", "eval_steps": 50, "save_steps": 100, "save_total_limit": 3, "logging_steps": 10, "seed": 3,
        "dataloader_num_workers": 4, "dataloader_pin_memory": True, "debug": [], "report_to": ["none"], "lr_scheduler_kwargs": {}, "push_to_hub": False, "hub_token": "<HUB_TOKEN>"}
CARRIED = {"training.batch_size": "4", "training.gradient_accumulation_steps": "8", "training.epochs": "2", "training.learning_rate": "2e-05", "training.optimizer": "adamw",
           "training.mixed_precision": "bf16", "training.lr_scheduler": "cosine", "training.warmup_ratio": "0.03", "training.weight_decay": "0.1", "training.eval_every": "50",
           "training.save_every": "100", "output.keep_checkpoints": "3", "training.log_every": "10", "training.seed": "3", "data.workers": "4", "training.max_grad_norm": "1",
           "output.dir": "out"}
AXOLOTL = """
base_model: {model}
datasets:
  - path: {folder}/mine.jsonl
    type: completion
    field: body
sequence_len: 128
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 3
num_epochs: 1
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
flash_attention: true
saves_per_epoch: 1
warmup_steps: 10
output_dir: ./outputs
lora_r:
load_in_4bit: false
special_tokens:
  pad_token: "<|pad|>"
early_stopping_patience: 3
"""
FACTORY = """
model_name_or_path: {model}
finetuning_type: full
stage: sft
dataset: {folder}/mine.jsonl
cutoff_len: 512
per_device_train_batch_size: 2
learning_rate: 1.0e-5
lr_scheduler_type: cosine
plot_loss: true
output_dir: out
"""
# (the key that has to be named, a file that asks for it): wishes that no job file of ours can have.
QLORA = "base_model: m\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\nval_set_size: 0.05\nlearning_rate: 0.0002\nmicro_batch_size: 2\n"
DENIED = {
    "qlora.yml": (QLORA, ["adapter", "load_in_4bit", "lora_r", "lora_target_linear", "val_set_size"]),
    "masks.yml": ("base_model: m\ntrain_on_inputs: true\nchat_template: chatml\nrl: dpo\ncontext_parallel_size: 2\n", ["train_on_inputs", "chat_template", "rl", "context_parallel_size"]),
    "data.yml": ("base_model: m\ndatasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\n  - path: ./a.jsonl\n    type: completion\n    shards: 4\nspecial_tokens: {bos_token: x}\n", ["path", "type", "shards", "bos_token"]),
    "args.json": ({**ARGS, "report_to": ["wandb", "mlflow"], "optim": "lion_32bit", "label_smoothing_factor": 0.1, "fsdp": "full_shard", "neftune_noise_alpha": 5, "some_new_wish": 0, "eval_delay": 2},
                  ["report_to", "optim", "label_smoothing_factor", "fsdp", "neftune_noise_alpha", "some_new_wish", "eval_delay"]),
    "kwargs.json": ({**ARGS, "lr_scheduler_kwargs": {"min_lr": 1e-6, "wobble": 2}}, ["wobble"]),
    "power.json": ({**ARGS, "lr_scheduler_kwargs": {"power": 2}}, ["lr_power"]),
    "both.json": ({**ARGS, "fp16": True}, ["training.fp16", "training.bf16"]),
    "twice.yml": ("base_model: m\nmax_grad_norm: 1\ngradient_clipping: 0.5\n", ["gradient_clipping"]),
    "factory.yaml": (FACTORY.replace("finetuning_type: full", "finetuning_type: lora\nquantization_bit: 4\ntemplate: qwen\nmask_history: true"), ["finetuning_type", "quantization_bit", "template", "mask_history"]),
    "factory2.yaml": (FACTORY.replace("finetuning_type: full\n", ""), ["finetuning_type: lora (the default)"]),
    "ds.json": ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}, "train_micro_batch_size_per_gpu": 1, "elasticity": {"enabled": True}, "spelt_wrongly": 1, "optimizer": {"type": "Lamb"}},
                ["zero_quantized_weights", "elasticity", "spelt_wrongly", "Lamb"]),
}


def settings(path, *args, env=None):
    result = plim.run("config", "show", path, "--json", *args, env=env)
    return json.loads(result.stdout)["settings"] if result.returncode == 0 else {}


def show(folder):
    path = plim.job(folder, training__steps="null", training__max_steps=4, training__mixed_precision="null", training__bf16="true", data__field='"a: b # c"',
                    training__gradient_checkpointing="true", output__dir=f'"{folder}/a run"', budget__="64MiB")
    env = {"MAX_BATCH_SIZE": "2"}
    shown = plim.run("config", "show", path, "-q", "--set", "training.weight_decay=0.1", env=env)
    plim.ok(shown.returncode == 0 and "# environment MAX_BATCH_SIZE" in shown.stdout and "# --set" in shown.stdout and f"# {path}:" in shown.stdout and
            "as training.max_steps" in shown.stdout and "# default" not in shown.stdout, f"config show: origins {shown.stderr.strip()}")
    again = f"{folder}/again.yaml"
    for more in ((), ("--all",)):
        with open(again, "w") as f: f.write(plim.run("config", "show", path, "-q", "--set", "training.weight_decay=0.1", *more, env=env).stdout)
        first, _ = plim.plan(path, "--set", "training.weight_decay=0.1", "--set", "training.max_micro_batch_size=2")
        second, result = plim.plan(again)
        values = lambda plan: {k: v["value"] for k, v in plan["settings"].items()}
        plim.ok(second and values(first) == values(second), f"what is shown {more} is the same job: {result.stderr.strip()} "
                f"{second and {k for k in values(first) if values(first)[k] != values(second).get(k)}}")
        same = lambda plan: (plan["knobs"], plan["arena_bytes"], plan["budget_bytes"])
        plim.ok(second and same(first) == same(second), f"and the same plan {more}")
    plim.ok("# overlong: truncate" in open(again).read(), "--all: defaults are comments")
    bare = plim.run("config", "show", env=env)
    plim.ok(bare.returncode == 0 and "max_micro_batch_size: 2" in bare.stdout and "# steps: 100" in bare.stdout, "without a job: defaults, and the environment")
    wrong = plim.run("config", "show", f"{folder}/none.yaml")
    plim.ok(wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and not wrong.stdout, f"no such job: {wrong.stderr.strip()}")


def explain(folder):
    path = plim.job(folder)
    one = plim.run("config", "explain", "training.max_steps", path).stdout
    plim.ok(all(w in one for w in ("training.steps", "optimizer steps", "whole number", "100", "the plan", f"4 ({path}:")), f"explain: {one.splitlines()}")
    section = plim.run("config", "explain", "training.memory").stdout
    plim.ok(section.count("training.memory.") >= 8, "explain: a section")
    needless = plim.run("config", "explain", "performance.torch_compile").stdout
    plim.ok("without effect" in needless, "explain: a needless key")
    wrong = plim.run("config", "explain", "training.batch_sise")
    plim.ok(wrong.returncode == 2 and "training.batch_size" in wrong.stderr and wrong.stderr.count("\n") == 1, f"explain: {wrong.stderr.strip()}")
    keys = [line.split("`")[1] for line in open(f"{plim.SRC_DIR}/docs/configuration.md") if line.startswith("| `")]
    silent = [k for k in keys if "." in k and k == k.lower() and "the plan  " not in plim.run("config", "explain", k).stdout + "the plan  " * k.startswith(("performance.torch", "data.persistent", "training.memory.clear", "adapter.fan_in"))]
    plim.ok(len(keys) > 150 and len(silent) <= 3, f"every key says what it does to the plan {silent}")


def convert(folder):
    def write(name, data):
        with open(f"{folder}/{name}", "w") as f: f.write(data if isinstance(data, str) else json.dumps(data, indent=2))
        return f"{folder}/{name}"
    plim.job(folder)
    args = write("args.json", ARGS)
    made = plim.run("config", "convert", args)
    plim.ok(made.returncode == 0 and not made.stderr, f"TrainingArguments: all of it is carried over: {made.stderr.strip()}")
    job = write("made.yaml", "model: {architecture: llama, vocab_size: 256, hidden_size: 64, intermediate_size: 128, num_layers: 2, num_attention_heads: 4}\n" + made.stdout.replace("data:\n", f"data:\n  train: [{folder}/corpus.txt]\n", 1))
    got = settings(job)
    wrong = {k: (got.get(k, {}).get("value"), v) for k, v in CARRIED.items() if got.get(k, {}).get("value") != v}
    plim.ok(got and not wrong, f"every value arrives: {wrong}")
    plim.ok("training.recompute" not in got or got["training.recompute"]["from"] == "default", "gradient_checkpointing: false leaves it to the planner")
    few = plim.run("config", "convert", write("few.json", {"per_device_train_batch_size": 2, "max_steps": 9, "num_train_epochs": 3}))
    plim.ok(all(w in few.stdout for w in ("steps: 9", "learning_rate: 5e-05", "lr_scheduler: linear", "max_grad_norm: 1", "seed: 42")) and "epochs" not in few.stdout,
            f"defaults of theirs that are not ours; max_steps is stronger than epochs")
    more = plim.run("config", "convert", write("more.json", {**ARGS, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1, "num_cycles": 0.5}, "deepspeed": "ds.json", "run_name": "mine",
                    "load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False, "warmup_ratio": 0, "warmup_steps": 0.05, "eval_steps": None}))
    plim.ok(more.returncode == 0 and all(w in more.stdout for w in ("min_lr_ratio: 0.1", "lr_cycles: 0.5", "lr_scheduler: cosine", "deepspeed: ds.json", "load_best_model_at_end: true", "metric_for_best_model: eval_loss",
                                                                    "warmup_ratio: 0.05", "eval_every: 10")), f"schedules' arguments, the best model, DeepSpeed's file: {more.stderr.strip()} {more.stdout}")
    plim.ok("# " + args + ":" in made.stdout and "dataloader_pin_memory" in made.stdout and "is left out: " in made.stdout and "<HUB_TOKEN>" not in made.stdout, "what has no effect is a comment, with why")
    for name, (data, keys) in DENIED.items():
        result = plim.run("config", "convert", write(name, data.replace("{model}", "m").replace("{folder}", folder) if isinstance(data, str) else data))
        lines = result.stderr.strip().splitlines()
        plim.ok(result.returncode not in (0, -6, -11) and not result.stdout and len(lines) == 1 + max(1, len(keys) - (name == "both.json")) and all(any(k in line for line in lines[:-1]) for k in keys) and
                "cannot be converted" in lines[-1], f"{name}: every wish that is lost is named, and nothing is printed: {lines}")
    tune = plim.run("config", "convert", write("tune.yaml", "model:\n  _component_: torchtune.models.llama3.lora_llama3_8b\n  lora_rank: 8\noptimizer:\n  _component_: torch.optim.AdamW\n"))
    plim.ok(tune.returncode != 0 and "torchtune" in tune.stderr and tune.stderr.count("\n") == 1 and not tune.stdout, f"torchtune: {tune.stderr.strip()}")
    factory = plim.run("config", "convert", write("full.yaml", FACTORY.format(model=f"{folder}/model", folder=folder)))
    plim.ok(factory.returncode == 0 and all(w in factory.stdout for w in (f"path: {folder}/model", "max_length: 512", f"train: [{folder}/mine.jsonl]", "epochs: 3", "lr_scheduler: cosine", "LLaMA-Factory")), f"LLaMA-Factory: {factory.stderr.strip()}")
    ds = plim.run("config", "convert", write("ds.json", {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}))
    plim.ok(ds.returncode == 0 and not ds.stderr and "names of DeepSpeed" in ds.stdout and "zero_stage: 3" in ds.stdout, f"DeepSpeed: {ds.stderr.strip()}")
    for name, data in (("own.yaml", "training: {steps: 3}\n"), ("none.json", {"a": 1}), ("list.json", [1]), ("bad.json", "{")):
        result = plim.run("config", "convert", write(name, data))
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and not result.stdout, f"{name}: {result.stderr.strip()}")
    axolotl = plim.run("config", "convert", write("ax.yml", AXOLOTL.format(model=f"{folder}/model", folder=folder)))
    want = (f"path: {folder}/model", f"tokenizer: {folder}/model", f"train: [{folder}/mine.jsonl]", "field: body", "max_length: 128", "packing: true", "batch_size: 2",
            "gradient_accumulation_steps: 3", "epochs: 1", "optimizer: adamw8bit", "lr_scheduler: cosine", "learning_rate: 0.0002", "mixed_precision: auto", "gradient_checkpointing: true",
            "use_flash_attention: true", "save_strategy: epoch", "warmup_steps: 10", "dir: ./outputs")
    plim.ok(axolotl.returncode == 0 and not [w for w in want if w not in axolotl.stdout] and not axolotl.stderr,
            f"Axolotl: {[w for w in want if w not in axolotl.stdout]} {axolotl.stderr.strip()}")
    plim.ok("early_stopping_patience: 3" in axolotl.stdout and "overlong: drop" in axolotl.stdout and "max_grad_norm: 1" in axolotl.stdout, "Axolotl: its defaults, early stopping")


def contradict(folder):
    """fp16 and bf16 are never both meant; of other pairs an override wins over the file, and two overrides are an error."""
    for file, sets in ({}, ("training.fp16=true", "training.bf16=true")), ({"training__fp16": "true"}, ("training.bf16=true",)), ({"training__bf16": "true"}, ("training.fp16=true",)):
        path = plim.job(folder, training__mixed_precision="null", **file)
        result = plim.run("plan", path, *(a for s in sets for a in ("--set", s)))
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "training.fp16: true" in result.stderr and "training.bf16: true" in result.stderr and "--set" in result.stderr, f"both: {result.stderr.strip()}")
    path = plim.job(folder, training__mixed_precision="null", training__fp16="true")
    plim.ok(settings(path, "-q", "--set", "training.mixed_precision=bf16")["training.mixed_precision"]["value"] == "bf16", "an override of mixed_precision wins over the file's fp16")
    result = plim.run("plan", path, "--set", "training.recompute=none", "--set", "training.gradient_checkpointing=true")
    plim.ok(result.returncode == 2 and "contradict" in result.stderr, f"two overrides: {result.stderr.strip()}")
    for keys, word in (({"training__lr_scheduler": "linear", "training__lr_scheduler_kwargs": "{power: 2}"}, "lr_scheduler_kwargs.power"), ({"training__min_lr": 1e-5}, "min_lr"), ({"training__greedy__patience": 3}, "patience")):
        result = plim.run("plan", plim.job(folder, **keys))
        plim.ok(result.returncode == 2 and word in result.stderr and "training.lr_scheduler is" in result.stderr, f"an argument that the schedule does not take: {result.stderr.strip()}")


for part in (show, explain, convert, contradict):
    with tempfile.TemporaryDirectory() as folder_: part(folder_)
plim.done()
