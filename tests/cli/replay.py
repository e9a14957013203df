#!/usr/bin/env python3
"""plimsoll replay: peaks as an allocator with PyTorch's rules reaches them, under several option strings, from snapshots and CSV files."""
import copy
import gzip
import json
import os
import pickle
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import torch_snapshot as torch

MIB = 1 << 20
SMALL = dict(layers=3, hidden=320, vocab=6000, batch=2, length=96, steps=3)


def replayed(path, *args, code=0):
    result = plim.run("replay", path, "--json", *args)
    return (json.loads(result.stdout) if result.returncode == code and result.stdout else None), result


def check_peaks(folder):
    """The allocator of the tests wrote the trace with its own addresses and segments; a replay must reserve the same."""
    draw = random.Random(5)
    for name, options, conf in (("defaults", {}, ""), ("split", {"max_split": 24 * MIB}, "max_split_size_mb:24"), ("power2", {"divisions": 8}, "roundup_power2_divisions:8")):
        a = torch.Allocator(**options)
        torch.train(a, **SMALL, lengths=[draw.randint(20, 160) for _ in range(3)])
        path = torch.write(a.snapshot(), f"{folder}/{name}.pickle")
        got, result = replayed(path)
        if not plim.ok(got, f"{name}: replayed {result.stderr.strip()}"): continue
        s = got["results"][0]["stats"]
        plim.ok(got["results"][0]["conf"] == conf, f"{name}: the options of the snapshot, '{conf}'")
        plim.ok(s["reserved_bytes.all.peak"] == a.peak_reserved == got["trace_reserved_peak_bytes"], f"{name}: reserved peak {s['reserved_bytes.all.peak']} of {a.peak_reserved}")
        plim.ok(s["allocated_bytes.all.peak"] == a.peak_allocated, f"{name}: allocated peak {s['allocated_bytes.all.peak']} of {a.peak_allocated}")
        plim.ok(s["num_device_alloc"] == len(a.segments) and s["num_ooms"] == 0, f"{name}: {len(a.segments)} segments")
        plim.ok(s["requested_bytes.all.peak"] == got["trace_live_peak_bytes"] and s["allocation.all.current"] == len(a.live), f"{name}: what is alive at the end")


def check_choice(folder):
    a = torch.Allocator()
    torch.train(a, **SMALL, lengths=[60, 150, 90])
    path = torch.write(a.snapshot(), f"{folder}/choose.pickle")
    confs = ["", "expandable_segments:True", "max_split_size_mb:20"]
    got, _ = replayed(path, *(x for c in confs for x in ("--conf", c)))
    plim.ok(got and [r["conf"] for r in got["results"]] == confs, "several option strings, in order")
    text = plim.run("replay", path, "-c", "", "-c", "expandable_segments:True").stdout
    plim.ok("(defaults)" in text and "expandable_segments:True" in text and "reserved peak" in text and len(text.splitlines()) == 6, "a table to choose from")
    one = plim.run("replay", path).stdout
    plim.ok(all(w in one for w in ("reserved_bytes.all.peak", "num_alloc_retries", "fragmentation: peak", "the job itself reserved")), "one alone, with PyTorch's names")
    need = got["results"][0]["stats"]["reserved_bytes.all.peak"]
    tight = a.peak_allocated // 2
    small, result = replayed(path, "-m", str(tight), code=3)
    plim.ok(small and small["results"][0]["ooms"] > 0 and small["results"][0]["stats"]["num_ooms"] == small["results"][0]["ooms"] and small["results"][0]["first_oom_bytes"] > 0
            and small["results"][0]["stats"]["reserved_bytes.all.peak"] <= tight and "every option string" in result.stderr, f"too little memory: exit 3: {result.stderr.strip()}")
    enough, _ = replayed(path, "-m", str(need))
    plim.ok(enough and enough["results"][0]["ooms"] == 0, "as much as was reserved is enough")
    collect, result = replayed(path, "-c", "garbage_collection_threshold:0.5")
    plim.ok(not collect and "--memory" in result.stderr, f"a share of unknown memory is refused: {result.stderr.strip()}")
    for bad in ("max_split_size_mb:5", "no_such_option:1", "expandable_segments:yes", "max_split_size_mb"):
        result = plim.run("replay", path, "-c", bad)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and bad in result.stderr, f"{bad}: {result.stderr.strip()}")


