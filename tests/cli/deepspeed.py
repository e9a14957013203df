#!/usr/bin/env python3
"""DeepSpeed's JSON, read as it is: every key has the effect it names on a plan or a run, is needless and says what replaces it, or
is refused with what to write. Launch lines of other trainers are recognised."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

GREEDY = ("--lr_scheduler", "greedy")


class Case:
    """A small job, and DeepSpeed's file beside it."""

    def __init__(self, folder):
        self.folder, self.ds = folder, f"{folder}/ds.json"
        self.job = plim.job(folder, **{"model__num_layers": 4})
        self.bare()

    def bare(self, **changes):
        """A job without what DeepSpeed's file usually says."""
        text = open(self.job).read()
        self.bare_job = f"{self.folder}/bare.yaml"
        gone = ("batch_size", "gradient_accumulation_steps", "mixed_precision", "learning_rate", "steps")
        with open(self.bare_job, "w") as f:
            for line in text.splitlines():
                if line.split(":")[0].strip() not in gone: f.write(line + "\n")

    def write(self, ds):
        with open(self.ds, "w") as f: f.write(ds if isinstance(ds, str) else json.dumps(ds, indent=1))
        return self.ds

    def plan(self, ds, *args, env=None):
        result = plim.run("plan", self.bare_job, "--deepspeed", self.write(ds), "--json", *args, env=env)
        return json.loads(result.stdout) if result.stdout.startswith("{") else None, result


def effect(case, name, ds, check, *args):
    plan, result = case.plan(ds, *args)
    try: good = plan is not None and check(plan)
    except KeyError as missing: good, name = False, f"{name} (no {missing})"
    plim.ok(good, f"{name} {'' if good else result.stderr.strip()[:300]}")
    return plan, result


def refused(case, name, ds, *words, args=()):
    result = plim.run("plan", case.bare_job, "-q", "--deepspeed", case.write(ds), *args)
    lacks = [w for w in words if w not in result.stderr]
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and not lacks and not result.stdout,
            f"{name}: {result.stderr.strip()}{f' LACKS {lacks}' if lacks else ''}")


def setting(key, value): return lambda plan: plan["settings"][key]["value"] == value


def zero(**keys): return {"zero_optimization": {"stage": 3, **keys}}


