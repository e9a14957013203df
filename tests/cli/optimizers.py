#!/usr/bin/env python3
# run-tests: slow
"""Every optimizer and every narrower type: trains as well, resumes bit by bit, moves to disk, follows the budget."""
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

BF16 = "training.mixed_precision=bf16"
LIGHT = [BF16, "training.master_weights=none", "training.state_dtype=bf16", "training.grad_dtype=bf16"]
WAYS = {
    "adamw8bit": ["training.optimizer=adamw8bit"],
    "adamw8bit, bf16": ["training.optimizer=adamw8bit", BF16],
    "adamw8bit, bf16 without master": ["training.optimizer=adamw8bit", BF16, "training.master_weights=none"],
    "adafactor": ["training.optimizer=adafactor", "training.weight_decay=0.1"],
    "adafactor with beta1, bf16": ["training.optimizer=adafactor", "training.beta1=0.9", BF16],
    "adamw, all bf16": LIGHT,
    "sgd, all bf16": ["training.optimizer=sgd", *LIGHT],
}


def sets(*items):
    return [x for item in items for x in ("--set", item)]


def train(path, name, *args):
    anew = [] if "--resume" in args else ["--overwrite"]
    result = plim.run("train", path, "-q", *anew, *args, *sets(f"output.dir={os.path.dirname(path)}/{name}"))
    return plim.losses(result.stdout), result.stderr.strip()


def content(folder):
    """Bytes of every file of a checkpoint."""
    out = {}
    for root, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), "rb") as f:
                out[os.path.relpath(os.path.join(root, name), folder)] = f.read()
    return out


def resume_test(folder, path, name, way):
    """Three steps, a fresh process, three more: the same bytes as six at once."""
    shutil.rmtree(f"{folder}/parts", ignore_errors=True)
    whole, why = train(path, "whole", "--steps", 6, *sets(*way))
    first, _ = train(path, "parts", "--steps", 3, *sets(*way))
    rest, _ = train(path, "parts", "--steps", 6, "--resume", *sets(*way))
    plim.ok(len(whole) == 6 and {**first, **rest} == whole, f"{name}: resumed, every loss is the whole run's {why}")
    a, b = (content(f"{folder}/{d}/checkpoint-00000006") for d in ("whole", "parts"))
    plim.ok(a and a == b, f"{name}: and so are the last checkpoint's bytes")
    return whole


def placement_test(path, name, way, whole):
    """On disk, in slices; inside backward; with another number of threads: the same losses."""
    far, why = train(path, "far", "--steps", 6, *sets(*way, "training.state_tier=disk"))
    plim.ok(far == whole, f"{name}: state on disk, the same losses {why}")
    both, why = train(path, "both", "--steps", 6, *sets(*way, "training.state_tier=disk", "training.grad_tier=disk", "training.micro_batch_size=8"))
    plim.ok(both == whole, f"{name}: gradients on disk too, the same losses {why}")
    inside, why = train(path, "inside", "--steps", 6, *sets(*way, "training.optimizer_in_backward=true"))
    plim.ok(inside == whole, f"{name}: updated inside backward, the same losses {why}")
    one, why = train(path, "one", "--steps", 6, *sets(*way, "training.threads=1"))
    plim.ok(one == whole, f"{name}: one thread, the same losses {why}")


def budget_test(path, name, way):
    """The line goes down and up again; micro-batches stay, so losses are the same. The model is wide enough for the
    state to weigh more than what the process itself takes differs by from one start to the next."""
    pins = [*way, "training.micro_batch_size=8", "training.recompute=none", "model.hidden_size=256", "model.intermediate_size=768", "data.max_length=16"]
    calm, _ = train(path, "calm", "--steps", 8, *sets(*pins))
    near, _ = plim.plan(path, "--budget", "8GiB", *sets(*pins, "training.state_tier=device"))
    far, _ = plim.plan(path, "--budget", "8GiB", *sets(*pins, "training.state_tier=disk"))
    stays = near["arena_bytes"] == far["arena_bytes"]  # adafactor's statistics do not leave
    low = (near["arena_bytes"] + far["arena_bytes"]) // 2 + near["by_class"]["overhead"] + stays * (1 << 20)
    result = plim.run("train", path, "-q", "--overwrite", "--steps", 8, *sets(*pins, f"output.dir={os.path.dirname(path)}/moved"), "--budget", "1GiB", "--budget-at", f"3={low}", "--budget-at", "6=1GiB")
    bytes_ = [e["moved_bytes"] for e in plim.events(result.stdout) if e["event"] == "replan"]
    plim.ok(len(calm) == 8 and plim.losses(result.stdout) == calm, f"{name}: the budget moves, the losses do not {result.stderr.strip()}")
    plim.ok(len(bytes_) == 2 and (min(bytes_) > 0 or stays), f"{name}: {bytes_} bytes went to disk and came back")


