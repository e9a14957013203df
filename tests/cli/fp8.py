#!/usr/bin/env python3
"""mixed_precision: fp8: learns as bf16 does, has the same bits under every placement, resumes bit by bit, takes the planned bytes and
fewer than bf16, and is refused where it cannot be."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20


def sets(*items):
    return [x for item in items for x in ("--set", item)]


def train(path, *args):
    result = plim.run("train", path, "-q", *([] if "--resume" in args else ["--overwrite"]), *args)
    return plim.losses(result.stdout), result.stderr.strip()


def loss_test(path):
    """Mean of the last ten of 200 steps."""
    def last(way):
        losses, why = train(path, "--steps", 200, "--no-checkpoint", *sets(*way))
        return sum(losses[s] for s in range(191, 201)) / 10 if len(losses) == 200 else print("#", why) or 99
    bf16 = last(["training.mixed_precision=bf16"])
    fp8 = last(["training.mixed_precision=fp8"])
    plim.ok(fp8 != bf16 and abs(fp8 / bf16 - 1) < 0.02, f"after 200 steps fp8 has {fp8:.4f}, bf16 {bf16:.4f}")


def placement_test(path):
    """Weights kept as fp8 numbers or converted by each product, activations recomputed or on disk: the same losses."""
    ways = {"recompute selective": ["training.recompute=selective"], "recompute full": ["training.recompute=full"],
            "state on disk": ["training.state_tier=disk"], "parameters on disk": ["training.state_tier=disk", "training.param_tier=disk"],
            "gradients on disk": ["training.state_tier=disk", "training.grad_tier=disk"], "one thread": ["training.threads=1"]}
    pins = ["training.micro_batch_size=4", "training.recompute=none"]
    whole, why = train(path, "--steps", 10, "--no-checkpoint", *sets(*pins))
    kept, _ = plim.plan(path, *sets(*pins))
    plim.ok(len(whole) == 10 and kept["knobs"]["keep_fp8"] is True, f"weights are converted once a step {why}")
    for name, way in ways.items():
        losses, why = train(path, "--steps", 10, "--no-checkpoint", *sets(*pins, *way))
        plim.ok(losses == whole, f"{name}: the same losses {why}")
    other, why = train(path, "--steps", 10, "--no-checkpoint", *sets(*pins, "training.fp8_gradients=e4m3"))
    plim.ok(len(other) == 10 and other[1] == whole[1] and 0 < abs(other[10] / whole[10] - 1) < 0.01, f"gradients in e4m3: slightly other losses {why}")
    plim.ok(plim.plan(path, *sets(*pins, *ways["parameters on disk"]))[0]["knobs"]["keep_fp8"] is False, "with parameters on disk by each product")


def resume_test(folder, path):
    whole, why = train(path, "--steps", 6, *sets(f"output.dir={folder}/whole"))
    first, _ = train(path, "--steps", 3, *sets(f"output.dir={folder}/parts"))
    rest, _ = train(path, "--steps", 6, "--resume", *sets(f"output.dir={folder}/parts"))
    plim.ok(len(whole) == 6 and {**first, **rest} == whole, f"resumed, every loss is the whole run's {why}")
    a, b = (open(f"{folder}/{d}/checkpoint-00000006/model.safetensors", "rb").read() for d in ("whole", "parts"))
    plim.ok(a == b, "and so are the weights")
    for key, value in (("training.mixed_precision", "bf16"), ("training.fp8_gradients", "e4m3")):
        _, why = train(path, "--steps", 8, "--resume", *sets(f"output.dir={folder}/parts", f"{key}={value}"))
        plim.ok(key in why, f"another {key} is refused: {why[-120:]}")


def truth_test(folder):
    """Planned and taken bytes; activations that only products read take half."""
    path = plim.job(folder, training__mixed_precision="fp8", model__hidden_size=192, model__intermediate_size=512, model__num_layers=4, data__max_length=128,
                    training__batch_size=8, training__gradient_accumulation_steps=1, training__steps=2, training__recompute="none", training__micro_batch_size=8)
    planned, result = plim.plan(path, "--budget", "1GiB")
    bf16, _ = plim.plan(path, "--budget", "1GiB", *sets("training.mixed_precision=bf16"))
    plim.ok(planned["by_class"]["act"] < 0.87 * bf16["by_class"]["act"], f"activations {planned['by_class']['act'] / MIB:.1f} MiB, in bf16 {bf16['by_class']['act'] / MIB:.1f} MiB")
    if plim.SANITIZED: return
    events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", "1GiB", "--no-checkpoint", "--overwrite")
    end, total = events[-1] if events else {}, planned["peak_bytes"]["total"]
    plim.ok(code == 0 and end.get("ledger_peak") == end.get("planned_peak"), f"ledger peak {end.get('ledger_peak')} = planned peak {end.get('planned_peak')} {stderr.strip()}")
    plim.ok(abs(peak - total) <= max(0.01 * total, 6 * MIB), f"RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB")


def families_test(folder):
    for name, keys in (("gpt2", dict(model__architecture="gpt2", model__num_key_value_heads=4)), ("mixtral", plim.EXPERTS), ("t5", plim.T5)):
        more = dict(data__train=f"[{plim.pairs(folder)}]", data__source_field="source", data__target_field="target") if name == "t5" else {}
        path = plim.job(folder, training__mixed_precision="fp8", **{**keys, **more, "training__steps": 3})
        plain, why = train(path, "--no-checkpoint", *sets("training.mixed_precision=bf16"))
        losses, why = train(path, "--no-checkpoint")
        plim.ok(len(losses) == 3 and losses != plain and all(abs(losses[s] / plain[s] - 1) < 0.02 for s in losses), f"{name} trains {why}")


def refusals(folder, path):
    for what, way, words in [("fp8 on a card without it", ["--device", "a100-80"], ["a100-80", "8.9"]),
                             ("rows that are no multiple of 16", sets("data.max_length=100"), ["data.max_length", "112"]),
                             ("widths that are none", sets("model.hidden_size=72", "model.intermediate_size=200"), ["multiples of 16"]),
                             ("a type of gradients without it", sets("training.mixed_precision=bf16", "training.fp8_gradients=e4m3"), ["training.fp8_gradients", "bf16"]),
                             ("another type of gradients", sets("training.fp8_gradients=e3m4"), ["training.fp8_gradients", "e4m3"])]:
        result = plim.run("plan", path, "-q", *way)
        plim.ok(result.returncode in (2, 4, 5) and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words), f"{what}: {result.returncode} {result.stderr.strip()}")


    for other in ("bf16", "fp16"):
        result = plim.run("plan", plim.job(folder, training__mixed_precision="fp8", **{f"training__{other}": "true"}), "-q")
        plim.ok(result.returncode == 2 and f"training.{other}" in result.stderr, f"{other} beside it: {result.stderr.strip()}")


def cards_test(folder):
    """The plan for a card that is not here predicts what fp8 wins."""
    path = plim.job(folder, model__vocab_size=32000, model__hidden_size=2048, model__intermediate_size=5632, model__num_layers=16, model__num_attention_heads=32,
                    model__num_key_value_heads=8, data__max_length=2048, training__batch_size=16, training__gradient_accumulation_steps=4, training__grad_dtype="bf16")
    for card in ("h200", "rtx-4090"):
        bf16, fp8 = (plim.plan(path, "--device", card, *sets(f"training.mixed_precision={p}"))[0] for p in ("bf16", "fp8"))
        gain = bf16["predicted"]["step_ms"] / fp8["predicted"]["step_ms"]
        plim.ok(1.1 < gain < 1.75, f"{card}: a step is predicted {gain:.2f} times as fast")
        plim.ok(fp8["knobs"]["precision"] == "fp8", "and the plan says what it is for")


with tempfile.TemporaryDirectory() as folder_:
    job_ = plim.job(folder_, training__mixed_precision="fp8")
    refusals(folder_, job_)
    job_ = plim.job(folder_, training__mixed_precision="fp8")
    placement_test(job_)
    resume_test(folder_, job_)
    loss_test(plim.job(folder_, training__mixed_precision="fp8", training__batch_size=8, training__gradient_accumulation_steps=1))
    families_test(folder_)
    truth_test(folder_)
    cards_test(folder_)
plim.done()