def settings(case):
    """One row a key: the fragment, our key and its value."""
    adam = lambda **p: {"optimizer": {"type": "AdamW", "params": p}}
    warm = lambda **p: {"scheduler": {"type": "WarmupLR", "params": p}}
    rows = [
        ({"train_micro_batch_size_per_gpu": 2}, "training.batch_size", "2"),
        ({"gradient_accumulation_steps": 3}, "training.gradient_accumulation_steps", "3"),
        ({"gradient_clipping": 0.5}, "training.max_grad_norm", "0.5"),
        ({"steps_per_print": 7}, "training.log_every", "7"),
        ({"wall_clock_breakdown": True}, "performance.profile", "true"),
        ({"bf16": {"enabled": True}}, "training.mixed_precision", "bf16"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "training.master_weights", "none"),
        ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "training.state_dtype", "bf16"),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}, "training.grad_dtype", "bf16"),
        ({"fp16": {"enabled": True}}, "training.mixed_precision", "fp16"),
        ({"fp16": {"enabled": True}}, "training.loss_scale_window", "1000"),
        ({"fp16": {"enabled": True}}, "training.loss_scale_hysteresis", "2"),
        ({"fp16": {"enabled": True, "initial_scale_power": 10}}, "training.loss_scale", "1024"),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "training.loss_scale", "128"),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "training.loss_scale_window", "0"),
        ({"fp16": {"enabled": True, "loss_scale_window": 50}}, "training.loss_scale_window", "50"),
        ({"fp16": {"enabled": True, "min_loss_scale": 4}}, "training.min_loss_scale", "4"),
        (adam(lr=2e-5), "training.learning_rate", "2e-05"),
        (adam(), "training.learning_rate", "0.001"),
        (adam(betas=[0.8, 0.95]), "training.beta2", "0.95"),
        (adam(eps=1e-6), "training.eps", "1e-06"),
        (adam(weight_decay=0.1), "training.weight_decay", "0.1"),
        ({"optimizer": {"type": "SGD", "params": {"momentum": 0.8}}}, "training.beta1", "0.8"),
        ({"optimizer": {"type": "SGD"}}, "training.beta1", "0"),
        (adam(), "training.beta1", "0.9"),
        ({"optimizer": {"type": "Adam"}}, "training.optimizer", "adamw"),
        (warm(warmup_max_lr=1e-4), "training.learning_rate", "0.0001"),
        ({**adam(lr=1e-2), **warm(warmup_max_lr=1e-4)}, "training.learning_rate", "0.0001"),
        (warm(warmup_num_steps=9), "training.warmup_steps", "9"),
        (warm(), "training.warmup_steps", "1000"),
        (warm(), "training.warmup_type", "log"),
        (warm(warmup_type="linear"), "training.warmup_type", "linear"),
        (warm(warmup_min_lr=1e-6), "training.warmup_min_lr", "1e-06"),
        (warm(warmup_min_lr=1e-6), "training.min_lr", "0"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-6}}}, "training.min_lr", "1e-06"),
        ({"fp16": {"enabled": "true"}}, "training.loss_scale_window", "1000"),
        ({"sequence_parallel_size": 1, "pipeline": {"stages": 1}, "tensor_parallel": {"autotp_size": 1}, "elasticity": {"enabled": 0}}, "training.batch_size", "8"),
        (warm(), "training.lr_scheduler", "constant"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 33}}}, "training.steps", "33"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {}}}, "training.lr_scheduler", "linear"),
        ({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_max_lr": 0.5, "cos_min_ratio": 0.5}}}, "training.min_lr", "0.25"),
        (zero(stage3_max_live_parameters=1e9), "training.zero.max_live_parameters", "1000000000"),
        (zero(stage3_max_reuse_distance=1e9), "training.zero.max_reuse_distance", "1000000000"),
        (zero(stage3_prefetch_bucket_size=1e6), "training.zero.prefetch_bucket_size", "1000000"),
        (zero(stage3_param_persistence_threshold=1e5), "training.zero.param_persistence_threshold", "100000"),
        (zero(stage=2), "training.zero_stage", "2"),
        (zero(stage3_gather_16bit_weights_on_model_save=False), "output.gather_weights", "false"),
    ]
    for ds, key, value in rows:
        plan, _ = effect(case, f"{json.dumps(ds)}: {key} is {value}", ds, setting(key, value))
        if plan and len(ds) == 1 and "where" in plan["settings"][key]:
            plim.ok(plan["settings"][key]["where"].startswith((case.ds + ":", "default of DeepSpeed")), f"and says so: {plan['settings'][key]['where']}")


def overrides(case):
    """Floors that are shares of the learning rate follow a flag that changes it; a floor that is given stays."""
    ds = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_min_ratio": 0.25, "cos_min_ratio": 0.125}}}
    lower = ("--set", "training.learning_rate=1e-5")
    for args, first, last in (((), "0.00025", "0.000125"), (lower, "2.5e-06", "1.25e-06"), (("--set", "training.min_lr=1e-6", *lower), "2.5e-06", "1e-06")):
        effect(case, f"{args}: from {first} to {last}", ds, lambda p: setting("training.warmup_min_lr", first)(p) and setting("training.min_lr", last)(p), *args)
    del ds["scheduler"]["params"]["cos_min_ratio"]
    effect(case, "the default of a floor, too", ds, setting("training.min_lr", "1e-09"), *lower)


def places(case):
    """ZeRO 2 and 3 with offload none, cpu and nvme give the plan they describe."""
    tiers = {"none": "device", "cpu": "host"}
    for stage in (2, 3):
        for device, tier in tiers.items():
            ds = zero(stage=stage, offload_optimizer={"device": device}, offload_param={"device": device if stage == 3 else "none"})
            params = tier if stage == 3 else "device"
            plan, _ = effect(case, f"stage {stage}, {device}, on four cards", ds,
                             lambda p: p["ranks"]["zero_stage"] == stage and p["knobs"]["state_tier"] == tier and p["knobs"]["param_tier"] == params,
                             "--device", "g5.12xlarge", "--budget", "16GB")
            pins = plan and plan["pins"]
            plim.ok(pins and {"zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"} <= set(pins), f"the pins have DeepSpeed's names: {pins}")
        ds = zero(stage=stage, offload_optimizer={"device": "nvme", "nvme_path": case.folder}, offload_param={"device": "nvme" if stage == 3 else "none"})
        effect(case, f"stage {stage}, nvme, on four cards: all of it is on disk below the host", ds,
               lambda p: p["peak_bytes"]["disk"] > 0 and p["knobs"]["disk_share"] == (32 if stage == 3 else 16), "--device", "g5.12xlarge", "--budget", "16GB")
        effect(case, f"stage {stage}, nvme, on CPU ranks", ds, lambda p: p["knobs"]["state_tier"] == "disk" and p["peak_bytes"]["disk"] > 0 and
               p["knobs"]["param_tier"] == ("disk" if stage == 3 else "device") and p["settings"]["output.disk_dir"]["value"] == case.folder, "--ranks", 4)
    nvme = {"device": "nvme", "nvme_path": case.folder}
    effect(case, "nvme without a stage makes it 3", {"zero_optimization": {"offload_optimizer": nvme, "offload_param": nvme}},
           lambda p: p["ranks"]["zero_stage"] == 3 and p["knobs"]["state_tier"] == p["knobs"]["param_tier"] == "disk", "--ranks", 2)
    refused(case, "a tier and a stage that exclude each other", {}, "training.param_tier", "training.zero_stage",
            args=("--ranks", 2, "--set", "training.param_tier=disk", "--set", "training.zero_stage=2"))
    effect(case, "cpu under a CPU is where everything is", zero(offload_optimizer={"device": "cpu"}), lambda p: p["knobs"]["state_tier"] == "device")
    effect(case, "the old word", zero(cpu_offload=True), lambda p: p["knobs"]["state_tier"] == "host", "--device", "a10g")
    for word in (zero(cpu_offload=False), zero(cpu_offload=False, cpu_offload_params=False)):
        plan, _ = effect(case, "the old word for nothing is a pin", word, lambda p: p["knobs"]["state_tier"] == p["knobs"]["grad_tier"] == "device", "--device", "a10g")
        pins = plan and plan["pins"]
        plim.ok(pins and pins[0] == "zero_optimization.cpu_offload" and len(pins) == len(word["zero_optimization"]) - 1, f"and named: {pins}")
    effect(case, "beside the newer word, which counts", zero(cpu_offload=False, offload_optimizer={"device": "cpu"}), lambda p: p["knobs"]["state_tier"] == "host", "--device", "a10g")
    effect(case, "ratio", zero(offload_optimizer={"device": "cpu", "ratio": 0.5}), lambda p: p["knobs"]["host_share"] == 8, "--device", "a10g")
    refused(case, "parameters below stage 3", zero(stage=2, offload_param={"device": "cpu"}), "ds.json:", "zero_optimization.offload_param", "stage 3")


def limits(case):
    """Bounds on what is whole of parameters in pieces."""
    ranks = ("--ranks", 4, "--link", "1g", "--set", "model.hidden_size=256", "--set", "model.intermediate_size=768")
    free, _ = case.plan(zero(stage3_max_reuse_distance=0), *ranks)
    if not plim.ok(free, "a plan of stage 3"): return
    sent = lambda p: p["ranks"]["link_bytes_per_step"]
    effect(case, "stage3_max_reuse_distance: parameters stay until backward, and less is sent", zero(stage3_max_reuse_distance=1e9),
           lambda p: p["knobs"]["keep_gathered"] and sent(p) < 0.8 * sent(free), *ranks)
    effect(case, "a short distance keeps fewer", zero(stage3_max_reuse_distance=1e6), lambda p: sent(p) <= sent(free), *ranks)
    work = lambda p: p["arena_bytes"]
    effect(case, "stage3_max_live_parameters: less is whole at once", zero(stage3_max_live_parameters=1), lambda p: work(p) < work(free), *ranks)
    effect(case, "stage3_prefetch_bucket_size: 0, nothing is gathered ahead", zero(stage3_prefetch_bucket_size=0), lambda p: work(p) < work(free), *ranks)
    effect(case, "a bucket that holds all of it changes nothing", zero(stage3_prefetch_bucket_size=1e12), lambda p: work(p) == work(free), *ranks)
    effect(case, "stage3_param_persistence_threshold: what is smaller stays whole", zero(stage3_param_persistence_threshold=1e12),
           lambda p: p["by_class"]["param"] > 3 * free["by_class"]["param"] and p["by_class"]["state"] == free["by_class"]["state"], *ranks)


def batch(case):
    for ds, ranks, rows in (({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 4, (2, 3)),
                            ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2}, 4, (2, 3)),
                            ({"train_batch_size": 24, "gradient_accumulation_steps": 3}, 2, (4, 3)), ({"train_batch_size": 24}, 3, (8, 1)),
                            ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}, 1, (24, 1))):
        effect(case, f"{ds} on {ranks} ranks", ds, lambda p: p["effective_batch"] == 24 and setting("training.batch_size", str(rows[0]))(p) and
               setting("training.gradient_accumulation_steps", str(rows[1]))(p), "--ranks", ranks)
    refused(case, "a product that is another", {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 128}, "ds.json:2", "train_batch_size: 512",
            "1 x", "128 x 1 rank", "--ranks")
    refused(case, "ranks that do not divide it", {"train_batch_size": 10}, "train_batch_size: 10", args=("--ranks", 4))