def check_late_frees(folder):
    """A block that another stream still uses is active, not allocated, until its free is completed."""
    a = torch.Allocator()
    first = a.malloc(30 * MIB, torch.stack("run.py", 1))
    a.release(first, late=lambda: a.malloc(30 * MIB, torch.stack("run.py", 2)))
    for third in (False, True):
        if third: a.malloc(30 * MIB, torch.stack("run.py", 3))
        got, _ = replayed(torch.write(a.snapshot(), f"{folder}/late.pickle"))
        s = got["results"][0]["stats"]
        plim.ok(s["active_bytes.all.peak"] == 60 * MIB and s["allocated_bytes.all.peak"] == (60 if third else 30) * MIB and s["reserved_bytes.all.peak"] == 60 * MIB
                and s["num_device_alloc"] == 2, f"a free that waits: the second request needs a segment of its own{', the third does not' if third else ''}")


def check_older(folder):
    a = torch.Allocator()
    torch.train(a, **SMALL)
    cut = copy.deepcopy(a.snapshot())
    cut["device_traces"][0] = a.events[len(a.events) // 2:]
    got, result = replayed(torch.write(cut, f"{folder}/cut.pickle"))
    plim.ok(got and got["blocks_before_trace"] > 0 and got["results"][0]["stats"]["allocation.all.current"] == len(a.live), f"a trace that begins in the middle {result.stderr.strip()}")
    cut["device_traces"] = [[]]
    got, result = replayed(torch.write(cut, f"{folder}/none.pickle"))
    plim.ok(not got and result.returncode == 2 and "no history" in result.stderr, f"without history: {result.stderr.strip()}")


def check_comparison(folder):
    """bench/gpu/torch_snapshots.py compares what PyTorch reached with replays of it."""
    a = torch.Allocator()
    torch.train(a, **SMALL)
    script = os.path.join(plim.SRC_DIR, "bench", "gpu", "torch_snapshots.py")
    with gzip.open(f"{folder}/train-default.pickle.gz", "wb") as f: pickle.dump(a.snapshot(), f)
    for reserved, code in ((a.peak_reserved, 0), (a.peak_reserved - 1, 1)):
        row = {"workload": "train", "conf": "default", "options": "", "fraction_bytes": 0, "memory": 80 << 30, "reserved_bytes.all.peak": reserved, "active_bytes.all.peak": a.peak_allocated, "num_ooms": 0}
        with open(f"{folder}/peaks.jsonl", "w") as f: f.write(json.dumps(row) + "\n")
        done = plim.subprocess.run([sys.executable, script, folder, "--compare", plim.PLIMSOLL], capture_output=True, text=True)
        plim.ok(done.returncode == code and "train-default" in done.stdout, f"compared with PyTorch's peaks, exit {code} {done.stderr.strip()}")


def check_csv(folder):
    def write(text):
        with open(f"{folder}/t.csv", "w") as f: f.write(text)
        return f"{folder}/t.csv"
    got, result = replayed(write("action,id,size,stream\nalloc,1,3000000,0\nalloc,2,100,0\nfree,1,,\nalloc,1,2500000,0\n\nalloc,3,2500000,5\r\n"))
    s = got["results"][0]["stats"]
    plim.ok(got["allocations"] == 4 and s["reserved_bytes.all.peak"] == (20 + 2 + 20) * MIB and s["reserved_bytes.small_pool.peak"] == 2 * MIB, f"a CSV trace: ids again, streams apart {result.stderr.strip()}")
    got, _ = replayed(write("id,action,size\n1,alloc,30000000\n1,free_requested,\n2,alloc,30000000\n1,free_completed,\n3,alloc,30000000\n"))
    plim.ok(got["results"][0]["stats"]["num_device_alloc"] == 2, "columns in any order, a free that waits")
    piped = plim.subprocess.run([plim.PLIMSOLL, "replay", "-", "-j"], input="action,id,size\nalloc,1,5\n", capture_output=True, text=True)
    plim.ok(piped.returncode == 0 and json.loads(piped.stdout)["results"][0]["stats"]["allocated_bytes.all.current"] == 512, "- reads standard input")
    for name, text, words in (("no columns", "", "columns"), ("another file", "hello\nworld\n", "columns"), ("no id", "action,size\nalloc,1\n", "columns"), ("an action", "action,id\nmelt,1\n", ":2"),
                              ("a size", "action,id,size\nalloc,1,big\n", ":2"), ("no size", "action,id,size\nalloc,1,\n", ":2"), ("a negative id", "action,id,size\nalloc,-1,5\n", ":2"),
                              ("too few fields", "action,id,size\nalloc,1\n", ":2"), ("nothing", "action,id,size\n", "no event"), ("a column twice", "action,id,id\n", ":1")):
        bad = plim.run("replay", write(text))
        plim.ok(bad.returncode == 2 and bad.stderr.count("\n") == 1 and not bad.stdout and "t.csv" in bad.stderr and words in bad.stderr, f"{name}: {bad.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    for check in (check_peaks, check_choice, check_late_frees, check_older, check_comparison, check_csv): check(folder)
plim.done()
