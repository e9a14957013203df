#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""lines far longer than the others do not cross the line, whenever they come and whoever reads them.

Memory is read from outside. The loader's plan holds one line of data.max_line_bytes, taken before step 1; a longer one
is refused by its number and length; a budget that is too small for long lines gets a loader for shorter ones. A process
that may not have another byte of addresses once it runs (ulimit -v) reads them all the same.
"""
import gzip
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20
WORDS = plim.CORPUS.split()[:40]
REPEATS = "{% for m in messages %}{{ m.content * 1000 }}{% endfor %}"


def long_line(size):
    words = " ".join(random.choices(WORDS, k=2000)) + " "
    return json.dumps({"text": words * (size // len(words))}) + "\n"


def sets(*keys): return [x for key in keys for x in ("--set", key)]


def within(name, path, *args, steps=None, code=0, says=""):
    """Plans, trains, and holds the process's peak against plan and budget."""
    plan, result = plim.plan(path, *args)
    if not plim.ok(plan and plan["fits"], f"{name}: plans {result.stderr.strip()}"): return
    events, peak, _, rc, stderr = plim.run_watched("train", path, "--no-checkpoint", *args)
    done = sum(e["event"] == "step" for e in events)
    plim.ok(rc == code and (steps is None or done == steps) and re.search(says, stderr),
            f"{name}: exit code {rc} after {done} steps {stderr.strip()}")
    total, budget = plan["peak_bytes"]["total"], plan["budget_bytes"]
    plim.ok(peak <= total and peak <= budget, f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f}, budget {budget / MIB:.2f} MiB")


def address_peak(path, *args, most=resource.RLIM_INFINITY):
    """(exit code, largest address space of the run, stderr) with `most` bytes of it."""
    process = subprocess.Popen([plim.PLIMSOLL, "train", path, "--no-checkpoint", "-q", *args], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
    peak = 0
    while process.poll() is None:
        peak = max(peak, plim.read_status(process.pid, "VmPeak") or 0)
        time.sleep(0.003)
    return process.returncode, peak, process.stderr.read().strip()


with tempfile.TemporaryDirectory() as folder:
    random.seed(5)
    three = [long_line(15 << 20) for _ in range(3)]
    short = [json.dumps({"text": " ".join(random.choices(WORDS, k=20))}) + "\n" for _ in range(3000)]
    for name, lines in (("long", short[:100] + three + short[:400]), ("late", short + three)):
        with open(f"{folder}/{name}.jsonl", "w") as f: f.writelines(lines)
    with gzip.open(f"{folder}/long.jsonl.gz", "wt", compresslevel=1) as f: f.writelines(short[:500] + three)
    with open(f"{folder}/chat.jsonl", "w") as f:
        f.writelines(json.dumps({"messages": [{"role": "assistant", "content": "aye " * n}, {"role": "user", "content": "go on"}]}) + "\n" for n in (4, 4, 6000, 200000))
    with open(f"{folder}/repeat.jinja", "w") as f: f.write(REPEATS)
    path = plim.job(folder, training__steps=12, training__batch_size=7, training__gradient_accumulation_steps=3, data__max_length=61,
                    data__train=f"[{folder}/long.jsonl]", data__shuffle_buffer=64)
    large = "data.max_line_bytes=16MiB"
    within("three lines of 15 MiB", path, "-b", "56MiB", steps=12)
    within("4 workers", path, "-b", "100MiB", *sets("data.workers=4", large), steps=12)
    within("no workers", path, "-b", "56MiB", *sets("data.workers=0"), steps=12)
    within("4 workers, split", path, "-b", "100MiB", *sets("data.workers=4", "data.overlong=split", large), steps=12)
    within("compressed, 4 workers", path, "-b", "100MiB", *sets("data.workers=4", f"data.train={folder}/long.jsonl.gz"), steps=12)
    wide = sets(f"data.train={folder}/late.jsonl", "training.batch_size=70", "data.max_length=16", "data.workers=4", "data.prefetch_factor=1", large)
    within("long lines come late", path, "-b", "100MiB", *wide, *sets("training.steps=16"), steps=16)
    # The run is short: on a busy machine a single look may miss its end.
    before = max(address_peak(path, "-b", "100MiB", *wide, *sets("training.steps=2"))[1] for _ in range(3))
    rc, _, stderr = address_peak(path, "-b", "100MiB", *wide, *sets("training.steps=16"), most=before + MIB)
    plim.ok(rc == 0, f"long lines come late, and no more addresses than before them: exit code {rc} {stderr}")
    within("refused by number", path, "-b", "40MiB", *wide, *sets("data.max_line_bytes=4MiB", "training.steps=16"), code=2,
           says=r"late.jsonl:3001: the line is 15\.0 MiB long, and the loader holds lines of up to 4\.00 MiB")
    plan, _ = plim.plan(path, "-b", "20MiB")
    plim.ok(not plan["fits"] and plan["loader"]["max_line_bytes"] > 14 * MIB, f"a small budget refuses no line that is there: {plan['loader']}")
    plan, _ = plim.plan(path, "-b", "20MiB", *sets("data.skip_bad=true"))
    plim.ok(plan["fits"] and plan["loader"]["shrunk"] and plan["loader"]["max_line_bytes"] == 4 * MIB and plan["loader"]["workers"] == 2,
            f"unless bad records may be skipped: it shortens lines first: {plan['loader']}")
    within("a small budget", path, "-b", "20MiB", *sets("data.skip_bad=true"), steps=12)
    chat = sets(f"data.train={folder}/chat.jsonl", "data.messages_field=messages", f"data.chat_template={folder}/repeat.jinja", "data.workers=4", "data.skip_bad=true")
    within("a template that repeats", path, "-b", "100MiB", *chat, steps=12)
plim.done()