def autos(case):
    ds = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto", "reduce_bucket_size": "auto"}}
    result = plim.run("plan", case.job, "--deepspeed", case.write(ds), "--ranks", 4)
    words = ("train_batch_size: auto is 32, 8 of each of 4 ranks", f"train_micro_batch_size_per_gpu: auto is 4 ({case.job}:", "gradient_accumulation_steps: auto is 2",
             "gradient_clipping: auto is 0 (default)", "bf16.enabled: auto is false", "optimizer.params.lr: auto is 0.001", "stage3_prefetch_bucket_size: auto is the planner's choice")
    lacks = [w for w in words if w not in result.stderr]
    plim.ok(result.returncode == 0 and not lacks, f"what auto came to is told {lacks} {result.stderr[:400] if lacks else ''}")


def needless(case):
    ds = {"zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8, "stage3_gather_16bit_weights_on_model_save": True,
                                "offload_optimizer": {"device": "cpu", "pin_memory": True}}, "zero_allow_untested_optimizer": True, "aio": {"queue_depth": 8}, "flops_profiler": {"enabled": True},
          "activation_checkpointing": {"partition_activations": True}, "prescale_gradients": False, "_comment": "ours"}
    _, result = case.plan(ds)
    for key in ("overlap_comm", "contiguous_gradients", "reduce_bucket_size", "pin_memory", "zero_allow_untested_optimizer", "aio", "flops_profiler", "partition_activations"):
        plim.ok(sum(key in line and "is accepted: " in line for line in result.stderr.splitlines()) == 1, f"{key} is said to be needless once")


