#!/usr/bin/env python3
"""Configuration that people bring along: every key, flag and variable of other trainers that is known acts. Each row of a
table has a piece of configuration and the effect that it must have on a plan or a run, not only that it is accepted; and
every setting says where it came from."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

GIB, MIB = 1 << 30, 1 << 20
SECRET = "c0ffee-not-to-be-shown"


def merge(into, more):
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict): merge(into[key], value)
        else: into[key] = value
    return into


class Jobs:
    """Jobs in a folder of their own, each the small one with a fragment merged into it."""

    def __init__(self, folder):
        self.folder = folder
        plim.job(folder)
        with open(f"{folder}/rows.jsonl", "w") as f:
            for i in range(64): f.write(json.dumps({"text": plim.CORPUS[40 * i:40 * i + 20 + 3 * (i % 9)]}) + "\n")

    def make(self, fragment):
        base = {"model": {"architecture": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 192, "num_layers": 3,
                          "num_attention_heads": 4, "tie_word_embeddings": True},
                "data": {"train": [f"{self.folder}/corpus.txt"], "max_length": 64},
                "training": {"batch_size": 4, "gradient_accumulation_steps": 2, "steps": 4, "learning_rate": 1e-3, "seed": 7, "device": "cpu"},
                "output": {"dir": f"{self.folder}/run"}}
        path = f"{self.folder}/job.yaml"
        with open(path, "w") as f: json.dump(merge(base, fragment), f, indent=1)  # JSON is YAML
        shutil.rmtree(f"{self.folder}/run", ignore_errors=True)
        return path

    def plan(self, fragment, *args, env=None):
        result = plim.run("plan", self.make(fragment), "--json", *args, env=env)
        return json.loads(result.stdout) if result.stdout.startswith("{") else None, result

    def train(self, fragment, *args, env=None):
        result = plim.run("train", self.make(fragment), "--json", *args, env=env)
        return plim.events(result.stdout), result

    def refused(self, name, fragment, *words, args=(), env=None):
        result = plim.run("plan", self.make(fragment), "-q", *args, env=env)
        lacks = [w for w in words if w not in result.stderr]
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and not lacks and not result.stdout,
                f"{name}: {result.stderr.strip()}{f' LACKS {lacks}' if lacks else ''}")


def effect(jobs, name, fragment, check, *args, env=None):
    plan, result = jobs.plan(fragment, *args, env=env)
    try: good = plan is not None and check(plan)
    except KeyError as missing: good, name = False, f"{name} (no {missing})"
    plim.ok(good, f"{name} {'' if good else result.stderr.strip()[:300]}")
    return plan


def knob(name, value): return lambda plan: plan["knobs"][name] == value


def setting(key, value, where=None):
    return lambda plan: plan["settings"][key]["value"] == value and (where is None or plan["settings"][key].get("where", "") == where)


def training(**keys): return {"training": keys}


def deepspeed(**keys): return training(deepspeed=keys)


def recomputation(jobs):
    ways = {"output.gradient_checkpointing": {"output": {"gradient_checkpointing": True}},
            "model.deepspeed_activation_checkpointing": {"model": {"deepspeed_activation_checkpointing": True}},
            "training.gradient_checkpointing": training(gradient_checkpointing=True),
            "training.deepspeed.activation_checkpointing": deepspeed(activation_checkpointing=True)}
    every = {}
    for name, fragment in ways.items():
        effect(jobs, f"{name}: recomputed in full", fragment, knob("recompute", "full"))
        merge(every, json.loads(json.dumps(fragment)))
    effect(jobs, "all four at once", every, lambda p: p["knobs"]["recompute"] == "full" and p["settings"]["training.recompute"]["from"] == "file")
    for name in ways:
        for other in ways:
            if name == other: continue
            mixed = merge(json.loads(json.dumps(ways[name])), json.loads(json.dumps(ways[other]).replace("true", "false")))
            jobs.refused(f"{name} true beside {other} false", mixed, "true", "false", "job.yaml")


def attention_and_types(jobs):
    kept = effect(jobs, "use_flash_attention: true", merge({"model": {"use_flash_attention": True}}, {"data": {"max_length": 512}}), lambda p: True)
    denied = jobs.plan({"model": {"use_flash_attention": False}}, "--device", "a10g")[1]
    plim.ok(denied.returncode != 0 and "model.use_flash_attention" in denied.stderr and denied.stderr.count("\n") == 1 and not denied.stdout, f"use_flash_attention: false on a GPU is refused by name: {denied.stderr.strip()}")
    effect(jobs, "use_flash_attention: false keeps scores", merge({"model": {"use_flash_attention": False}}, {"data": {"max_length": 512}}),
           lambda p: p["arena_bytes"] > kept["arena_bytes"] and [x["on"] for x in p["savings"] if x["name"] == "flash attention"] == [False])
    effect(jobs, "attention_type: flash", {"model": {"attention_type": "flash"}}, setting("model.attention_type", "flash"))
    blocks = {"architecture": "mistral", "num_key_value_heads": 4, "attention_type": "sliding_window", "sparse_block_size": 8, "num_local_blocks": 3}
    effect(jobs, "sliding_window: block x local blocks", {"model": blocks}, setting("model.sliding_window", "24"))
    sparse = {"attention_type": "sparse", "sparse_block_size": 16, "num_local_blocks": 2}
    losses = [plim.losses(jobs.train({"model": model}, "--steps", 2, "--no-checkpoint")[1].stdout) for model in ({}, sparse, {**sparse, "num_local_blocks": 1})]
    plim.ok(all(len(x) == 2 for x in losses) and losses[0] != losses[1] != losses[2], "attention_type: sparse sees fewer keys, by its blocks")
    effect(jobs, "fp16 in three words", training(mixed_precision="fp16", fp16=True, bf16=False), knob("precision", "fp16"))
    events, result = jobs.train(training(mixed_precision="fp16", fp16=True, bf16=False), "--steps", 2, "--no-checkpoint")
    plim.ok(any(e.get("loss_scale") for e in events if e["event"] == "step"), f"fp16 has a loss scale {result.stderr.strip()}")
    jobs.refused("fp16 and bf16", training(fp16=True, bf16=True), "training.fp16: true", "training.bf16: true")
    for words, kind in ((dict(bf16=True), "bf16"), (dict(mixed_precision="no"), "fp32"), (dict(mixed_precision="bfloat16"), "bf16")):
        effect(jobs, f"{words}", training(**words), knob("precision", kind))
    effect(jobs, "batch 12 x 4 is 48", training(batch_size=12, gradient_accumulation_steps=4), lambda p: p["effective_batch"] == 48)
    few = effect(jobs, "4 experts", {"model": {"architecture": "mixtral", "num_experts": 4, "num_key_value_heads": 4}}, lambda p: True)
    effect(jobs, "8 experts, other sizes", {"model": {"architecture": "mixtral", "num_experts": 8, "num_key_value_heads": 4}}, lambda p: p["parameters"] > 1.5 * few["parameters"])
    effect(jobs, "hidden_size, num_layers", {"model": {"hidden_size": 128, "num_layers": 5}}, lambda p: p["parameters"] > 5 * 4 * 128 * 128)
    plain = effect(jobs, "adamw", training(optimizer="adamw"), knob("optimizer", "adamw"))
    for word, name in (("adamw_8bit", "adamw8bit"), ("adafactor", "adafactor")):
        effect(jobs, f"optimizer: {word}", training(optimizer=word),
               lambda p: p["knobs"]["optimizer"] == name and p["by_class"]["state"] < plain["by_class"]["state"])
    events, _ = jobs.train(training(lr_scheduler="greedy"), "--steps", 1, "--no-checkpoint")
    plim.ok(events and setting("training.lr_scheduler", "greedy")(jobs.plan(training(lr_scheduler="greedy"))[0]), "lr_scheduler: greedy")


def at_home(knobs):
    """Nothing leaves the device."""
    return [knobs[name] for name in ("state_tier", "grad_tier", "param_tier", "offload_layers")] == ["device", "device", "device", 0]


def zero(jobs):
    for stage in (0, 1, 2, 3):
        _, result = jobs.plan(deepspeed(use_deepspeed=True, zero_stage=stage, cpu_offload=False, nvme_offload=False))
        plim.ok(result.returncode == 0 and result.stderr.count("zero_stage") == 1, f"zero_stage: {stage} with one rank is said once")
        effect(jobs, f"zero_stage: {stage} with four", deepspeed(zero_stage=stage), lambda p: p["ranks"]["zero_stage"] == stage, "--ranks", 4)
    jobs.refused("two stages", training(zero_stage=2, deepspeed={"zero_stage": 1}), "training.zero_stage: 2", "training.deepspeed.zero_stage: 1")
    on_card = {"cpu_offload": True, "zero_stage": 1}
    effect(jobs, "cpu_offload puts a card's state on the host", deepspeed(**on_card),
           lambda p: p["knobs"]["state_tier"] == "host" and p["knobs"]["param_tier"] == "device", "--device", "a10g")
    effect(jobs, "with stage 3 parameters, too", deepspeed(cpu_offload=True, zero_stage=3),
           lambda p: p["knobs"]["state_tier"] == p["knobs"]["param_tier"] == "host", "--device", "a10g")
    plan, _ = jobs.plan(deepspeed(**on_card), "--device", "a10g")
    plim.ok(plan and plan["pins"] == ["training.deepspeed.cpu_offload"], f"the pin is named as the job has it: {plan and plan['pins']}")
    large = {"model": {"hidden_size": 512, "intermediate_size": 2048, "num_layers": 12}}
    tight = ("--device", "a10g", "--budget", "700MiB")
    effect(jobs, "without a word state leaves the card where it must", large, lambda p: p["fits"] and p["knobs"]["state_tier"] == "host", *tight)
    for word, keys in (("training.deepspeed.cpu_offload", deepspeed(cpu_offload=False)), ("training.memory.enable_cpu_offload", training(memory={"enable_cpu_offload": False}))):
        effect(jobs, f"{word}: false is a pin", merge(keys, large), lambda p: not p["fits"] and p["pins"] == [word] and at_home(p["knobs"]) and
               any(r["unset"] == [word] and not r["set"] for r in p["remedies"]), *tight)
    effect(jobs, "offload_optimizer: none pins gradients, too", merge(deepspeed(offload_optimizer="none"), large),
           lambda p: p["pins"] == ["training.deepspeed.offload_optimizer"] and p["knobs"]["state_tier"] == p["knobs"]["grad_tier"] == "device", *tight)
    jobs.refused("no offload, and offloaded layers", merge(deepspeed(cpu_offload=False), training(offload_layers=2)), "training.deepspeed.cpu_offload: false",
                 "training.offload_layers: 2", args=("--device", "a10g"))
    least = jobs.plan({}, "--device", "cpu-4gb", "--budget", "1MiB")[0]["peak_bytes"]["total"]
    small = ("--device", "cpu-4gb", "--budget", least + 50000)
    effect(jobs, "a CPU's small budget takes the disk", {}, lambda p: p["fits"] and p["knobs"]["state_tier"] == "disk", *small)
    effect(jobs, "nvme_offload: false is a pin there", deepspeed(nvme_offload=False), lambda p: not p["fits"] and at_home(p["knobs"]), *small)
    effect(jobs, "a CPU has all of it there", deepspeed(**on_card), knob("state_tier", "device"))
    effect(jobs, "nvme_offload is the disk under a CPU", deepspeed(nvme_offload=True),
           lambda p: p["knobs"]["state_tier"] == "disk" and p["knobs"]["param_tier"] == "device" and p["peak_bytes"]["disk"] > 0)
    effect(jobs, "with stage 3 parameters, too", deepspeed(nvme_offload=True, zero_stage=3), knob("param_tier", "disk"))
    effect(jobs, "nvme_offload under a card is below its host", deepspeed(nvme_offload=True),
           lambda p: p["knobs"]["disk_share"] == 16 and p["peak_bytes"]["disk"] > 0, "--device", "a10g")
    jobs.refused("offload beside a tier", merge(deepspeed(cpu_offload=True), training(state_tier="device")), "training.deepspeed.cpu_offload: true",
                 "training.state_tier: device", args=("--device", "a10g"))
    effect(jobs, "use_deepspeed: false", deepspeed(use_deepspeed=False, zero_stage=3, nvme_offload=True, activation_checkpointing=True),
           lambda p: p["knobs"]["state_tier"] == "device" and p["knobs"]["recompute"] != "full")


def memory(jobs):
    def mem(**keys): return training(memory=keys)
    here = ("--device", "cpu-4gb")
    effect(jobs, "target_utilization is the budget", mem(target_utilization=0.5), lambda p: p["budget_bytes"] == 2 * GIB, *here)
    effect(jobs, "pool_size_gb is a budget", mem(pool_size_gb=1), lambda p: p["budget_bytes"] == 10 ** 9, *here)
    effect(jobs, "the smaller of both: the pool", mem(target_utilization=0.9, pool_size_gb=1.5), lambda p: p["budget_bytes"] == 1.5e9, *here)
    effect(jobs, "the smaller of both: the target", mem(target_utilization=0.1, pool_size_gb=24), lambda p: p["budget_bytes"] == int(0.1 * 4 * GIB), *here)
    effect(jobs, "a pool below the budget", merge(mem(pool_size_gb=0.5), {"budget": "1GiB"}), lambda p: p["budget_bytes"] == 5 * 10 ** 8, *here)
    for lines, status in (((0.98, 0.99, 1.0), "normal"), ((0.01, 0.99, 1.0), "warning"), ((0.01, 0.02, 1.0), "critical"), ((0.01, 0.02, 0.03), "emergency")):
        shares = dict(zip(("warning_threshold", "critical_threshold", "emergency_threshold"), lines))
        events, result = jobs.train(merge(mem(**shares), {"budget": "64MiB"}), "--steps", 1, "--no-checkpoint", "-q")
        steps = [e for e in events if e["event"] == "step"]
        plim.ok(steps and json.dumps(steps[0]).count(f'"{status}"') == 1, f"thresholds {lines}: {status} {result.stderr.strip()}")
    jobs.refused("thresholds that fall", mem(warning_threshold=0.97, critical_threshold=0.95), "warning_threshold 0.97", "critical_threshold 0.95")
    small = merge(mem(enable_cpu_offload=True), {"model": {"hidden_size": 512, "intermediate_size": 2048, "num_layers": 12}})
    effect(jobs, "enable_cpu_offload: what does not fit is offloaded", small, knob("state_tier", "host"), "--device", "a10g", "--budget", "700MiB")
    effect(jobs, "silent_mode", mem(silent_mode=True), setting("training.memory.silent_mode", "true"))
    _, result = jobs.plan(mem(clear_cache_frequency=50))
    plim.ok(result.returncode == 0 and "clear_cache_frequency' is accepted: needless" in result.stderr, "clear_cache_frequency: what replaces it is said")


def batching(jobs):
    def dynamic(**keys): return merge(training(dynamic_batching=keys), training(batch_size=48))
    free = effect(jobs, "no bounds", dynamic(enabled=True), lambda p: p["effective_batch"] == 96)
    for low, high in ((1, 8), (4, 16), (1, 1), (6, 6)):
        effect(jobs, f"micro-batch from {low} to {high}", dynamic(enabled=True, min_batch_size=low, max_batch_size=high),
               lambda p: low <= p["knobs"]["micro_batch"] <= high and p["effective_batch"] == 96)
    tight = free["by_class"]["overhead"] + 3 * MIB
    effect(jobs, "a small budget takes a small micro-batch", dynamic(enabled=True), lambda p: p["knobs"]["micro_batch"] < 4, "--budget", tight)
    effect(jobs, "but not below the bound", dynamic(enabled=True, min_batch_size=4), lambda p: p["knobs"]["micro_batch"] >= 4, "--budget", tight)
    least = effect(jobs, "a bound that nothing fits", dynamic(enabled=True, min_batch_size=48), lambda p: not p["fits"], "--budget", tight)
    plim.ok(least and any(r["set"] == {"training.dynamic_batching.min_batch_size": "1"} for r in least["remedies"]), "is named among the remedies")
    effect(jobs, "enabled: false", dynamic(enabled=False, min_batch_size=5, max_batch_size=5), lambda p: p["fits"])
    jobs.refused("no divisor", dynamic(min_batch_size=5, max_batch_size=5), "96 rows", "5")
    effect(jobs, "target_memory_utilization", dynamic(target_memory_utilization=0.25), lambda p: p["budget_bytes"] == GIB, "--device", "cpu-4gb")
    effect(jobs, "beside another target the smaller", merge(dynamic(target_memory_utilization=0.5), training(memory={"target_utilization": 0.25})),
           lambda p: p["budget_bytes"] == GIB, "--device", "cpu-4gb")
    effect(jobs, "adjustment_frequency, smooth_transitions", dynamic(adjustment_frequency=100, smooth_transitions=False),
           lambda p: setting("training.dynamic_batching.adjustment_frequency", "100")(p) and setting("training.dynamic_batching.smooth_transitions", "false")(p))


def loader(jobs):
    def data(**keys): return {"data": {"train": [f"{jobs.folder}/rows.jsonl"], **keys}}
    one = effect(jobs, "a worker", data(num_workers=1, prefetch_factor=1, buffer_size=64), lambda p: p["loader"]["workers"] == 1)
    effect(jobs, "num_workers", data(num_workers=4, prefetch_factor=1, buffer_size=64), lambda p: p["loader"]["workers"] == 4 and p["loader"]["bytes"] > one["loader"]["bytes"])
    rows, time = 8, 4096  # bytes are tokens: a batch is one piece of 32 KiB
    for factor in (1, 3, 8):
        effect(jobs, f"prefetch_factor: {factor} batches for each worker", merge(data(num_workers=1, prefetch_factor=factor, buffer_size=64, max_length=time), training(batch_size=rows)),
               lambda p, factor=factor: p["loader"]["pieces"] == factor)
    effect(jobs, "prefetch_factor of a small batch: no less than a piece", data(num_workers=1, prefetch_factor=8, buffer_size=64), lambda p: p["loader"]["pieces"] == 1)
    effect(jobs, "buffer_size is samples", data(num_workers=1, prefetch_factor=1, buffer_size=30000), lambda p: setting("data.shuffle_buffer", "30000")(p) and p["loader"]["bytes"] > one["loader"]["bytes"])
    effect(jobs, "max_length", data(max_length=32), lambda p: p["max_length"] == 32)
    _, result = jobs.plan(data(persistent_workers=True))
    plim.ok(result.returncode == 0 and "persistent_workers' is accepted: workers always" in result.stderr, "persistent_workers: what is so anyway is said")
    padded = effect(jobs, "padding: max_length", data(padding="max_length"), lambda p: p["epoch"]["padding"] > 0.2)
    for word in ("longest", True): effect(jobs, f"padding: {word}", data(padding=word), lambda p: p["epoch"]["padding"] < padded["epoch"]["padding"])


def quick_start(jobs):
    """The whole file as its users have it."""
    effect(jobs, "quick start in one file", {
        "model": {"use_flash_attention": True, "deepspeed_activation_checkpointing": True},
        "training": {"batch_size": 12, "gradient_accumulation_steps": 4, "mixed_precision": "fp16", "fp16": True, "gradient_checkpointing": True,
                     "deepspeed": {"use_deepspeed": True, "zero_stage": 1, "cpu_offload": False, "nvme_offload": False, "activation_checkpointing": True},
                     "memory": {"target_utilization": 0.90, "warning_threshold": 0.92, "critical_threshold": 0.95, "emergency_threshold": 0.97, "silent_mode": True},
                     "dynamic_batching": {"enabled": True, "min_batch_size": 4, "max_batch_size": 16, "target_memory_utilization": 0.90,
                                          "adjustment_frequency": 100, "smooth_transitions": True}},
        "data": {"prefetch_factor": 2, "num_workers": 8, "buffer_size": 30000, "persistent_workers": True, "max_length": 256},
        "output": {"gradient_checkpointing": True}, "performance": {"torch_compile": True, "float32_matmul_precision": "high"}},
        lambda p: (p["effective_batch"], p["knobs"]["precision"], p["knobs"]["recompute"], p["max_length"]) == (48, "fp16", "full", 256) and
        4 <= p["knobs"]["micro_batch"] <= 16 and p["budget_bytes"] == int(23.6 * GIB * 0.9), "--device", "rtx-4090")


ALIASES = {  # a name of TrainingArguments: (value, our key, as it is then)
    "per_device_train_batch_size": (6, "training.batch_size", "6"), "per_device_eval_batch_size": (3, "training.eval_batch_size", "3"),
    "eval_batch_size": (5, "training.eval_batch_size", "5"), "num_train_epochs": (2, "training.epochs", "2"), "epochs": (3, "training.epochs", "3"),
    "max_steps": (9, "training.steps", "9"), "eval_steps": (5, "training.eval_every", "5"), "save_steps": (7, "training.save_every", "7"),
    "save_total_limit": (3, "output.keep_checkpoints", "3"), "warmup_steps": (2, "training.warmup_steps", "2"), "weight_decay": (0.1, "training.weight_decay", "0.1"),
    "max_grad_norm": (0.5, "training.max_grad_norm", "0.5"), "adam_beta1": (0.8, "training.beta1", "0.8"), "adam_beta2": (0.95, "training.beta2", "0.95"),
    "adam_epsilon": (1e-6, "training.eps", "1e-06"), "optim": ("adamw_bnb_8bit", "training.optimizer", "adamw8bit"), "lr_scheduler_type": ("constant_with_warmup", "training.lr_scheduler", "constant"),
    "gradient_checkpointing": (True, "training.recompute", "full"), "bf16": (True, "training.mixed_precision", "bf16"), "fp16": (True, "training.mixed_precision", "fp16"),
    "tf32": (True, "performance.float32_matmul_precision", "high"), "dataloader_num_workers": (1, "data.workers", "1"), "seed": (11, "training.seed", "11"),
    "logging_steps": (4, "training.log_every", "4"), "evaluation_strategy": ("no", "training.eval_strategy", "no"),
}


def training_arguments(jobs):
    for name, (value, key, want) in ALIASES.items():
        plain = {} if name != "max_steps" else training(steps=None)
        if name == "per_device_train_batch_size": plain = training(batch_size=None)
        plan, result = jobs.plan(merge(plain, training(**{name: value})))
        got = plan and plan["settings"].get(key, {})
        plim.ok(got and got["value"] == want and got["from"] == "file", f"training.{name}: {value} is {key}: {got or result.stderr.strip()}")
    rates = lambda events: [e["lr"] for e in events if e["event"] == "step"]
    events, result = jobs.train(training(warmup_ratio=0.5, lr_scheduler_type="linear"), "--no-checkpoint")
    seen = rates(events)
    plim.ok(len(seen) == 4 and abs(seen[0] - 5e-4) < 1e-9 and abs(seen[1] - 1e-3) < 1e-9, f"warmup_ratio: half of 4 steps {seen} {result.stderr.strip()}")
    events, result = jobs.train(training(max_steps=-1, num_train_epochs=1, steps=None, batch_size=64))
    plim.ok(len(rates(events)) == 3 and result.returncode == 0, f"max_steps: -1 leaves it to the epochs: {len(rates(events))} steps {result.stderr.strip()[:200]}")
    plain = {"data": {"validation": [f"{jobs.folder}/corpus.txt"]}}
    small = dict(batch_size=64, num_train_epochs=3, steps=None, eval_rows=2)
    for strategy, evals, saves in (("epoch", 3, 3), ("no", 0, 1), ("steps", 1, 1)):
        events, result = jobs.train(merge(json.loads(json.dumps(plain)), training(eval_strategy=strategy, save_strategy=strategy, save_total_limit=9, **small)))
        kinds = [e["event"] for e in events]
        plim.ok((kinds.count("eval"), kinds.count("checkpoint")) == (evals, saves), f"eval_strategy and save_strategy: {strategy}: {kinds.count('eval')} and "
                f"{kinds.count('checkpoint')} {result.stderr.strip()[:200]}")
    notes = lambda events: [e["text"] for e in events if e["event"] == "note"]
    large = dict(mixed_precision="fp16", loss_scale=1e9, steps=1)
    debug, plain = (jobs.train(training(**large, **more), "--no-checkpoint")[0] for more in (dict(debug="underflow_overflow"), {}))
    plim.ok(any("not finite" in n for n in notes(debug)) and not any("not finite" in n for n in notes(plain)), f"debug: underflow_overflow is --check-numerics: {notes(debug)}")
    for name in ("tensorboard", "wandb"):
        events, result = jobs.train(training(report_to=[name], run_name="mine", logging_dir=f"{jobs.folder}/run/tensorboard"), "--no-checkpoint")
        plim.ok(result.returncode == 0 and os.listdir(f"{jobs.folder}/run/{name}"), f"report_to: {name} writes its files {result.stderr.strip()[:200]}")
    jobs.refused("report_to: mlflow", training(report_to="mlflow"), "training.report_to", "tensorboard, wandb")
    effect(jobs, "report_to: none", training(report_to="none"), lambda p: p["fits"])
    jobs.refused("optim: lion", training(optim="lion_8bit"), "training.optim", "adamw8bit")


def environment(jobs):
    def env(check, name, args=(), fragment=None, **variables): effect(jobs, name, fragment or {}, check, *args, env=variables)
    for device, kind in (("a10g", "bf16"), ("t4", "fp16"), ("cpu-1gb", "fp32"), ("cpu-4gb", "bf16")):
        env(knob("precision", kind), f"ENABLE_MIXED_PRECISION on {device}: {kind}", ("--device", device), ENABLE_MIXED_PRECISION="true")
    env(knob("precision", "fp32"), "ENABLE_MIXED_PRECISION=false", ("--device", "a10g", "--set", "training.preset=a10g"), ENABLE_MIXED_PRECISION="false")
    env(knob("precision", "fp32"), "a job that says fp32", ("--device", "a10g"), training(mixed_precision="fp32"), ENABLE_MIXED_PRECISION="true")
    card = int(22 * GIB * 0.8)
    env(lambda p: p["budget_bytes"] == card, "CUDA_MEMORY_FRACTION is of the card", ("--device", "a10g"), CUDA_MEMORY_FRACTION="0.8")
    env(lambda p: p["budget_bytes"] == int(2 * GIB * 0.9), "a CPU does not look at it", ("--device", "cpu-2gb"), CUDA_MEMORY_FRACTION="0.5")
    env(lambda p: p["budget_bytes"] == GIB, "a budget is stronger", ("--device", "a10g", "--budget", "1GiB"), CUDA_MEMORY_FRACTION="0.8")
    env(lambda p: p["budget_bytes"] == 11 * GIB, "per_process_memory_fraction", ("--device", "a10g"), PYTORCH_ALLOC_CONF="per_process_memory_fraction:0.5")
    env(lambda p: p["budget_bytes"] == 11 * GIB, "PLIMSOLL_ALLOC_CONF is the strongest of them", ("--device", "a10g"),
        PLIMSOLL_ALLOC_CONF="per_process_memory_fraction:0.5", PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.25")
    for rows in (1, 2, 4): env(lambda p: p["knobs"]["micro_batch"] <= rows, f"MAX_BATCH_SIZE={rows}", MAX_BATCH_SIZE=str(rows))
    for text in ("expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:16,garbage_collection_threshold:0.7",
                 "expandable_segments:True,garbage_collection_threshold:0.8,max_split_size_mb:512"):
        _, result = jobs.plan({}, env={"PYTORCH_CUDA_ALLOC_CONF": text})
        plim.ok(result.returncode == 0 and result.stderr.count("PYTORCH_CUDA_ALLOC_CONF is ignored: every byte is planned") == 1, "allocator's options: what replaces them is said")
    for name, value in (("MAX_BATCH_SIZE", "many"), ("CUDA_MEMORY_FRACTION", "1.5"), ("ENABLE_MIXED_PRECISION", "perhaps"), ("PYTORCH_CUDA_ALLOC_CONF", "max_split:1"),
                        ("PYTORCH_ALLOC_CONF", "expandable_segments:yes"), ("PLIMSOLL_ALLOC_CONF", ":"), ("WORLD_SIZE", "x"), ("RANK", "x"), ("LOCAL_RANK", "x"), ("MASTER_PORT", "0")):
        jobs.refused(f"{name}={value}", {}, f"variable {name}", env={name: value})
    jobs.refused("a webhook that is none", {}, "variable DISCORD_WEBHOOK", "https://", env={"DISCORD_WEBHOOK": SECRET})
    result = plim.run("plan", jobs.make({}), "--json", env={"DISCORD_WEBHOOK": f"https://x/{SECRET}", "WANDB_API_KEY": SECRET})
    doctor = plim.run("doctor", jobs.make({}), env={"DISCORD_WEBHOOK": f"https://x/{SECRET}", "WANDB_API_KEY": SECRET})
    plim.ok(result.returncode == 0 and "DISCORD_WEBHOOK" in doctor.stdout and "WANDB_API_KEY" in doctor.stdout and
            SECRET not in result.stdout + result.stderr + doctor.stdout + doctor.stderr, "secrets are named and never shown")


def authority(jobs):
    """flag > --set > file > environment > .env > preset > default, for one plan."""
    dotenv = f"{jobs.folder}/.env"
    with open(dotenv, "w") as f: f.write(f"# mine\nexport MAX_BATCH_SIZE='2'\nCUDA_MEMORY_FRACTION=0.5\nWANDB_API_KEY={SECRET}\n")
    fragment = {"training": {"batch_size": None, "preset": "rtx-4090", "max_steps": 4, "steps": None, "weight_decay": 0.1}}
    plan, result = jobs.plan(fragment, "--device", "rtx-4090", "--budget", "2GiB", "--batch-size", "6", "--set", "training.weight_decay=0.2", "--set", "training.batch_size=5",
                             env={"CUDA_MEMORY_FRACTION": "0.25"})
    path = f"{jobs.folder}/job.yaml"
    line = 1 + open(path).read()[:open(path).read().index('"max_steps"')].count("\n")
    want = {"budget": ("flag", "--budget"), "training.batch_size": ("flag", "--batch-size"), "training.weight_decay": ("--set", "--set"),
            "training.steps": ("file", f"{path}:{line}"), "training.mixed_precision": ("preset", "preset rtx-4090"),
            "training.gradient_accumulation_steps": ("file", None), "training.max_micro_batch_size": (".env", f"{dotenv}:2"), "data.tokenizer": ("default", None)}
    for key, (kind, where) in want.items():
        got = plan["settings"][key] if plan else {}
        plim.ok(got.get("from") == kind and (where is None or got.get("where") == where), f"{key} came from {kind}: {got} {'' if plan else result.stderr.strip()}")
    plim.ok(plan and plan["settings"]["training.steps"]["as"] == "training.max_steps", "and under which name")
    plim.ok(plan and plan["knobs"]["micro_batch"] <= 2 and "training.memory.cuda_memory_fraction" in plan["settings"] and
            plan["settings"]["training.memory.cuda_memory_fraction"]["from"] == "default", "a budget leaves the fraction alone, .env bounds the micro-batch")
    text = plim.run("plan", path, "-q", "--device", "rtx-4090").stdout
    plim.ok(f"{dotenv}:2" in text and "data.overlong" not in text and SECRET not in text, "as text: what is no default")
    plim.ok("data.overlong" in plim.run("plan", path, "-q", "--device", "rtx-4090", "--settings").stdout, "--settings: all of them")
    plan, _ = jobs.plan(fragment, "--device", "rtx-4090", env={"CUDA_MEMORY_FRACTION": "0.25"})
    plim.ok(plan["budget_bytes"] == int(23.6 * GIB * 0.25), "the environment is stronger than .env")
    for text, words in (("MAX_BATCH_SIZE\n", [".env:1", "NAME=VALUE"]), ("\nMAX_BATCH_SIZE=x\n", [".env:2", "MAX_BATCH_SIZE"]), (f"A='{SECRET}\n", [".env:1", "quote"])):
        with open(dotenv, "w") as f: f.write(text)
        jobs.refused(f".env: {text.strip()[:20]}", {}, *words)
    os.remove(dotenv)
    os.mkdir(dotenv)  # a Python environment of that name
    effect(jobs, "a folder .env is somebody else's", {}, lambda p: p["fits"])
    os.rmdir(dotenv)


def flags(jobs):
    """The launch line as it is."""
    line = "--epochs 5 --batch-size 8 --gradient-accumulation-steps 16 --disable-compilation --disable-cudagraphs --dataloader-num-workers 0 --lr_scheduler greedy".split()
    effect(jobs, "the launch line", {}, lambda p: p["effective_batch"] == 128 and all(p["settings"][k]["from"] == "flag" for k in (
        "training.epochs", "training.batch_size", "training.gradient_accumulation_steps", "data.workers", "training.lr_scheduler", "performance.cuda_graphs")) and
        p["settings"]["training.steps"]["as"] == "training.epochs" and p["loader"]["workers"] == 0, *line)
    made = plim.run("train", jobs.make({}), "-q", "--steps", 1)
    exported = plim.run("export", f"{jobs.folder}/run", "-o", f"{jobs.folder}/model", "-q")
    plain = {"model": {k: None for k in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "tie_word_embeddings")}}
    result = plim.run("train", jobs.make(plain), "-q", "--steps", 1, "--pretrained-model", f"{jobs.folder}/model", "--model-output", f"{jobs.folder}/elsewhere")
    plim.ok(made.returncode == exported.returncode == result.returncode == 0 and os.path.isdir(f"{jobs.folder}/elsewhere/checkpoint-00000001"),
            f"--pretrained-model and --model-output {result.stderr.strip()}")


for part in (recomputation, attention_and_types, zero, memory, batching, loader, quick_start, training_arguments, environment, authority, flags):
    with tempfile.TemporaryDirectory() as folder_: part(Jobs(folder_))
plim.done()
