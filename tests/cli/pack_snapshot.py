#!/usr/bin/env python3
"""plimsoll pack on PyTorch's memory snapshots: peaks, the arena, the places that hold the peak, the step that repeats; and no code is run.

The snapshots come from a simulated training under PyTorch's rules (tests/support/torch_snapshot.py); peaks are computed here once more."""
import copy
import json
import os
import pickle
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import torch_snapshot as torch

SMALL = dict(layers=3, hidden=256, vocab=4000, batch=2, length=96, steps=4)


def made(**changes):
    a = torch.Allocator()
    torch.train(a, **{**SMALL, **changes})
    return a


def packed(path, *args):
    result = plim.run("pack", path, "--json", *args)
    return json.loads(result.stdout) if result.returncode == 0 else None, result


def live_peaks(events):
    """Peaks of live bytes, as requested and rounded, and what lives at the first by place."""
    live, now, rounded, peak, peak_rounded, held = {}, 0, 0, 0, 0, {}
    up = lambda n: -(-n // 512) * 512
    for e in events:
        if e["action"] == "alloc":
            live[e["addr"]] = e
            now, rounded = now + e["size"], rounded + up(e["size"])
        elif e["action"] == "free_completed":
            now, rounded = now - e["size"], rounded - up(live.pop(e["addr"])["size"])
        if now > peak: peak, held = now, dict(live)
        peak_rounded = max(peak_rounded, rounded)
    places = {}
    for e in held.values():
        own = next(((f["filename"], f["line"]) for f in e["frames"] if f["filename"].startswith("/home/me/")), None)
        n, count = places.get(own, (0, 0))
        places[own] = n + e["size"], count + 1
    return peak, peak_rounded, places


def check_forms(folder):
    a = made()
    snapshot = a.snapshot()
    peak, bound, places = live_peaks(a.events)
    seen = None
    for name, protocol in (("two.pickle", 2), ("four.pkl", 4), ("zero.pickle", 0), ("s.json", None), ("no-ending", 4)):
        got, result = packed(torch.write(snapshot, f"{folder}/{name}", protocol))
        if not plim.ok(got and len(got["devices"]) == 1, f"{name}: read {result.stderr.strip()}"): continue
        d = got["devices"][0]
        if seen is None:
            seen = d
            plim.ok(d["live_peak_bytes"] == peak and d["lower_bound_bytes"] == bound, f"live peak {peak}, lower bound {bound}: {d['live_peak_bytes']}, {d['lower_bound_bytes']}")
            plim.ok(d["reserved_peak_bytes"] == a.peak_reserved, f"reserved peak {a.peak_reserved}: {d['reserved_peak_bytes']}")
            plim.ok(bound <= d["arena_bytes"] <= bound * 1.005, f"the arena is within 0.5 % of the bound: {d['arena_over_bound']:.5f}")
            plim.ok(d["saving_bytes"] == a.peak_reserved - d["arena_bytes"] > 0, "the saving is what is left of the reserved peak")
            held = {(h["file"], h["line"]) if h["file"] else None: (h["bytes"], h["blocks"]) for h in packed(f"{folder}/{name}", "--top", "1000")[0]["devices"][0]["held_at_peak"]}
            plim.ok(held == places, f"{len(places)} places hold the peak, PyTorch's own files never")
        else:
            plim.ok(d == seen, f"{name}: the same figures")
    text = plim.run("pack", f"{folder}/two.pickle", "--top", "2")
    plim.ok(all(w in text.stdout for w in ("live peak", "reserved peak", "perfect arena", "saving", "no Python frame", "more places")), "as text")
    with open(f"{folder}/four.pkl", "rb") as f:
        piped = plim.subprocess.run([plim.PLIMSOLL, "pack", "-", "-j"], stdin=f, capture_output=True)
    plim.ok(json.loads(piped.stdout)["devices"][0] == seen, "- reads standard input")


def check_older(folder):
    """A ring of events that begins in the middle: what was alive before is found by its free or in the segments."""
    a = made()
    snapshot = a.snapshot()
    whole = packed(torch.write(snapshot, f"{folder}/whole.pickle"))[0]["devices"][0]
    cut = copy.deepcopy(snapshot)
    at = next(i for i, e in enumerate(a.events) if i > len(a.events) // 2 and e["action"] == "free_requested") + 1  # before its completion
    cut["device_traces"][0] = a.events[at:]
    got = packed(torch.write(cut, f"{folder}/cut.pickle"))[0]["devices"][0]
    plim.ok(got["blocks_before_trace"] > 0 and got["live_peak_bytes"] == live_after(a.events, at), f"cut in the middle: {got['blocks_before_trace']} older blocks")
    plim.ok(got["reserved_peak_bytes"] == whole["reserved_end_bytes"], "reserved bytes from the end backwards")
    bare = [dict(s) for s in snapshot["segments"]]
    for s in bare: s["blocks"] = [{k: v for k, v in b.items() if k in ("size", "state")} for b in s["blocks"]]
    got, result = packed(torch.write(bare, f"{folder}/bare.pickle"))
    plim.ok(got and got["devices"][0]["events"] == 0 and got["devices"][0]["blocks"] == len(a.live), f"an old snapshot, a bare list of segments {result.stderr.strip()}")
    plim.ok("no history" in plim.run("pack", f"{folder}/bare.pickle").stdout, "and it says that history is missing")


def live_after(events, at):
    live = {}
    for e in events[:at]:
        if e["action"] == "alloc": live[e["addr"]] = e["size"]
        if e["action"] == "free_completed": del live[e["addr"]]
    now = peak = sum(live.values())
    for e in events[at:]:
        now += e["size"] if e["action"] == "alloc" else -e["size"] if e["action"] == "free_completed" else 0
        peak = max(peak, now)
    return peak


def check_devices(folder):
    a, b = made(), made(length=64)
    for n in range(40): b.release(b.malloc(70000, torch.stack("side.py", n), stream=7))
    both = a.snapshot()
    other = b.snapshot(device=2)
    both["segments"] += other["segments"]
    both["device_traces"] += [[], other["device_traces"][2]]
    got = packed(torch.write(both, f"{folder}/both.pickle"))[0]["devices"]
    plim.ok([d["device"] for d in got] == [0, 2] and got[1]["reserved_peak_bytes"] == b.peak_reserved, "two devices, each by itself")
    plim.ok(got[1]["streams"] == 2 and got[1]["arena_bytes"] >= got[1]["lower_bound_bytes"] > live_peaks(b.events)[1], "streams do not share addresses")
    one = packed(f"{folder}/both.pickle", "--device", "2")[0]["devices"]
    plim.ok(one == [got[1]], "--device chooses one")
    plim.ok(plim.run("pack", f"{folder}/both.pickle", "--device", "1").returncode == 2, "one that is not there is refused")


def clashes(step):
    """Three steps in a row at the step's addresses: how often a block lies on one that is alive, and the highest byte."""
    items, live, clash, top = step["allocations"], [], 0, 0
    for n in range(3 * len(items)):
        size, stream, offset, life = items[n % len(items)]
        live = [l for l in live if l[2] > n]
        if offset < 0: continue
        clash += any(offset < l[1] and l[0] < offset + size for l in live)
        live.append((offset, offset + size, n + life))
        top = max(top, offset + size)
    return clash, top


def check_step(folder):
    for linger in (False, True):
        a = made(steps=6, linger=linger)
        path = torch.write(a.snapshot(), f"{folder}/steady.pickle")
        result = plim.run("pack", path, "--step", f"{folder}/step.json")
        with open(f"{folder}/step.json") as f: step = json.load(f)
        items, sizes = step["allocations"], [e["size"] for e in a.events if e["action"] == "alloc"]
        period = len(items)
        plim.ok(result.returncode == 0 and step["format"] == "plimsoll-step" and step["version"] == 1 and "steady step" in result.stdout, f"a step of {period} allocations {result.stderr.strip()}")
        plim.ok(" ".join(str(i[0]) for i in items) in " ".join(map(str, sizes)) and sizes[-2 * period:-period] == sizes[-period:], "its sizes are in the trace, period by period")
        clash, top = clashes(step)
        plim.ok(clash == 0 and 0 < top <= step["arena_bytes"], f"three steps in a row at these addresses: {clash} clashes, {top} of {step['arena_bytes']} bytes")
        plim.ok(step["arena_bytes"] <= 1.02 * step["lower_bound_bytes"], "within 2 % of what is alive")
        outside, across = sum(i[2] < 0 for i in items), sum(n + i[3] > period for n, i in enumerate(items))
        plim.ok((outside, across) == ((1, 1) if linger else (0, 0)), f"{outside} allocations outlive the step, {across} reach into the next")
    loop, kept = torch.Allocator(), []
    for _ in range(30):
        scratch = loop.malloc(4000, torch.BACKWARD)
        kept.append(loop.malloc(70000, torch.BACKWARD))
        loop.release(scratch)
    for block in kept: loop.release(block)
    inner = plim.run("pack", torch.write(loop.snapshot(), f"{folder}/loop.pickle"), "--step", f"{folder}/none.json")
    plim.ok(inner.returncode == 2 and "a loop inside" in inner.stderr, f"layers that leave something: {inner.stderr.strip()}")
    # One step repeats its layers and its parameters, and what layers leave for backward is no step's.
    for name, changes in (("lengths that vary", dict(lengths=[40, 96, 64, 80])), ("one step", dict(steps=1, layers=24)), ("one step of few layers", dict(steps=1))):
        path = torch.write(made(**changes).snapshot(), f"{folder}/none.pickle")
        none = plim.run("pack", path, "--step", f"{folder}/none.json")
        plim.ok(none.returncode == 2 and "no step repeats" in none.stderr and not os.path.exists(f"{folder}/none.json"), f"{name}: {none.stderr.strip()}")


def check_pictures(folder):
    path = torch.write(made().snapshot(), f"{folder}/drawn<b>.pickle")
    for ending, words in (("html", ("<canvas", "Hold.Map", "packed arena", "model.py:6", "&lt;b&gt;")), ("svg", ("<svg", "<rect", "run.py:44", "&lt;b&gt;"))):
        result = plim.run("pack", path, "-o", f"{folder}/arena.{ending}")
        with open(f"{folder}/arena.{ending}") as f: text = f.read()
        words = words if ending == "svg" else words[1:]
        plim.ok(result.returncode == 0 and all(w in text for w in words), f"-o arena.{ending}, {len(text)} bytes")
    if plim.ok("id=\"snapshot\">" in open(f"{folder}/arena.html").read(), "the page carries its data"):
        data = json.loads(open(f"{folder}/arena.html").read().split("id=\"snapshot\">")[1].split("</script>")[0])
        by_column = {}
        for t in data["tensors"]: by_column.setdefault(t["first"], []).append(t)
        plim.ok(all(0 <= t["first"] <= t["last"] < len(data["ops"]) and t["offset"] + t["bytes"] <= data["tiers"][0]["bytes"] for t in data["tensors"]), f"{len(data['tensors'])} blocks inside the arena")
    plim.ok(plim.run("pack", path, "-o", f"{folder}/arena.csv").returncode == 2, "another ending is refused")


class Harm:
    def __reduce__(self): return os.system, ("touch harm-was-done",)


def check_hostile(folder):
    good = made().snapshot()
    cases = {"os.system": pickle.dumps({"segments": [Harm()]}, 4), "an object of PyTorch's": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00.",
             "no snapshot": pickle.dumps({"state_dict": {}}), "a list of numbers": pickle.dumps([1, 2]), "JSON of something else": b"{\"a\": 1}",
             "broken JSON": b"{\"segments\": [", "an empty one": pickle.dumps({"segments": [], "device_traces": [[]]}), "cut off": pickle.dumps(good)[:5000],
             "a zip": b"PK\3\4" + bytes(50), "an event without a size": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1}]]}),
             "a negative size": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]]}),
             "sizes beyond 2^63": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": i, "size": 2**62} for i in range(4)]]}),
             "a segment that is a number": pickle.dumps({"segments": [5]})}
    for name, data in cases.items():
        with open(f"{folder}/bad.pickle", "wb") as f: f.write(data)
        for command in ("pack", "replay"):
            bad = plim.run(command, f"{folder}/bad.pickle")
            plim.ok(bad.returncode == 2 and bad.stderr.count("\n") == 1 and not bad.stdout and "bad.pickle" in bad.stderr, f"{command}, {name}: {bad.stderr.strip()[-150:]}")
        if name == "os.system": plim.ok("would run code" in bad.stderr and "STACK_GLOBAL" in bad.stderr and not os.path.exists("harm-was-done"), "nothing was run")
    csv = f"{folder}/p.csv"
    with open(csv, "w") as f: f.write("id,lower,upper,size\na,0,1,4\n")
    plim.ok(plim.run("pack", csv, "--step", f"{folder}/x.json").returncode == 2, "--step of a CSV is refused")
    torch.write(good, f"{folder}/good.pickle")
    plim.ok(plim.run("pack", f"{folder}/good.pickle", "-c", "1GiB").returncode == 2, "--capacity of a snapshot is refused")
    odd = copy.deepcopy(good)
    odd["new_key"], odd["device_traces"][0][0]["new"] = {"a": [1]}, "x"
    odd["device_traces"][0].insert(3, {"action": "snapshot", "time_us": 5, "frames": []})
    odd["device_traces"][0].insert(3, {"action": "user_defined", "frames": []})
    a, b = packed(torch.write(odd, f"{folder}/odd.pickle"))[0], packed(f"{folder}/good.pickle")[0]
    plim.ok(a and a["devices"][0]["arena_bytes"] == b["devices"][0]["arena_bytes"], "unknown keys and actions do no harm")


with tempfile.TemporaryDirectory() as folder:
    for check in (check_forms, check_older, check_devices, check_step, check_pictures, check_hostile): check(folder)
plim.done()