def bad(case):
    refused(case, "a misspelt key", zero(stge=3), "ds.json:4", "zero_optimization.stge", "zero_optimization.stage")
    refused(case, "an unknown section", {"zero_optimisation": {"stage": 3}}, "ds.json:2", "zero_optimisation", "did you mean")
    refused(case, "a stage that is none", zero(stage=7), "ds.json:3", "zero_optimization.stage", "7")
    refused(case, "an optimizer that is not here", {"optimizer": {"type": "OneBitAdam"}}, "optimizer.type", "OneBitAdam", "AdamW")
    refused(case, "a scheduler that is not here", {"scheduler": {"type": "OneCycle"}}, "OneCycle", "WarmupDecayLR")
    refused(case, "a device that is none", zero(offload_optimizer={"device": "gpu"}), "offload_optimizer.device", "none, cpu or nvme")
    refused(case, "elasticity", {"elasticity": {"enabled": True}}, "elasticity", "--resume")
    refused(case, "elasticity by a number", {"elasticity": {"enabled": 1}}, "elasticity", "--resume")
    for key in ("nesterov", "dampening"): refused(case, f"{key} by a number", {"optimizer": {"type": "SGD", "params": {key: 1}}}, f"optimizer.params.{key}: 1 is not possible")
    refused(case, "a sequence in two parts", {"sequence_parallel_size": 2}, "sequence_parallel_size: 2", "remove it")
    refused(case, "a scale beyond all", {"fp16": {"enabled": True, "initial_scale_power": 32}}, "fp16.initial_scale_power: expected a whole number from 0 to 29", "found 32")
    refused(case, "a share above 1", {"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 2.5}}}, "expected a number from 0 to 1, found 2.5")
    refused(case, "amp", {"amp": {"enabled": True}}, "amp", "bf16")
    refused(case, "L2 instead of decay", {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "adam_w_mode")
    refused(case, "pipelines", {"pipeline": {"stages": 4}}, "pipeline", "remove it")
    refused(case, "a list where a number belongs", {"gradient_clipping": [1]}, "gradient_clipping", "single value")
    refused(case, "a section that is none", {"zero_optimization": 3}, "zero_optimization", "section")
    refused(case, "both narrow types", {"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "training.fp16", "training.bf16", "bf16.enabled")
    for name, text in (("no JSON", "{"), ("a list", "[1]"), ("nothing", ""), ("a key twice", '{"bf16": {}, "bf16": {}}')): refused(case, name, text, "ds.json")
    result = plim.run("plan", case.job, "-q", "--deepspeed", f"{case.folder}/none.json")
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "none.json" in result.stderr, f"no such file: {result.stderr.strip()}")
    clash = plim.run("plan", case.job, "-q", "--deepspeed", case.write({"train_micro_batch_size_per_gpu": 3}))
    words = ("ds.json:2", "train_micro_batch_size_per_gpu is 3", f"{case.job}:", "training.batch_size 4")
    plim.ok(clash.returncode == 2 and all(w in clash.stderr for w in words), f"the job says otherwise: {clash.stderr.strip()}")
    same = plim.run("plan", case.job, "-q", "--deepspeed", case.write({"train_micro_batch_size_per_gpu": 4}), "--json")
    plim.ok(same.returncode == 0, "both say the same")
    wins = plim.run("plan", case.bare_job, "-q", "--deepspeed", case.write({"train_micro_batch_size_per_gpu": 3}), "--batch-size", 5, "--json")
    plim.ok(wins.returncode == 0 and setting("training.batch_size", "5")(json.loads(wins.stdout)), "a flag is stronger")


def doors(case):
    """By flag, as a file of the job, in place, and converted: the same job."""
    ds = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "bf16": {"enabled": True},
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}, "stage3_max_reuse_distance": 1e9}}
    text = open(case.bare_job).read()
    flag, _ = case.plan(ds, "--ranks", 4)
    paths = {"file": f"training:\n  deepspeed: {case.ds}\n", "inline": f"training:\n  deepspeed: {json.dumps({**ds, 'use_deepspeed': True})}\n"}
    same = lambda plan: plan and flag and (plan["knobs"], plan["arena_bytes"], {k: v["value"] for k, v in plan["settings"].items()}) == \
        (flag["knobs"], flag["arena_bytes"], {k: v["value"] for k, v in flag["settings"].items()})
    for name, training in paths.items():
        path = f"{case.folder}/{name}.yaml"
        with open(path, "w") as f: f.write(text.replace("training:\n", training, 1))
        plan, result = plim.plan(path, "--ranks", 4)
        plim.ok(same(plan), f"{name}: the same as by --deepspeed {result.stderr.strip()[:200]}")
        where = plan and plan["settings"]["training.zero_stage"]
        plim.ok(where and where["as"].endswith("zero_optimization.stage") and where["where"].startswith((path, case.ds)), f"{name}: {where}")
        shown = plim.run("config", "show", path, "-q").stdout
        with open(f"{case.folder}/shown.yaml", "w") as f: f.write(shown)
        plim.ok(same(plim.plan(f"{case.folder}/shown.yaml", "--ranks", 4)[0]), f"{name}: what config show prints is the same job")
    made = plim.run("config", "convert", case.ds)
    plim.ok(made.returncode == 0 and all(w in made.stdout for w in ("DeepSpeed", "zero_stage: 3", "max_grad_norm: 1", "bf16: true", "batch_size: 2", "offload_optimizer: none")),
            f"config convert {made.stderr.strip()}")
    with open(f"{case.folder}/made.yaml", "w") as f:
        f.write("\n".join(line for line in text.splitlines()).replace("training:\n", made.stdout[made.stdout.index("training:\n"):] , 1))
    plim.ok(same(plim.plan(f"{case.folder}/made.yaml", "--ranks", 4)[0]), "what was converted is the same job")
    typo = plim.run("plan", f"{case.folder}/made.yaml", "-q", "--set", f"training.deepspeed={case.ds}")
    plim.ok(typo.returncode == 2 and "--deepspeed FILE" in typo.stderr, f"--set: {typo.stderr.strip()}")


SOURCE = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}, "stage3_max_live_parameters": 1e9,
                                "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True},
          "train_batch_size": 512, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 128, "bf16": {"enabled": True}}


