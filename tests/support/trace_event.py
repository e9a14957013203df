"""A file in the Trace Event Format, held against the format's description ("Trace Event Format": its sections on duration,
counter, async and metadata events). check(trace) gives a list of what is wrong, a line each."""

METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name", "thread_sort_index": "sort_index"}
# What an event of each phase has beside ph, name, pid and tid.
FIELDS = {"X": {"ts", "dur", "cat"}, "C": {"ts", "args"}, "b": {"ts", "cat", "id2"}, "e": {"ts", "cat", "id2"}, "M": {"args"}}


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_fields(event):
    phase = event.get("ph")
    if phase not in FIELDS: return f"unknown phase {phase!r}"
    missing = (FIELDS[phase] | {"name", "pid", "tid"}) - set(event)
    if missing: return f"{phase} without {sorted(missing)}"
    if not isinstance(event["name"], str) or not isinstance(event["pid"], int) or not isinstance(event["tid"], int):
        return "name is text, pid and tid are whole numbers"
    if phase != "M" and not (number(event["ts"]) and event["ts"] >= 0): return f"ts {event['ts']!r}"
    if phase == "X" and not (number(event["dur"]) and event["dur"] >= 0): return f"dur {event['dur']!r}"
    if phase == "C" and not (event["args"] and all(number(v) for v in event["args"].values())): return "a counter's series are numbers"
    if phase == "M" and METADATA.get(event["name"]) not in event["args"]: return f"metadata {event['name']!r}"
    return None


def check_async(events):
    """Each begin has one end of the same category, id of its process, and name, and not before it."""
    open_, wrong = {}, []
    for e in events:
        key = (e["pid"], e["cat"], e["id2"]["local"], e["name"])
        if e["ph"] == "b":
            if key in open_: wrong.append(f"{key} begins twice")
            open_[key] = e["ts"]
        elif key not in open_: wrong.append(f"{key} ends before it begins")
        elif e["ts"] < open_.pop(key): wrong.append(f"{key} ends too early")
    return wrong + [f"{key} never ends" for key in open_]


def check_nesting(events):
    """Complete events of one thread are inside each other or apart, in nanoseconds, which is how Perfetto counts."""
    threads, wrong = {}, []
    for e in events: threads.setdefault((e["pid"], e["tid"]), []).append((round(1000 * e["ts"]), -round(1000 * e["dur"]), e["name"]))
    for thread, list_ in threads.items():
        stack = []
        for ts, dur, name in sorted(list_):
            end = ts - dur
            while stack and stack[-1] <= ts: stack.pop()
            if stack and end > stack[-1]: wrong.append(f"{thread}: {name} overlaps another event")
            stack.append(end)
    return wrong


def check(trace):
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list) or not events: return ["no list traceEvents"]
    if trace.get("displayTimeUnit") not in ("ms", "ns"): return ["displayTimeUnit"]
    wrong = [w for w in map(check_fields, events) if w]
    if wrong: return wrong
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    complete = [e for e in events if e["ph"] == "X"]
    wrong += [f"thread {(e['pid'], e['tid'])} has no name" for e in complete if (e["pid"], e["tid"]) not in named][:3]
    wrong += [f"process {e['pid']} has no name" for e in events if e["pid"] not in processes][:3]
    return wrong + check_async([e for e in events if e["ph"] in "be"]) + check_nesting(complete)
