"""Results of bench/gpu/compare.py: putting files together, writing them, the table for people.

    {"runs": [header...], "cases": {name: {"plimsoll": result, "torch": {variant: result}}}}

A result has the number of the run it comes from ("run"), and either what was measured or "error".
"""
import json
import os

from cases import CASES, GIB, WARM_UP

TITLES = {"t5xl": "T5-XL", "llama1b": "LLaMA-1B", "llama8b": "LLaMA-8B", "llama70b": "LLaMA-70B", "gpt2": "GPT-2 124 M"}


def write(results, path):
    """Whole or not at all; nothing without a path."""
    if not path: return
    with open(path + ".part", "w") as f:
        json.dump(results, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)


def results_of(entry):
    return [r for r in [entry["plimsoll"], *entry["torch"].values()] if r]


def merge(paths):
    """Files in order; a later result takes the place of an earlier one unless it is an error."""
    out = dict(runs=[], cases={})
    for path in paths:
        with open(path) as f: more = json.load(f)
        if not isinstance(more, dict) or "runs" not in more: raise ValueError(f"{path}: no file of compare.py's, or of an older one")
        first = len(out["runs"])
        out["runs"] += more["runs"]
        for name, entry in more["cases"].items():
            mine = out["cases"].setdefault(name, dict(plimsoll=None, torch={}))
            for r in results_of(entry): r["run"] += first
            mine["plimsoll"] = better(mine["plimsoll"], entry["plimsoll"])
            for variant, r in entry["torch"].items(): mine["torch"][variant] = better(mine["torch"].get(variant), r)
    return out


def better(old, new):
    return old if new is None or old and "error" in new and "error" not in old else new


def failures(results):
    return [name for name, entry in results["cases"].items() if any("error" in r for r in results_of(entry))]


def rivals(results, name):
    """What this case is compared with, of PyTorch: its fastest way, and its model compiled as it comes, (variant, result)."""
    case = CASES.get(name)
    entry = results["cases"].get(case.rival) if case and case.rival else None
    good = {v: r for v, r in entry["torch"].items() if "error" not in r} if entry else {}
    names = sorted(good, key=lambda v: -good[v]["tokens_per_s"])[:1] + ["compile-stock"]
    return [(v, good[v]) for v in dict.fromkeys(names) if v in good]


def knobs(k):
    """The planner's choice in a few words."""
    recompute = dict(none="nothing recomputed", selective="selective", full="full").get(k["recompute"], k["recompute"])
    if k["recompute"] == "selective" and k["recompute_layers"]: recompute = f"{k['recompute_layers']} layer{'s' * (k['recompute_layers'] > 1)} in full"
    words = [f"{k['micro_batch']} x {k['accumulation']}", recompute, f"loss/{k['loss_chunks']}"]
    if k["state_share"]: words.append(f"{k['state_share']}/16 of the state on the host, {k['host_share']}/16 of that updated there")
    if k["param_share"]: words.append(f"{k['param_share']}/16 of the parameters on the host")
    layers = k.get("offload_layers") or k.get("parked_layers")  # files of older versions have the second
    if layers: words.append(f"activations of {layers} layer{'s' * (layers > 1)} on the host")
    if k["grad_tier"] != "device": words.append("gradients on the host")
    return ", ".join(words)


def title(name):
    case = CASES[name]
    kept = "bf16 weights and moments" if case.state == "bf16" else "fp32 master and moments"
    rows = f"{case.batch} x {case.accumulation}" if case.accumulation > 1 else str(case.batch)
    budget = f"budget {case.budget_gib:g} GiB" if case.budget_gib else "no budget"
    return f"{TITLES[case.model]}, B={rows} T={case.time}, {kept}", budget


def against(results, name, r):
    def ratio(variant, other):
        return (f"{r['tokens_per_s'] / other['tokens_per_s']:.2f} x speed, {r['driver_bytes'] / other['allocated_bytes']:.2f} x "
                f"memory of {variant}{'' if other['run'] == r['run'] else ' *'}")

    return "; ".join(ratio(*pair) for pair in rivals(results, name))


def cells(results, name, variant):
    """Name, type of gradients, tok/s, least and most, steps, memory, planned or the driver's, host, comparison, choice."""
    entry = results["cases"][name]
    r = entry["torch"][variant] if variant else entry["plimsoll"]
    who = f"PyTorch {variant}" if variant else f"**plimsoll**, {title(name)[1]}"
    if "error" in r: return [who, r["error"].replace("|", "/").replace("\n", " ")] + [""] * 8
    speed = [f"{r['tokens_per_s']:,.0f}", f"{r['tokens_per_s_min']:,.0f}-{r['tokens_per_s_max']:,.0f}", str(r["steps"])]
    if variant:
        return [who, r["gradients"], *speed, f"{r['allocated_bytes'] / GIB:.2f} GiB", f"driver {r['driver_bytes'] / GIB:.2f}",
                f"RSS {r['rss_bytes'] / GIB:.1f}", "", ", ".join(r["attention_kernels"][:1])[:40]]
    planned = f"planned {r['planned_bytes'] / GIB:.2f}"
    if "predicted_tokens_per_s" in r: planned += f", {r['predicted_tokens_per_s']:,.0f} tok/s"
    host = f"{r['host_bytes'] / GIB:.1f} planned, " if "host_bytes" in r else ""
    return [who, r["gradients"], *speed, f"{r['driver_bytes'] / GIB:.2f} GiB", planned,
            f"{host}RSS {r['rss_bytes'] / GIB:.1f}", against(results, name, r), knobs(r["knobs"])]


def line(results, name, variant):
    """One run, while it goes on."""
    return f"{name:22} " + "  ".join(cell for cell in cells(results, name, variant) if cell)


def table(results):
    """Markdown: what it was measured on, a row for each run, what the columns mean."""
    out = []
    for number, run in enumerate(results["runs"]):
        out.append(f"run {number}: " + ", ".join(f"{k} {v}" for k, v in run.items() if v is not None))
    versions = {f"PyTorch {r['torch']} (CUDA {r['torch_cuda']}, cuDNN {r['torch_cudnn']}), transformers {r['transformers']}"
                for e in results["cases"].values() for r in e["torch"].values() if "torch" in r}
    out += sorted(versions) + ["", "| | gradients | tok/s | least-most | steps | memory | | host, GiB | against PyTorch | choice |",
                               "|---|---|---|---|---|---|---|---|---|---|"]
    last = None
    for name in CASES:
        entry = results["cases"].get(name)
        if not entry or not results_of(entry): continue
        if title(name)[0] != last:
            last = title(name)[0]
            out.append(f"| {last} |" + " |" * 9)
        rows = [cells(results, name, v) for v in entry["torch"]] + ([cells(results, name, None)] if entry["plimsoll"] else [])
        out += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(out + ["", f"tok/s: median of the steps measured, after {WARM_UP} that are not. memory: ours as the driver "
                            "tells it, PyTorch's its allocator's peak. *: in another run."])