def source_job(case):
    """LLaMA-3.2-1B on four A10G."""
    path = f"{case.folder}/llama.yaml"
    with open(path, "w") as f:
        f.write(f"""model: {{architecture: llama, vocab_size: 128256, hidden_size: 2048, intermediate_size: 8192, num_layers: 16, num_attention_heads: 32,
  num_key_value_heads: 8, head_dim: 64, tie_word_embeddings: true}}
data: {{train: [{case.folder}/corpus.txt], max_length: 1024}}
training: {{learning_rate: 1e-4, steps: 100, deepspeed: {case.write(SOURCE)}}}
output: {{dir: {case.folder}/out}}
""")
    plan, result = plim.plan(path, "--device", "g5.12xlarge", "--budget", "16GB", "--mode", "multi", *GREEDY)
    if not plim.ok(plan is not None and result.returncode == 0, f"the source job is planned {result.stderr.strip()[:300]}"): return
    ranks = plan["ranks"]
    plim.ok(plan["peak_bytes"]["device"] <= 16e9 and plan["effective_batch"] == 512 and ranks["count"] == 4 and ranks["zero_stage"] == 3,
            f"LLaMA-1B, 1 x 128 x 4, ZeRO 3: {plan['peak_bytes']['device'] / 1e9:.2f} GB a card")
    plim.ok(0.5 < ranks["efficiency"] <= 1, f"communication costs {100 * (1 - ranks['efficiency']):.1f} % of the speed, {ranks['link_bytes_per_step'] / 1e9:.1f} GB a step")
    plim.ok(setting("training.lr_scheduler", "greedy")(plan), "GreedyLR")
    for mode, args, word in (("single", ("--ranks", 4), "4 ranks"), ("multi", (), "--ranks N")):
        result = plim.run("plan", path, "-q", "--mode", mode, *args, "--set", "training.device=cpu")
        plim.ok(result.returncode == 2 and word in result.stderr and result.stderr.count("\n") == 1, f"--mode {mode}: {result.stderr.strip()}")


