#!/usr/bin/env python3
"""plimsoll plan: the shape of its JSON, its sums, its exit codes, its picture."""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

SHAPE = {
    "fits": bool, "budget_bytes": int, "missing_bytes": int, "arena_bytes": int, "lower_bound_bytes": int,
    "naive_bytes": int, "device": str, "runnable": bool, "parameters": int, "effective_batch": int, "max_length": int,
    "peak_bytes": {"total": int, "device": int, "host": int, "disk": int},
    "knobs": {"micro_batch": int, "accumulation": int, "recompute": str, "loss_chunks": int, "precision": str,
              "optimizer": str, "state_tier": str, "grad_tier": str, "optimizer_in_backward": bool, "optimizer_in_forward": bool,
              "param_tier": str, "state_share": int, "param_share": int, "host_share": int, "before_norm_share": int, "offload_layers": int, "prefetch_ops": int, "keep_fp8": bool},
    "predicted": {"step_ms": (int, float), "tokens_per_s": (int, float)},
}
CLASSES = {"param", "master", "grad", "state", "act", "work", "kv", "io", "slack", "overhead"}


def misfit(value, shape, where=""):
    """The first place where a value is not of the shape, or an empty text."""
    if not isinstance(shape, dict):
        return "" if isinstance(value, shape) else f"{where}: {value!r}"
    for key, inner in shape.items():
        found = misfit(value[key], inner, f"{where}.{key}") if key in value else f"{where}.{key} is missing"
        if found: return found
    return ""


