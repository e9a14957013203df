#!/usr/bin/env python3
"""bench/gpu without a GPU and without PyTorch: every job plans and fits, results survive failures, files go together."""
import json
import os
import subprocess
import sys
import tempfile

# In the place of this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import plim

GPU = os.path.join(plim.SRC_DIR, "bench", "gpu")
sys.dont_write_bytecode = True
sys.path.insert(0, GPU)
import cases
import probe
import token_file

# Stands for the program and for PyTorch: answers as they do, and fails, hangs or babbles for some cases.
STAND_IN = """#!/usr/bin/env python3
import json, os, sys, time
name = os.path.basename(sys.argv[2]).removesuffix(".yaml")
if name == "version": sys.exit(1)
if sys.argv[1].endswith("torch_step.py"):
    c = json.loads(sys.argv[2])
    if c["mode"] == "bf16": sys.exit("CUDA error: nothing here")
    print("USDT: noise")
    print(json.dumps(dict(tokens_per_s=1000, tokens_per_s_min=900, tokens_per_s_max=1100, steps=c["steps"], gradients="fp32",
        allocated_bytes=4 << 30, driver_bytes=5 << 30, torch="2", torch_cuda="13", torch_cudnn=9, transformers="5",
        attention_kernels=["flash"], loss_first=1, loss_last=1)))
    sys.exit()
if name == "llama1b-at-24": time.sleep(60)
if name == "llama1b-at-20": print("no JSON")
if sys.argv[1] == "plan": print(json.dumps(dict(host_budget_bytes=9, peak_bytes=dict(host=8))))
knobs = dict(micro_batch=4, accumulation=1, recompute="none", recompute_layers=0, loss_chunks=1, state_share=0, host_share=0,
             param_share=0, grad_tier="device")
tokens = {"gpt2": 32768, "llama8b": 131072}.get(name.split("-")[0], 8192)
if sys.argv[1] == "train":
    print(json.dumps(dict(event="plan", budget_bytes=1, planned_total=3 << 30, predicted_ms=2000, host_bytes=7, knobs=knobs)))
    for i in range(int(os.environ["FAKE_STEPS"])):
        print(json.dumps(dict(event="step", loss=2 - i / 10, tokens=tokens, tokens_per_s=100 * i, memory=dict(used=2 << 30))))
    print(json.dumps(dict(event="end", rss_peak=123 << 20)))
"""