def runs(case):
    """Keys that act while a run goes on."""
    warm = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-3, "warmup_min_lr": 1e-4}}}
    result = plim.run("train", case.bare_job, "--deepspeed", case.write(warm), "--steps", 5, "--no-checkpoint", "-q")
    rates = [e["lr"] for e in plim.events(result.stdout) if e["event"] == "step"]
    import math
    want = [1e-4 + 9e-4 * math.log(i + 1) / math.log(4) for i in range(4)] + [1e-3]
    plim.ok(len(rates) == 5 and all(abs(a - b) < 1e-9 for a, b in zip(rates, want)), f"WarmupLR rises by the logarithm: {rates} {result.stderr.strip()[:200]}")
    decay = {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "warmup_max_lr": 1e-3, "warmup_min_lr": 5e-4, "total_num_steps": 8}}}
    result = plim.run("train", case.bare_job, "--deepspeed", case.write(decay), "--no-checkpoint", "-q")
    rates = [e["lr"] for e in plim.events(result.stdout) if e["event"] == "step"]
    plim.ok(len(rates) == 8 and abs(rates[-1] - (5e-4 + 5e-4 / 6)) < 1e-9, f"WarmupDecayLR falls to where it began: {rates} {result.stderr.strip()[:200]}")
    losses = {}
    for name, args in (("as it is", ()), ("0", ("--set", "training.beta1=0")), ("0.9", ("--set", "training.beta1=0.9"))):
        result = plim.run("train", case.bare_job, "--deepspeed", case.write({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}), "--steps", 4, "--no-checkpoint", "-q", *args)
        losses[name] = [e["loss"] for e in plim.events(result.stdout) if e["event"] == "step"]
    plim.ok(losses["as it is"] == losses["0"] != losses["0.9"], f"SGD has no momentum unless it is given: {losses}")
    scale = {"fp16": {"enabled": True, "loss_scale": 64}, "wall_clock_breakdown": True, "steps_per_print": 2}
    result = plim.run("train", case.bare_job, "--deepspeed", case.write(scale), "--steps", 2, "--no-checkpoint", "-q")
    scales = {e["loss_scale"] for e in plim.events(result.stdout) if e["event"] == "step"}
    plim.ok(scales == {64} and "seconds" in result.stderr, f"loss_scale stays, and ops are timed: {scales} {result.stderr.splitlines()[:1]}")


