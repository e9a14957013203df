#!/usr/bin/env python3
"""The Python package: its wheel in a fresh virtual environment, the examples people copy, errors, and structs that equal the headers'."""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import lora_folder
import plim

BUILD = os.path.dirname(os.path.abspath(plim.PLIMSOLL))
EXAMPLES = os.path.abspath(os.path.join(plim.SRC_DIR, "examples", "python"))


def shell(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def install(folder):
    """The wheel in an environment of its own; its Python."""
    made = shell(sys.executable, os.path.join(plim.SRC_DIR, "tools", "make-wheel"), BUILD, folder)
    wheels = glob.glob(f"{folder}/plimsoll-*.whl")
    plim.ok(made.returncode == 0 and len(wheels) == 1 and "manylinux" in wheels[0], f"a wheel with a platform tag {made.stderr[-200:]}")
    venv = shell("python3", "-m", "venv", f"{folder}/env")
    python = f"{folder}/env/bin/python"
    done = shell(python, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-deps", wheels[0])
    plim.ok(venv.returncode == 0 and done.returncode == 0, f"pip installs it into a fresh environment {done.stderr[-300:]}")
    return python


def job(folder):
    with open(f"{folder}/corpus.txt", "w") as f: f.write(plim.CORPUS)
    text = {"model": {"architecture": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_layers": 2,
                      "num_attention_heads": 4, "max_position_embeddings": 128},
            "data": {"train": f"{folder}/corpus.txt", "tokenizer": "bytes", "max_length": 64},
            "training": {"batch_size": 8, "steps": 3, "device": "cpu", "threads": 1}, "output": {"dir": f"{folder}/run"}}
    with open(f"{folder}/job.yaml", "w") as f: json.dump(text, f)
    return f"{folder}/job.yaml"


def examples(python, folder):
    env = {k: v for k, v in os.environ.items() if k not in ("PLIMSOLL_LIBRARY", "PYTHONPATH")}
    for name in sorted(os.listdir(EXAMPLES)):
        lines = len(open(f"{EXAMPLES}/{name}").read().splitlines())
        if name in ("train.py", "serve.py"): plim.ok(lines <= 15, f"{name} has {lines} lines, at most 15")
    trained = shell(python, f"{EXAMPLES}/train.py", job(folder), "64MiB", env=env, cwd=folder)
    plim.ok(trained.returncode == 0 and "step 3 of 3" in trained.stdout and "saved" in trained.stdout, f"train.py {trained.stderr[-300:]}")
    told = plim.run("train", f"{folder}/job.yaml", "--budget", "64MiB", "--overwrite", "--json")
    losses = [json.loads(line)["loss"] for line in told.stdout.splitlines() if '"event":"step"' in line]
    heard = [float(x) for x in re.findall(r"loss ([\d.]+)", trained.stdout)]
    plim.ok(heard == [round(x, 4) for x in losses], f"the same losses as the command's {heard} {losses}")
    served = shell(python, f"{EXAMPLES}/serve.py", f"{folder}/run", "64MiB", "The old ship", env=env)
    same = plim.run("generate", f"{folder}/run", "-p", "The old ship", "-n", "64", "-t", "0", "--budget", "64MiB", "-q")
    plim.ok(served.returncode == 0 and served.stdout.strip() and served.stdout.strip() in same.stdout, f"serve.py: the command's text {served.stderr[-300:]} {served.stdout!r} {same.stdout!r}")
    planned = shell(python, f"{EXAMPLES}/plan.py", f"{folder}/job.yaml", "rtx-4090", env=env)
    plim.ok(planned.returncode == 0 and "fits" in planned.stdout, f"plan.py {planned.stderr[-300:]}")


CALLS = r'''
import asyncio, json, os, sys, threading
import plimsoll
folder = sys.argv[1]
def says(error, call):
    try: call()
    except error as e: return str(e)
    return ""
out = {}
out["bad key"] = says(plimsoll.BadInput, lambda: plimsoll.Job(f"{folder}/job.yaml", training__bogus=1))
out["no file"] = says(ValueError, lambda: plimsoll.Trainer("/nowhere.yaml"))
small = plimsoll.plan(f"{folder}/job.yaml", "100KiB")
out["small"] = [small.fits, bool(small.reason), small.missing_bytes > 0]
out["html"] = "<iframe" in small._repr_html_() and "<html" in small.to_html()
out["estimate"] = plimsoll.estimate(f"{folder}/run/" + max(d for d in os.listdir(f"{folder}/run") if d.startswith("checkpoint")), device="rtx-4090", data__max_length=64)["fits"]
class Bar:
    def __init__(self, total, unit): self.n, self.total = 0, total
    def update(self, k): self.n += k
    def set_postfix(self, **k): self.postfix = k
    def close(self): out["bar"] = [self.n, self.total, "loss" in self.postfix]
events = []
with plimsoll.Trainer(f"{folder}/job.yaml", "64MiB", overwrite=True, on_event=lambda e: events.append(e["kind"])) as t:
    t.step(); t.set_budget("48MiB"); t.run(progress=Bar)
out["events"] = events
with plimsoll.Engine(f"{folder}/run", "64MiB") as e:
    whole = e.generate("The", max_tokens=8)
    async def several(): return await asyncio.gather(*[e.agenerate("The", max_tokens=8) for _ in range(3)])
    out["async"] = all(x == whole for x in asyncio.run(several()))
    pieces = e.stream("The", max_tokens=50)
    next(pieces); pieces.close()
    out["ids"] = bool(e.generate([84, 104, 101], max_tokens=4))
    e.set_budget("48MiB"); e.generate("The", max_tokens=2)
    out["stats"] = e.stats()["budget"] == 48 << 20
    out["too long"] = says(plimsoll.PlimsollError, lambda: e.generate("x" * 100000))
    out["no slots"] = says(plimsoll.PlimsollError, lambda: e.load_adapter("a", f"{folder}/adapter"))
with plimsoll.Engine(f"{folder}/run", "64MiB", max_adapters=2, max_adapter_rank=4) as e:
    whole = e.generate("The", max_tokens=8)
    out["no adapter"] = says(plimsoll.BadInput, lambda: e.generate("The", adapter="a", max_tokens=8))
    out["no folder"] = says(plimsoll.BadInput, lambda: e.load_adapter("a", "/nowhere"))
    e.load_adapter("a", f"{folder}/adapter")
    changed = e.generate("The", adapter="a", max_tokens=8)
    e.unload_adapter("a")
    out["adapter"] = [changed != whole, e.generate("The", max_tokens=8) == whole]
    out["unloaded"] = says(plimsoll.BadInput, lambda: e.unload_adapter("a"))
tok = plimsoll.Tokenizer("bytes")
out["tokens"] = tok.encode("ship") == [115, 104, 105, 112] and tok.decode([115, 104]) == "sh" and tok.vocab_size == 256
m = plimsoll.DeviceManager("cpu")
s = m.get_memory_summary()
out["summary"] = s["allocated_mb"] > 0 and 0 <= s["utilization"] <= 1 and 0 <= s["fragmentation_ratio"] <= 1 and s["free_mb"] > 0
os.environ["MAX_BATCH_SIZE"] = "4"
out["batch"] = plimsoll.DeviceManager("cpu", context=plimsoll.Context()).get_batch_size(32, 10) <= 4
m.memory_snapshot(f"{folder}/memory.json"); out["trace"] = bool(json.load(open(f"{folder}/memory.json")))
out["inference"] = sorted(m.get_inference_config()) == ["batch_size", "device", "precision"]
out["cleared"] = m.clear_cache(deep_clean=True) >= 0
mon = plimsoll.MemoryMonitor(silent_mode=True, device="cpu")
h = mon.check_memory_health(batch_size=12)
out["health"] = h["status"] in ("normal", "warning", "critical", "emergency") and "Memory:" in h["line"]
b = mon.get_detailed_memory_breakdown(); out["breakdown"] = b["total"]["reserved_gb"] > 0 and "ratio" in b["fragmentation"]
a = mon.estimate_activation_memory(2, 128, 64, 4, 4, True, True); out["activations"] = a["effective_memory_gb"] > 0 and a["savings_gb"] > 0
out["tricks"] = all(set(v) == {"enabled", "memory_savings"} for v in mon.track_memory_optimizations(f"{folder}/job.yaml").values())
out["status"] = sorted(plimsoll.MLMonitor("cpu").get_torch_status()) == ["environment", "memory", "peak_mb"]
with plimsoll.Allocator("simulated:64MiB", budget="32MiB") as al:
    x = al.alloc(1 << 20, owner="a"); al.free(x)
    out["refused"] = says(plimsoll.OutOfMemory, lambda: al.alloc(1 << 30))
    out["twice"] = says(plimsoll.BadInput, lambda: al.free(x))
    out["figures"] = al.stats()["allocated_bytes.all.peak"] == 1 << 20
print(json.dumps(out))
'''


def calls(python, folder):
    lora_folder.make(f"{folder}/adapter", r=4, size=0.5, num_key_value_heads=4)
    done = shell(python, "-c", CALLS, folder, cwd=folder)
    if not plim.ok(done.returncode == 0, f"every call of the page {done.stderr[-600:]}"): return
    out = json.loads(done.stdout.splitlines()[-1])
    texts = ("bad key", "no file", "too long", "refused", "twice", "no slots", "no adapter", "no folder", "unloaded")
    for name in texts: plim.ok(out[name] and "\n" not in out[name], f"{name}: one line: {out[name][:100]}")
    plim.ok(out["adapter"] == [True, True], f"an adapter changes the answers of those who ask for it {out['adapter']}")
    plim.ok(out["small"] == [False, True, True], f"a plan that does not fit is a plan {out['small']}")
    plim.ok(out["bar"] == [3, 3, True], f"a bar with tqdm's protocol {out['bar']}")
    plim.ok(out["events"].count("step") == 3 and "replanned" in out["events"], f"events {out['events']}")
    for name, value in out.items():
        if name not in texts + ("small", "bar", "events"): plim.ok(value, f"{name}")


def structs(python):
    """ctypes' structs are as long as the compiler's."""
    script = ("import ctypes, json; from plimsoll import _native as n; "
              "print(json.dumps({k: ctypes.sizeof(v) for k, v in vars(n).items() if isinstance(v, type) and issubclass(v, n.Sized) and v is not n.Sized}))")
    sizes = json.loads(shell(python, "-c", script).stdout)
    names = {"MonitorOptions": "monitor_options", "PlanFigures": "plan_figures"}
    c_names = {k: "plim_" + names.get(k, re.sub(r"(?<!^)([A-Z])", r"_\1", k).lower()) for k in sizes}
    source = '#include <plimsoll/plimsoll.h>\n#include <stdio.h>\nint main(void) {\n' + "".join(
        f'printf("{k} %zu\\n", sizeof(struct {c}));\n' for k, c in c_names.items()) + "}\n"
    with tempfile.TemporaryDirectory() as t:
        with open(f"{t}/s.c", "w") as f: f.write(source)
        made = shell("cc", "-I", os.path.join(plim.SRC_DIR, "include"), f"{t}/s.c", "-o", f"{t}/s")
        if not plim.ok(made.returncode == 0, f"every struct has its C name {made.stderr[-300:]}"): return
        real = dict(line.split() for line in shell(f"{t}/s").stdout.splitlines())
    wrong = [k for k, v in sizes.items() if int(real[k]) != v]
    plim.ok(not wrong, f"{len(sizes)} structs have the compiler's size {wrong}")


def main():
    if not os.path.exists(f"{BUILD}/libplimsoll.so.0"):
        print("no shared library in this build")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        python = install(folder)
        examples(python, folder)
        calls(python, folder)
        structs(python)
    plim.done()


main()
