#!/usr/bin/env python3
# run-tests: long
"""What plimsoll plan says: savings that save, lines of device and host, and remedies that do help. PLIMSOLL_LONG_TESTS=1: more of these."""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

GIB = 1 << 30
SHAPES = {  # hidden, feed-forward, layers, heads, tied; a quarter of the layers is planned several times as fast
    "1b": (2048, 8192, 16, 32, "true"), "8b": (4096, 14336, 32, 32, "false"), "70b": (8192, 28672, 80, 64, "false"),
    "8b/4": (4096, 14336, 8, 32, "false"), "70b/4": (8192, 28672, 20, 64, "false"),
}


def big(folder, name, drop=(), **changes):
    """A LLaMA job of a common size; keys in drop are left out."""
    hidden, ff, layers, heads, tied = SHAPES[name]
    keys = dict(model__vocab_size=128256, model__hidden_size=hidden, model__intermediate_size=ff, model__num_layers=layers,
                model__num_attention_heads=heads, model__num_key_value_heads=8, model__tie_word_embeddings=tied,
                data__max_length=4096, training__batch_size=4, training__gradient_accumulation_steps=8,
                training__mixed_precision="bf16", training__max_grad_norm=1)
    keys.update(changes)
    return plim.job(folder, **{k: v for k, v in keys.items() if k.replace("__", ".") not in drop})


def small(folder, name, drop=(), **changes):
    keys = dict(model__hidden_size=256, model__intermediate_size=768, model__num_layers=4)
    keys.update(changes)
    return plim.job(folder, **{k: v for k, v in keys.items() if k.replace("__", ".") not in drop})


def between(folder, program, *jobs):
    """A budget half way between what two jobs take at the least: the first does not fit, the second does."""
    least = [plim.plan(small(folder, "", **keys), "--budget", program + 1000000)[0]["peak_bytes"]["total"] for keys in jobs]
    plim.ok(least[0] > least[1] + (1 << 20), f"{jobs}: at the least {least}")
    return ["--set", f"budget={sum(least) // 2}"]


def check_savings(plan, name):
    savings = plan["savings"]
    plim.ok(savings and all(s["bytes"] > 0 or s["host_bytes"] > 0 or s["disk_bytes"] > 0 for s in savings),
            f"{name}: every line of the table saves somewhere")
    return {s["name"]: s for s in savings}


def check_host(plan, name):
    host, by_class = plan["by_host"], plan["by_class"]
    plim.ok(sum(host.values()) == plan["peak_bytes"]["host"] and host["loader"] > 0, f"{name}: by_host sums to the host's bytes")
    plim.ok(sum(by_class.values()) == plan["peak_bytes"]["total"], f"{name}: by_class sums to the total")
    plim.ok(by_class["overhead"] == plan["peak_bytes"]["total"] - plan["arena_bytes"],
            f"{name}: the loader is on the host, not in the device's classes")


def text_of(path, *args):
    result = plim.run("plan", path, "-q", *args)
    plim.ok(not re.search(r"-\d[\d.]* (B|[KMGT]iB)|\de[+-]\d", result.stdout), f"{' '.join(map(str, args))}: no negative bytes, no exponents")
    return result.stdout


def check_remedies(make, folder, name, args, wanted=(), raises=True, **changes):
    """Every remedy is applied, and then the job must fit, with the bytes that were told."""
    path = make(folder, name, **changes)
    where = f"{name} {' '.join(args)} {changes}"
    plan, result = plim.plan(path, *args)
    if not plim.ok(result.returncode == 3 and plan and not plan["fits"], f"{where}: does not fit"): return []
    texts = [r["change"] for r in plan["remedies"]]
    for want in wanted: plim.ok(any(re.fullmatch(want, t) for t in texts), f"  offers {want}: {texts}")
    last = texts and re.search(r"(^|, )(host_)?budget: [\d.]+[MGT]iB$", texts[-1])
    plim.ok(bool(last) == raises, f"  the last {'raises a line' if raises else 'raises none: the device has not so much'}: {texts}")
    for remedy in plan["remedies"]:
        path = make(folder, name, drop=remedy["unset"], **changes)
        sets = [a for k, v in remedy["set"].items() for a in ("--set", f"{k}={v}")]
        again, result = plim.plan(path, *args, *sets)
        near = again and abs(again["peak_bytes"]["host"] - remedy["host_bytes"]) < 2 << 20
        plim.ok(result.returncode == 0 and again["fits"] and near, f"  {remedy['change']} {result.stderr.strip()}")
    return texts