def launchers(case):
    torch = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
             "PLIMSOLL_MPI": "/no/such/module.so"}  # with one, ranks meet: tests/fault/ranks_launch.py
    result = plim.run("train", case.job, "--mode", "multi", "--local_rank=0", *GREEDY, env=torch)
    line = f"mpirun -n 4 {plim.PLIMSOLL} train {case.job} --mode multi --local_rank=0 --lr_scheduler greedy"
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "torchrun" in result.stderr and line in result.stderr, f"torchrun: {result.stderr.strip()}")
    spread = plim.run("train", case.job, env={**torch, "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": ""})
    plim.ok(spread.returncode == 2 and "mpirun -n 8 --hostfile HOSTS" in spread.stderr, f"two machines: {spread.stderr.strip()}")
    one = plim.run("train", case.job, "-q", "--mode", "single", "--steps", 1, "--no-checkpoint", env={**torch, "WORLD_SIZE": "1"})
    plim.ok(one.returncode == 0, f"one process trains {one.stderr.strip()[:200]}")
    multi = plim.run("train", case.job, "-q", "--mode", "multi", "--steps", 1)
    plim.ok(multi.returncode == 2 and "mpirun" in multi.stderr and multi.stderr.count("\n") == 1, f"--mode multi alone: {multi.stderr.strip()}")


for part in (settings, overrides, places, limits, batch, autos, needless, bad, doors, source_job, runs, launchers):
    with tempfile.TemporaryDirectory() as folder_: part(Case(folder_))
plim.done()