def compare(*args, env=None):
    return subprocess.run([sys.executable, "-B", f"{GPU}/compare.py", *map(str, args)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def check_list():
    listed = compare("--list")
    plim.ok(listed.returncode == 0 and not listed.stderr, f"--list {listed.stderr.strip()}")
    names = set(listed.stdout.replace(":", " ").split())
    plim.ok(names == set(cases.CASES) | set(cases.GROUPS), "it names every case and every group")
    plim.ok(compare("--list", "--cases", "8b").stdout.split()[-4:] == ["8b:", "llama8b", "llama8b-80", "llama8b-24"], "one group")
    wrong = compare("--list", "--cases", "llama2b")
    plim.ok(wrong.returncode == 1 and "'llama2b'" in wrong.stderr and wrong.stderr.count("\n") == 1, "an unknown case is named")


def check_jobs():
    """One in three; make test-long takes all."""
    some = list(cases.CASES.items())[::1 if plim.LONG else 3]
    dry = compare("--dry-run", "--plimsoll", plim.PLIMSOLL, "--steps", 1, "--cases", ",".join(name for name, _ in some))
    plim.ok(dry.returncode == 0 and "\n0 cases do not fit" in dry.stdout, f"--dry-run: they fit on an H200 {dry.stderr.strip()[-300:]}")
    for name, case in some:
        lines = [l for l in dry.stdout.splitlines() if l.startswith(f"{name}: ")]
        plim.ok(any(": fits: " in l for l in lines) and sum("torch_step.py" in l for l in lines) == len(case.torch),
                f"{name}: {lines[-1][len(name) + 2:110] if lines else 'not there'}")
    small = compare("--dry-run", "--plimsoll", plim.PLIMSOLL, "--steps", 1, "--cases", "llama8b", "--device", "rtx-4090",
                    "--set", "host_budget=1GiB")
    plim.ok(small.returncode == 1 and "1 cases do not fit" in small.stdout, "a job that does not fit is told")


def check_tokens(folder):
    for vocab, count in ((300, 4), (65536, 100003), (70000, 3 * 64 * 4 + 1), (70000, (1 << 18) + 8)):
        path = f"{folder}/{vocab}-{count}.tok"
        token_file.write_random(path, vocab, count)
        seen = plim.run("inspect", path)
        plim.ok(seen.returncode == 0 and f"{count:,}" in seen.stdout, f"{count} ids of {vocab}: a sound file {seen.stderr.strip()}")
    path = plim.job(folder, model__vocab_size=70000, model__hidden_size=32, model__num_layers=1,
                    data__train=f"[{folder}/70000-{3 * 64 * 4 + 1}.tok]", training__gradient_accumulation_steps=1, training__steps=3)
    trained = plim.run("train", path, "--json", "--no-checkpoint", "-q")
    tokens = [e["tokens"] for e in plim.events(trained.stdout) if e["event"] == "step"]
    plim.ok(tokens == [256] * 3, f"it is trained on, every row full {trained.stderr.strip()}")


def check_results(folder):
    fake, one, two = f"{folder}/fake", f"{folder}/one.json", f"{folder}/two.json"
    with open(fake, "w") as f: f.write(STAND_IN)
    os.chmod(fake, 0o755)
    common = ["--plimsoll", fake, "--python", fake, "--steps", 2, "--limit", 10, "--commit", "abc"]
    steps = {"FAKE_STEPS": str(cases.WARM_UP + 2)}
    first = compare(*common, "--cases", "llama1b-at-24,llama1b-at-20,llama1b-bf16,llama1b,llama1b-21,llama8b", "--out", one, env=steps)
    plim.ok(first.returncode == 1, f"something failed: exit 1 {first.stderr.strip()[-300:]}")
    with open(one) as f: held = json.load(f)
    run, got = held["runs"][0], held["cases"]
    plim.ok(run["commit"] == "abc" and run["date"] and run["cpu"] and "compare.py" in run["command"], "date, machine, commit and command")
    plim.ok("no result after 10 s" in got["llama1b-at-24"]["plimsoll"]["error"], "a run that hangs is ended and recorded")
    plim.ok("JSONDecodeError" in got["llama1b-at-20"]["plimsoll"]["error"], "so is one that babbles")
    plim.ok("nothing here" in got["llama1b-bf16"]["torch"]["compile"]["error"], "and a failure of PyTorch's, with its words")
    ours = got["llama1b"]["plimsoll"]
    plim.ok(ours["steps"] == 2 and ours["tokens_per_s"] == 350 and ours["tokens_per_s_max"] == 400 and ours["rss_bytes"] == 123 << 20
            and ours["loss_first"] == 2 and ours["loss_last"] == 1.6, "the rest went on: median, least, most, losses, RSS")
    plim.ok(got["llama8b"]["plimsoll"]["host_bytes"] == 8, "host bytes planned")
    plim.ok(set(got["llama1b"]["torch"]) == set(cases.CASES["llama1b"].torch), "every variant of PyTorch's")
    plim.ok("0.35 x speed, 0.50 x memory of compile" in first.stdout.split("| gradients |")[1].split("budget 21.5 GiB")[1],
            "the table compares a budget with its case's PyTorch")
    again = compare(*common, "--cases", "llama1b-at-24,llama1b-at-16", "--out", one, "--append", "--missing", env=steps)
    with open(one) as f: held = json.load(f)
    plim.ok(len(held["runs"]) == 2 and held["cases"]["llama1b-at-16"]["plimsoll"]["run"] == 1
            and held["cases"]["llama1b-at-24"]["plimsoll"]["run"] == 1 and held["cases"]["llama1b"]["plimsoll"]["run"] == 0,
            f"--append --missing: what failed is run again, the rest stays {again.stderr.strip()[-300:]}")
    compare(*common, "--cases", "gpt2-124m", "--no-torch", "--out", two, env=steps)
    merged = compare("--merge", two, one, "--out", f"{folder}/both.json")
    with open(f"{folder}/both.json") as f: both = json.load(f)["cases"]
    plim.ok(both["gpt2-124m"]["plimsoll"]["run"] == 0 and both["llama1b"]["plimsoll"]["run"] == 1 and both["llama1b-at-16"]["plimsoll"]["run"] == 2
            and "GPT-2" in merged.stdout, f"--merge: all of both {merged.stderr.strip()[-300:]}")
    late = compare(*common, "--cases", "budgets", "--minutes", 0.1, env=steps)
    plim.ok(late.returncode == 1 and "no time was left for: llama1b-at-24 plimsoll" in late.stdout, "--minutes: nothing is begun too late")
    place = f"{folder}/place"
    os.mkdir(place)
    parts = compare(*common, "--cases", "llama8b-lora-64k-24,gpt2-124m-9", "--minutes", 1, "--folder", place, "--out", f"{folder}/parts.json", env=steps)
    with open(f"{folder}/parts.json") as f: held = json.load(f)["cases"]
    plim.ok("llama8b-lora-64k-24 plimsoll: skipped: takes about 90 s, 60 s are left" in parts.stdout and "error" not in held["gpt2-124m-9"]["plimsoll"]
            and "no time was left for: llama8b-lora-64k-24" in parts.stdout, f"what would not end in time is skipped, with a line, and the next is run {parts.stderr.strip()[-300:]}")
    plim.ok(os.listdir(place) == [], "--folder: nothing is left there")


def check_probe(folder):
    try:
        probe.build(folder, "-O1", "-Wall", "-Wextra", "-Werror")
        built = True
    except (OSError, subprocess.CalledProcessError) as e:
        built = print(f"# {e}")
    plim.ok(built, "cudnn_probe.c compiles, without CUDA and without warnings")


with tempfile.TemporaryDirectory() as folder_:
    check_list()
    check_jobs()
    check_tokens(folder_)
    check_results(folder_)
    check_probe(folder_)
plim.done()
