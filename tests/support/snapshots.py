"""Files of snapshots, checked: our JSON, traces in the documented Trace Event Format, pickles for PyTorch's memory_viz. `plan` is what
`plimsoll plan --json` says of the same plan, or as much of it as the checks name."""
import json
import pickle
import pickletools

import plim
import trace_event

# What memory_viz's reader in JavaScript knows.
OPCODES = {"PROTO", "STOP", "MARK", "EMPTY_DICT", "SETITEMS", "EMPTY_LIST", "APPENDS", "BININT", "LONG1", "BINFLOAT", "BINUNICODE",
           "TUPLE2", "NEWTRUE", "NEWFALSE", "LONG_BINPUT", "LONG_BINGET"}
PLANNED, MEASURED, MEMORY, ARENA, KEPT, HOST, DISK = range(1, 8)


def load(path):
    with open(path) as f: return json.load(f)


def tensors_apart(tensors):
    """No two have a byte at the same op."""
    for i, a in enumerate(tensors):
        for b in tensors[:i]:
            if a["tier"] == b["tier"] and a["first"] <= b["last"] and b["first"] <= a["last"] and \
               a["offset"] < b["offset"] + b["bytes"] and b["offset"] < a["offset"] + a["bytes"]: return False
    return True


def check_json(name, snapshot, plan):
    tiers, ops, tensors = snapshot["tiers"], snapshot["ops"], snapshot["tensors"]
    plim.ok(snapshot["format"] == "plimsoll-snapshot" and snapshot["version"] == 1, f"{name}: JSON says what it is")
    plim.ok(snapshot["total"] == plan["peak_bytes"]["total"] and snapshot["budget"] == plan["budget_bytes"] and
            tiers[0]["bytes"] == plan["arena_bytes"], f"{name}: total, budget and arena are the plan's")
    plim.ok(len(ops) == plan["planning"]["ops"] and all(o["us"] >= 0 and o["start_us"] >= 0 for o in ops), f"{name}: every op has its time")
    inside = all(0 <= t["first"] <= t["last"] < len(ops) and t["offset"] + t["bytes"] <= tiers[t["tier"]]["bytes"] and
                 t["class"] < len(snapshot["classes"]) for t in tensors)
    plim.ok(inside and tensors_apart(tensors), f"{name}: {len(tensors)} tensors inside their tiers, none on another's bytes")


def check_trace(name, trace, plan, run=False, kinds={"linear", "attn", "adamw"}, phases={"forward", "loss", "backward"}):
    wrong = trace_event.check(trace)
    events = trace["traceEvents"]
    plim.ok(not wrong, f"{name}: Trace Event Format, {len(events)} events {wrong[:3]}")
    live = [sum(e["args"].values()) for e in events if e["ph"] == "C" and e["name"] == "live bytes"]
    plim.ok(max(live) == plan["lower_bound_bytes"], f"{name}: the counter's peak {max(live)} is the plan's {plan['lower_bound_bytes']}")
    lines = {e["name"]: e["args"]["bytes"] for e in events if e["ph"] == "C" and "bytes" in e["args"]}
    plim.ok(lines["planned total"] == plan["peak_bytes"]["total"] and lines["budget"] == plan["budget_bytes"], f"{name}: and so are its lines")
    tensors = [e for e in events if e["ph"] == "X" and e["pid"] in (ARENA, KEPT)]
    plim.ok(max(e["args"]["offset"] + e["args"]["bytes"] for e in tensors) <= plan["arena_bytes"], f"{name}: {len(tensors)} tensors in the arena")
    lanes = [(e["pid"], e["tid"], e["args"]["offset"]) for e in tensors]
    below = {pid: sorted((tid, offset) for p, tid, offset in lanes if p == pid) for pid in (ARENA, KEPT)}
    rising = all(a[1] <= b[1] or a[0] == b[0] for list_ in below.values() for a, b in zip(list_, list_[1:]))
    plim.ok(rising and len(below[KEPT]) > 0, f"{name}: lanes are in the order of addresses")
    has_kinds = {e["cat"] for e in events if e["ph"] == "X" and e["pid"] == PLANNED}
    has_phases = {e["name"] for e in events if e["ph"] == "b"}
    plim.ok(kinds <= has_kinds and phases <= has_phases, f"{name}: ops by kind, phases {sorted(has_phases)}")
    plim.ok(any(e["pid"] == MEASURED for e in events) == run, f"{name}: {'measured, too' if run else 'nothing was measured'}")


def replay(trace):
    """The most that is allocated at once, what is left, and whether no allocation lies on another's bytes."""
    blocks, now, peak, good = {}, 0, 0, True
    for e in trace:
        if e["action"] == "alloc":
            good &= e["addr"] not in blocks
            blocks[e["addr"]] = e["size"]
            now += e["size"]
            peak = max(peak, now)
        elif e["action"] == "free_requested": good &= blocks.get(e["addr"]) == e["size"]
        elif e["action"] == "free_completed": now -= blocks.pop(e["addr"])
        else: good &= e["action"] == "segment_alloc"
    return peak, blocks, good


def check_pickle(name, path, plan, tensor="embed_tokens.weight"):
    with open(path, "rb") as f: data = f.read()
    used = {op.name for op, _, _ in pickletools.genops(data)}
    plim.ok(used <= OPCODES, f"{name}: pickle of protocol 2, all opcodes that memory_viz knows {sorted(used - OPCODES)}")
    snapshot = pickle.loads(data)
    device = [s for s in snapshot["segments"] if s["device"] == 0]
    plim.ok(sum(s["total_size"] for s in device) == plan["peak_bytes"]["total"], f"{name}: what is reserved is the plan's total")
    plim.ok(all(sum(b["size"] for b in s["blocks"]) == s["total_size"] for s in snapshot["segments"]), f"{name}: blocks fill their segments")
    for tier, trace in enumerate(snapshot["device_traces"]):
        peak, left, good = replay(trace)
        held = {b["address"]: b["size"] for s in snapshot["segments"] if s["device"] == tier for b in s["blocks"] if b["state"] == "active_allocated"}
        plim.ok(good and left == held, f"{name}: device {tier}: {len(trace)} events lead to its {len(held)} blocks")
        if tier == 0:
            want = plan["lower_bound_bytes"] + plan["peak_bytes"]["total"] - plan["arena_bytes"]
            plim.ok(peak == want, f"{name}: the most that is allocated at once is the plan's {want}: {peak}")
    frames = [b["frames"][0]["name"] for s in snapshot["segments"] for b in s["blocks"] if b["frames"]]
    plim.ok(any(tensor in f for f in frames), f"{name}: blocks carry tensors' names")
    return snapshot