with tempfile.TemporaryDirectory() as folder:
    path = big(folder, "8b")
    plan, result = plim.plan(path, "--device", "rtx-4090")
    savings = check_savings(plan, "8b")
    check_host(plan, "8b")
    away = plan["by_host"]["tier"]
    plim.ok(result.returncode == 0 and away > 80 * GIB, "8b on a 4090: state, gradients and parameters are on the host")
    moments = savings.get("8-bit moments", {"host_bytes": 0, "on": True})
    plim.ok(moments["host_bytes"] > 40 * GIB and not moments["on"], "8-bit moments would save where the moments are: on the host")
    master = savings["16-bit master"]
    sum_saved = master["bytes"] + master["host_bytes"]
    plim.ok(abs(sum_saved - 2 * plan["parameters"]) < sum_saved / 100 and master["host_bytes"] > master["bytes"],
            "16-bit master: 2 bytes a parameter, on the host")
    offload = savings["optimizer state offload"]
    plim.ok(offload["bytes"] > 0 > offload["host_bytes"], "what leaves the device takes room on the host")
    text = text_of(path, "--device", "rtx-4090")
    plim.ok(re.search(r"on rtx-4090; needs \d+ GiB of host memory\nfits: .* of .*, and \d+ GiB of the host;", text), "the first line and the verdict tell the host's need")
    plim.ok(re.search(r"bytes on the device at the peak, op \d+ of \d+", text), "class lines say that they are at the peak")
    plim.ok(re.search(r"\d+ % of the parameters come from the host", text), "shares say of what")
    plim.ok(re.search(r"predicted [\d.]+ (ms|s|min|h) a step", text), "a duration for people")
    page = os.path.join(folder, "plan.html")
    plim.run("plan", path, "-q", "--device", "rtx-4090", "--set", "host_budget=300GiB", "--html", page)
    plim.ok(re.search(r"fits: .* of the host, where 300 GiB may be taken", open(page).read()), "so does the page, with the line")

    if not plim.SANITIZED:
        path = big(folder, "70b")
        plan, result = plim.plan(path, "--device", "rtx-4090")
        check_savings(plan, "70b")
        plim.ok(result.returncode == 0 and plan["peak_bytes"]["host"] > 900 * GIB and plan["host_budget_bytes"] == 0, "70b: no line, the need is told")
        plim.ok(re.search(r"predicted [\d.]+ min a step", text_of(path, "--device", "rtx-4090")), "minutes, not 1.7e+03 s")

    path = big(folder, "1b", data__max_length=2048)
    plan, result = plim.plan(path, "--device", "h200")
    savings = check_savings(plan, "1b")
    check_host(plan, "1b")
    plim.ok(plan["by_host"]["tier"] == 0, "1b on an h200: nothing leaves")
    text = text_of(path, "--device", "h200")
    plim.ok("beside the budget: this process" in text and not re.search(r"^fits:.*of the host", text, re.M), "then the host is this process alone")

    # A CPU: what leaves goes to disk, and the table counts it there.
    path = small(folder, "cpu", training__mixed_precision="bf16")
    plan, result = plim.plan(path, "--set", "training.state_tier=disk")
    savings = check_savings(plan, "cpu")
    plim.ok(plan["pins"] == ["training.state_tier"], "pins are listed")
    same, _ = plim.plan(path, "--set", "training.recompute=none", "--set", "training.gradient_checkpointing=false")
    plim.ok(same["pins"] == ["training.gradient_checkpointing"], f"two words for one thing are one pin: {same['pins']}")
    plim.ok(savings["8-bit moments"]["disk_bytes"] > 0, "8-bit moments save on disk")
    plim.ok(re.search(r"^fits: .* on disk", text_of(path, "--set", "training.state_tier=disk"), re.M), "the verdict tells it")
    program = plan["by_class"]["overhead"]

    # Remedies: each is applied and must help. The CPU's own size varies a little from run to run.
    bf16 = dict(training__mixed_precision="bf16")
    wide = dict(training__param_tier="device")
    check_remedies(small, folder, "cpu", between(folder, program, wide, dict(bf16, **wide)),
                   [r"training\.mixed_precision: bf16", r"unpin training\.param_tier"], **wide)
    kept = dict(bf16, training__state_tier="device")
    check_remedies(small, folder, "cpu", between(folder, program, kept, bf16), [r"unpin training\.state_tier"], **kept)
    card = ["--device", "rtx-4090"]
    host = lambda gib: card + ["--set", f"host_budget={gib}GiB"]
    line = lambda gib: card + ["--set", f"budget={gib}GiB"]
    texts = check_remedies(big, folder, "8b/4", host(16), [r"training\.optimizer: adamw8bit", r"training\.optimizer: adafactor"])
    plim.ok(texts and re.fullmatch(r"host_budget: \d+\.\dGiB", texts[-1]), "a host's line in readable units")
    if not plim.SANITIZED:  # a search takes fifty times as long there
        check_remedies(big, folder, "8b", line(4), [r"unpin training\.gradient_checkpointing, unpin training\.recompute"], training__recompute="none", training__gradient_checkpointing="false")
        check_remedies(big, folder, "8b", line(12), [r"unpin training\.state_tier, unpin training\.grad_tier"], raises=False,
                       training__state_tier="device", training__grad_tier="device", training__host_update=0.5)
        verdict = plim.run("plan", big(folder, "8b", training__recompute="none"), "-q", *line(4)).stdout.split("\n")[1]
        plim.ok("(training.recompute is pinned)" in verdict, f"the verdict names the pin: {verdict}")
        texts = check_remedies(big, folder, "70b/4", host(86))
        plim.ok(len(texts) == 3 and texts[0] == "adapter.type: lora" and texts[1].count(": ") > 1, f"LoRA; and where no change to the whole model is enough, several together: {texts}")
        check_remedies(big, folder, "8b/4", host(10), training__mixed_precision="fp16")
    if plim.LONG:
        check_remedies(big, folder, "8b/4", host(23.5), [r"training\.grad_dtype: bf16", r"training\.master_weights: none"])
        check_remedies(big, folder, "8b", line(4), [r"unpin training\.recompute"], training__recompute="none")
        check_remedies(big, folder, "8b", line(4), [r"unpin training\.gradient_checkpointing"], training__gradient_checkpointing="false")
        check_remedies(big, folder, "8b", line(8), [r"unpin training\.recompute_layers"], training__recompute_layers=4)
        check_remedies(big, folder, "8b", line(8), [r"unpin training\.param_tier"], training__param_tier="device", training__loss_chunks=8)
        check_remedies(big, folder, "8b", card + ["--set", "budget=3GiB", "--set", "host_budget=20GiB"], [r"budget: [\d.]+[MG]iB, host_budget: [\d.]+GiB"])
plim.done()