def micro_test(path):
    """8-bit moments in fp32: micro-batches of a multiple of the summation block (512 positions) have the same bits, and a budget
    that chooses among them the same losses. Others differ in a gradient's last digit, which a code may make larger."""
    wide = ("training.optimizer=adamw8bit", "training.mixed_precision=fp32", "model.tie_word_embeddings=false", "training.batch_size=16", "data.max_length=64")
    runs = {rows: train(path, f"micro{rows}", "--steps", 8, *sets(*wide, f"training.micro_batch_size={rows}"))[0] for rows in (16, 8, 1)}
    plim.ok(len(runs[16]) == 8 and runs[16] == runs[8], "adamw8bit: micro-batches of 8 and 16 rows: the same losses")
    far = max((abs(runs[1][s] - l) / l for s, l in runs[16].items()), default=9)
    plim.ok(len(runs[1]) == 8 and far < 1e-5, f"adamw8bit: of one row: {far:.1e} apart")


def size_test(path):
    """The planner counts what each choice saves."""
    def state(*way):
        return plim.plan(path, *sets(*way))[0]["by_class"]
    wide, narrow, eight = state(BF16), state(*LIGHT), state(BF16, "training.optimizer=adamw8bit")
    factor = state(BF16, "training.optimizer=adafactor")
    plim.ok(narrow["state"] * 2 == wide["state"] and narrow["master"] == 0, "bf16 state takes half, and there is no master")
    plim.ok(eight["state"] < wide["state"] * 0.35, f"8-bit state takes {eight['state'] / wide['state']:.2f} of fp32's")
    plim.ok(factor["state"] < wide["state"] * 0.1, f"adafactor's takes {factor['state'] / wide['state']:.3f}")


def loss_test(path):
    """After 100 steps (200 in the long tests) 8-bit moments are at most a hundredth worse than fp32's, the narrow types within three."""
    steps = 200 if plim.LONG else 100
    def last(*way):
        losses, why = train(path, "long", "--steps", steps, "--no-checkpoint", *sets(*way))
        return sum(losses[s] for s in range(steps - 9, steps + 1)) / 10 if len(losses) == steps else print("#", why) or 99
    fp32, bf16 = last(), last(BF16)
    eight, light = last("training.optimizer=adamw8bit"), last(*LIGHT)
    plim.ok(eight < 1.01 * fp32, f"adamw8bit {eight:.4f} is not more than 1 % above adamw's {fp32:.4f}")
    plim.ok(abs(light / bf16 - 1) < 0.03, f"bf16 without master, moments and gradients in bf16 {light:.4f}, with fp32 ones {bf16:.4f}")


def refusals(path):
    for what, way, words in [("fp16 without master", ["training.mixed_precision=fp16", "training.master_weights=none"], "training.master_weights"),
                             ("bf16 gradients of fp32 weights", ["training.grad_dtype=bf16"], "training.grad_dtype"),
                             ("bf16 moments of adamw8bit", ["training.optimizer=adamw8bit", "training.state_dtype=bf16"], "training.state_dtype")]:
        result = plim.run("plan", path, "-q", *sets(*way))
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and words in result.stderr, f"{what} is refused: {result.stderr.strip()}")
    other = plim.run("train", path, "-q", "--resume", *sets(f"output.dir={os.path.dirname(path)}/whole", "training.optimizer=adamw8bit", "training.state_dtype=fp32"))
    plim.ok(other.returncode != 0 and "training.optimizer" in other.stderr, f"a checkpoint of another optimizer is refused: {other.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__batch_size=8, training__gradient_accumulation_steps=1)
    for name, way in WAYS.items():
        losses = resume_test(folder, path, name, way)
        placement_test(path, name, way, losses)
        budget_test(path, name, way)
    size_test(path)
    micro_test(path)
    refusals(path)
    if not plim.SANITIZED:
        loss_test(path)
plim.done()