def check_shape(p, name):
    plim.ok(not misfit(p, SHAPE), f"{name}: every field is there {misfit(p, SHAPE)}")
    plim.ok(set(p["by_class"]) == CLASSES, f"{name}: by_class has every class")
    plim.ok(sum(p["by_class"].values()) == p["peak_bytes"]["total"], f"{name}: by_class sums to the total")
    plim.ok(p["lower_bound_bytes"] <= p["arena_bytes"] <= p["peak_bytes"]["total"], f"{name}: bound <= arena <= total")
    plim.ok(p["savings"] and all(not misfit(s, {"name": str, "on": bool, "bytes": int, "time_cost": (int, float)})
                                 for s in p["savings"]), f"{name}: savings")
    knobs = p["knobs"]
    plim.ok(knobs["micro_batch"] * knobs["accumulation"] == p["effective_batch"], f"{name}: the effective batch is kept")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__mixed_precision="bf16")
    plan, result = plim.plan(path, "--budget", "64MiB")
    plim.ok(result.returncode == 0 and plan["fits"] is True and not result.stderr, "fits: exit 0, nothing on stderr")
    check_shape(plan, "fits")
    plim.ok(plan["budget_bytes"] == 64 << 20 and plan["missing_bytes"] == 0, "the budget is the one given")

    program = plan["by_class"]["overhead"]
    path = plim.job(folder, training__mixed_precision="bf16", model__vocab_size=8192, model__hidden_size=256)
    # Its embedding alone takes 4 MiB; the program's own size varies from run to run, but not by so much.
    tight, result = plim.plan(path, "--budget", program + (2 << 20))
    plim.ok(result.returncode == 3 and tight["fits"] is False, "does not fit: exit 3")
    check_shape(tight, "does not fit")
    plim.ok(tight["missing_bytes"] == tight["peak_bytes"]["total"] - tight["budget_bytes"] > 0, "the missing bytes are told")
    plim.ok(result.stderr.count("\n") == 1 and str(tight["missing_bytes"]) in result.stderr,
            f"one line on stderr with them: {result.stderr.strip()}")
    remedies = tight.get("remedies") or []
    plim.ok(remedies and all(not misfit(r, {"change": str, "cost": str, "total_bytes": int}) for r in remedies), "remedies")
    plim.ok(remedies and re.fullmatch(r"budget: \d+MiB", remedies[-1]["change"]), "the last remedy raises the budget")
    if remedies:
        again, result = plim.plan(path, "--budget", remedies[-1]["change"].split()[1])
        plim.ok(result.returncode == 0, f"and with it the job fits ({remedies[-1]['change']})")

    text = plim.run("plan", path, "--budget", "64MiB", "-q")
    plim.ok(text.returncode == 0 and "fits" in text.stdout and "\033" not in text.stdout, "the table, without colours in a pipe")
    page = os.path.join(folder, "plan.html")
    plim.run("plan", path, "--budget", "64MiB", "-q", "--html", page)
    html = open(page).read()
    plim.ok(html.startswith("<!doctype html>") and "plimsoll-snapshot" in html, "--html writes a page")
    plim.ok(not re.search(r"https?://|\bsrc=|<link|@import|url\(", html), "which needs nothing but itself")
    tape = plim.run("plan", path, "--budget", "64MiB", "-q", "--tape")
    plim.ok(tape.stdout.count("\n") > 50 and "adamw" in tape.stdout, "--tape lists ops")

    devices = plim.run("plan", "--list-devices").stdout.split("\n")
    name = devices[0].split()[0]
    elsewhere, result = plim.plan(path, "--device", name)
    plim.ok(result.returncode in (0, 3) and elsewhere["device"] == name, f"--device {name}")
    wrong = plim.run("plan", path, "-q", "--device", name + "x")
    plim.ok(wrong.returncode == 2 and name in wrong.stderr, f"an unknown device names the nearest: {wrong.stderr.strip()}")

    # A device with its own memory: what leaves it, who updates it, and the host's own line.
    card = plim.job(folder, model__vocab_size=32000, model__hidden_size=512, model__intermediate_size=1408,
                    model__num_layers=6, training__mixed_precision="bf16", training__max_grad_norm=1)
    roomy, result = plim.plan(card, "--device", "h200")
    plim.ok(result.returncode == 0 and {roomy["knobs"][k] for k in ("state_tier", "grad_tier", "param_tier")} == {"device"},
            "h200: with room everything is on the device")
    for key, value, knob, want, state in (("param_tier", "host", "param_tier", "host", "host"),  # their state goes first
                                          ("grad_tier", "host", "grad_tier", "host", "device"),
                                          ("host_update", "0.5", "host_share", 0, "device")):
        pinned, result = plim.plan(card, "--device", "h200", "--set", f"training.{key}={value}")
        plim.ok(result.returncode == 0 and pinned["knobs"][knob] == want and pinned["knobs"]["state_tier"] == state,
                f"training.{key}={value} alone is honoured, state on {state}")
    pinned, result = plim.plan(card, "--device", "h200", "--set", "training.state_tier=host", "--set", "training.host_update=0.25")
    plim.ok(result.returncode == 0 and (pinned["knobs"]["state_share"], pinned["knobs"]["host_share"]) == (16, 4),
            "a quarter of the updates of state on the host is the CPU's")
    low = (roomy["peak_bytes"]["total"] - roomy["by_class"]["overhead"]) // 2 + roomy["by_class"]["overhead"]
    away, result = plim.plan(card, "--device", "h200", "--budget", low)
    plim.ok(result.returncode == 0 and away["knobs"]["state_tier"] == "host", "in half the room state is on the host")
    for limit in (away["peak_bytes"]["host"] * 2, away["peak_bytes"]["host"] + (1 << 20)):
        held, result = plim.plan(card, "--device", "h200", "--budget", low, "--set", f"host_budget={limit}")
        plim.ok(result.returncode == 0 and held["peak_bytes"]["host"] <= limit, f"host_budget={limit} is obeyed")
    short, result = plim.plan(card, "--device", "h200", "--budget", low, "--set", "host_budget=32MiB")
    plim.ok(result.returncode == 3 and short["fits"] is False and short["peak_bytes"]["total"] <= low,
            "a host too small: exit 3, though the device's line would hold")
    plim.ok(result.stderr.count("\n") == 1 and "host_budget" in result.stderr, f"the line names host_budget: {result.stderr.strip()}")
    last = short["remedies"][-1]["change"]
    plim.ok(re.fullmatch(r"host_budget: \d+MiB", last), f"and so does the last remedy: {last}")
    again, result = plim.plan(card, "--device", "h200", "--budget", low, "--set", last.replace(": ", "="))
    plim.ok(result.returncode == 0 and again["fits"], "with which it fits")
    for bad in ("training.host_update=1.5", "training.host_update=-1", "training.param_tier=moon", "host_budget=0", "host_budget=many"):
        wrong = plim.run("plan", card, "-q", "--set", bad)
        plim.ok(wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and bad.split("=")[0].split(".")[-1] in wrong.stderr,
                f"{bad} is one line and exit 2: {wrong.stderr.strip()}")

    path = plim.job(folder, training__mixed_precision="bf16")
    changed, _ = plim.plan(path, "--set", "data.max_length=32", "--set", "training.batch_size=2")
    plim.ok(changed["max_length"] == 32 and changed["effective_batch"] == 4, "--set changes keys")
plim.done()
