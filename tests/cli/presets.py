#!/usr/bin/env python3
"""Devices that are not here and training.preset: names, lines above a card's memory, where there are no kernels, what a
preset fills."""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

GIB, MIB = 1 << 30, 1 << 20
OPEN = {"training__batch_size": "null", "training__gradient_accumulation_steps": "null", "training__mixed_precision": "null"}


def refused(result, words, text):
    """Exit 2 and one line that has all these words."""
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and all(word in result.stderr for word in words)
            and not result.stdout, f"{text}: {result.stderr.strip()}")


def rows(plan):
    return plan and (plan["effective_batch"], plan["knobs"]["precision"])


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder)

    # Names that are none.
    for name, words in (("a100", ["a100-40 or a100-80"]), ("4090", ["did you mean rtx-4090?"]), ("v100", ["--list-devices"]),
                        ("cuda", ["training.device: cuda"]), ("cpu", ["training.device: cpu"]), ("auto", ["training.device: auto"])):
        refused(plim.run("plan", path, "-q", "--device", name), ["'--device'", f"'{name}'", *words], f"--device {name}")
    refused(plim.run("plan", path, "-q", "--set", "training.preset=a100"), ["'training.preset'", "a100-40 or a100-80"], "training.preset=a100")
    refused(plim.run("train", path, "-q", "--set", "training.preset=v100"), ["'training.preset'", "--list-devices"], "train says the same")

    # A line above what the device has: no card can hold it, for a CPU it is planned and said.
    refused(plim.run("plan", path, "-q", "--device", "rtx-4090", "--budget", "23.7GiB"),
            ["'budget'", "23.7 GiB", "rtx-4090", "23.6 GiB"], "a budget above the card's memory")
    above, result = plim.plan(path, "--device", "cpu-512mb", "--budget", "2GiB")
    plim.ok(result.returncode == 0 and above["budget_bytes"] == 2048 * MIB and not above["memory"]["holds_budget"], "a CPU may be asked about more than it has")
    exact, result = plim.plan(path, "--device", "rtx-4090", "--budget", "23.6GiB")
    plim.ok(result.returncode == 0 and exact["budget_bytes"] == int(23.6 * (1 << 30)), "all of the card may be asked for")

    # Scratch of the kernels that would run there is in the plan.
    for name in ("rtx-4090", "h200", "t4", "inf2"):
        card, result = plim.plan(path, "--device", name)
        plim.ok(result.returncode == 0 and card["arena_bytes"] > 32 * MIB, f"{name}: cuBLASLt's 32 MiB are counted")
    small, result = plim.plan(path, "--device", "cpu-512mb")
    plim.ok(result.returncode == 0 and small["by_class"]["work"] > 0, "cpu-512mb: the CPU's kernels' are")

    # Where the program has no kernels.
    listed = dict(line.split(None, 1) for line in plim.run("plan", "--list-devices").stdout.splitlines())
    plim.ok(listed["g5.12xlarge"] == "4 x a10g, 192 GiB of the host" and listed["p5"] == "8 x h100, 2.00 TiB of the host", "--list-devices names machines that can be rented")
    noted = plim.run("plan", path, "--device", "g5.12xlarge", "--json", "--set", "training.gradient_accumulation_steps=8")
    plim.ok(noted.returncode == 0 and '"device": "a10g"' in noted.stdout and '"count": 4' in noted.stdout, f"a machine is its cards: {noted.stderr.strip()}")
    plim.ok(len(listed) == 28 and [n for n, rest in listed.items() if "cannot run" in rest] == ["t4", "inf2"],
            "--list-devices marks the two without kernels")
    for name, why in (("t4", "7.5"), ("inf2", "NVIDIA")):
        card, result = plim.plan(path, "--device", name)
        plim.ok(result.returncode == 0 and card["runnable"] is False and why in card["not_runnable"], f"{name}: the plan says so")
        text = plim.run("plan", path, "-q", "--device", name).stdout
        page = os.path.join(folder, "plan.html")
        plim.run("plan", path, "-q", "--device", name, "--html", page)
        plim.ok(all("cannot run there yet" in t and why in t for t in (text, open(page).read())), f"{name}: text and page too")
    card, result = plim.plan(path, "--device", "a10g")
    plim.ok(card["runnable"] is True and "not_runnable" not in card and
            "cannot run" not in plim.run("plan", path, "-q", "--device", "a10g").stdout, "a10g: nothing of the kind")

    # A machine has its host's memory, which is the line there; a card alone says first what its host must have.
    large = plim.job(folder, model__hidden_size=8192, model__intermediate_size=28672, model__num_layers=7, model__vocab_size=128256,
                     model__num_attention_heads=64, model__num_key_value_heads=8, training__mixed_precision="bf16", training__batch_size=8, data__max_length=2048)
    first, verdict = plim.run("plan", large, "-q", "--device", "a10g").stdout.splitlines()[:2]
    plim.ok(re.search(r"on a10g; needs [6-9]\d\.\d GiB of host memory$", first) and verdict.startswith("fits"), f"a card alone: {first}")
    machine, result = plim.plan(large, "--device", "g5.2xlarge")
    plim.ok(result.returncode == 3 and not machine["fits"] and machine["host_budget_bytes"] == 32 * GIB // 10 * 9 and machine["missing_host_bytes"] > 32 * GIB and
            "use a host with more memory" in result.stderr, f"g5.2xlarge has 32 GiB: {result.stderr.strip()}")
    text = plim.run("plan", large, "-q", "--device", "g5.2xlarge").stdout
    plim.ok(machine["remedies"] and not any("host_budget" in r["set"] for r in machine["remedies"]) and "a machine whose host has" in text and "needs" not in text.split("\n")[0],
            "no remedy asks for what the machine has not")
    for r in machine["remedies"][:1]:
        changed, result = plim.plan(large, "--device", "g5.2xlarge", *[w for k, v in r["set"].items() for w in ("--set", f"{k}={v}")])
        plim.ok(result.returncode == 0 and changed["fits"] and changed["peak_bytes"]["host"] <= 32 * GIB, f"a remedy holds: {r['change']}")
    shared, result = plim.plan(large, "--device", "g5.12xlarge")
    plim.ok(result.returncode == 0 and shared["host_budget_bytes"] == 192 * GIB // 10 * 9 // 4 >= shared["peak_bytes"]["host"], "ranks of a machine share its host's memory")
    result = plim.run("plan", large, "-q", "--device", "g5.2xlarge", "--set", "host_budget=100GiB")
    plim.ok(result.returncode == 2 and "host_budget" in result.stderr and "28.8 GiB" in result.stderr and not result.stdout, f"more than it has: {result.stderr.strip()}")
    beyond, result = plim.plan(path, "--device", "cpu-512mb", "--budget", "64GiB", "--set", "training.batch_size=4096", "--set", "training.micro_batch_size=4096")
    plim.ok(result.returncode == 3 and beyond["fits"] is False, "what holds its budget and not its device does not fit, in JSON too")

    # The memory profile of the device holds where the job names none.
    for name, memory, share in (("cpu-512mb", 512 * MIB, 0.85), ("cpu-2gb", 2048 * MIB, 0.90)):
        one, _ = plim.plan(path, "--device", name)
        given, _ = plim.plan(path, "--device", name, "--set", "profile=aggressive")
        plim.ok(one["budget_bytes"] == int(memory * share) and given["budget_bytes"] == int(memory * 0.92), f"{name}: profile")

    # training.preset fills what is open, and nothing else.
    path = plim.job(folder, **OPEN)
    plim.ok(rows(plim.plan(path)[0]) == (8, "fp32"), "no preset: the defaults")
    for name, want in (("rtx-4090", (48, "fp16")), ("a10g", (128, "bf16")), ("h100", (48, "bf16")), ("rtx-5090", (128, "bf16")), ("cpu-1gb", (16, "fp32"))):
        plan, result = plim.plan(path, "--set", f"training.preset={name}")
        plim.ok(rows(plan) == want, f"preset {name}: {rows(plan)} {result.stderr.strip()}")
    plan, _ = plim.plan(path, "--set", "training.preset=rtx-4090", "--set", "training.batch_size=3", "--set", "training.mixed_precision=bf16")
    plim.ok(rows(plan) == (12, "bf16"), "given keys win")
    plan, _ = plim.plan(path, "--set", "training.preset=rtx-4090", "--set", "training.bf16=true")
    plim.ok(rows(plan) == (48, "bf16"), "also by another name")
    plan, _ = plim.plan(path, "--device", "h200", "--set", "training.preset=auto")
    plim.ok(rows(plan) == (64, "bf16"), "auto is the device that is planned for")
    plan, result = plim.plan(path, "--device", "h200", "--set", "training.preset=auto", "--set", "training.grad_dtype=bf16")
    plim.ok(result.returncode == 0, f"auto's precision is known when types are checked {result.stderr.strip()}")
    refused(plim.run("plan", path, "-q", "--device", "rtx-4090", "--set", "training.preset=auto", "--set", "training.grad_dtype=bf16"),
            ["'training.grad_dtype'"], "where it is fp16")
    for name in ("none", ""):
        plim.ok(rows(plim.plan(path, "--set", f"training.preset={name}")[0]) == (8, "fp32"), f"preset '{name}' is none")

    # A note says what was filled; train agrees with plan.
    noted = plim.run("plan", path, "--set", "training.preset=cpu-1gb", "--set", "data.tokenizer=bytes", "--json")
    plim.ok(noted.returncode == 0 and "training.preset cpu-1gb: batch_size 4, gradient_accumulation_steps 4, mixed_precision fp32, "
            "profile conservative" in noted.stderr and noted.stderr.count("\n") == 1, f"the note: {noted.stderr.strip()}")
    os.makedirs(f"{folder}/idle/proc")  # where nobody takes memory between the two
    with open(f"{folder}/idle/proc/meminfo", "w") as f: f.write("MemTotal: 4000000 kB\nMemAvailable: 4000000 kB\n")
    os.environ["PLIMSOLL_MACHINE"] = f"{folder}/idle"
    for name in ("auto", "cpu-1gb"):
        sets = ["--set", f"training.preset={name}"]
        plan, _ = plim.plan(path, *sets)
        run = plim.run("train", path, "-q", "--json", "--no-checkpoint", "--steps", 1, *sets)
        seen = [e for e in plim.events(run.stdout) if e["event"] == "plan"]
        plim.ok(run.returncode == 0 and len(seen) == 1 and not run.stderr and
                seen[0]["knobs"]["micro_batch"] * seen[0]["knobs"]["accumulation"] == plan["effective_batch"] and
                seen[0]["knobs"]["precision"] == plan["knobs"]["precision"] and seen[0]["budget_bytes"] == plan["budget_bytes"],
                f"preset {name}: train and plan have the same batch, precision and budget {run.stderr.strip()}")
plim.done()
