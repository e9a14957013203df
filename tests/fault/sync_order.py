#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""What gets a name is on the disk before, and the name is there after: every rename of a file or folder follows a sync of what was
written to it, and is followed by a sync of its folder before anything else gets a name. Seen from between the program and the C
library (tests/support/file_order.c)."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

WATCHED = {"plan.json"}  # for those who watch a run: made anew by the next one
LIBRARY = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "file_order.so")


def order(folder, *args):
    log = os.path.join(folder, "order")
    if os.path.exists(log): os.remove(log)
    result = plim.run(*args, env={"LD_PRELOAD": LIBRARY, "FILE_ORDER": log})
    lines = [line.rstrip("\n") for line in open(log, encoding="utf-8", errors="replace")] if os.path.exists(log) else []
    return result, [(line[0], *line[2:].split("\t")) for line in lines]


def faults(events, prefix):
    """What a crash could lose, in words; names below `prefix` count."""
    found, renames, written = [], 0, {}  # written: path -> is the last write of it unsynced?
    unsettled = {}  # folder -> a new name in it that is not on the disk yet
    for number, event in enumerate(events):
        kind, path = event[0], event[1]
        if kind == "W": written[path] = True
        if kind == "S":
            written[path] = False
            unsettled.pop(path, None)
        if kind != "R": continue
        new = event[2]
        if not new.startswith(prefix) or os.path.basename(new) in WATCHED: continue
        # A victim that loses its name needs nothing; the next name does.
        if os.path.basename(new).startswith(".tmp-"):
            if unsettled: found.append(f"{path} goes before {list(unsettled.values())} is settled")
            continue
        renames += 1
        inside = [p for p, dirty in written.items() if dirty and (p == path or p.startswith(path + "/"))]
        if inside: found.append(f"{new} has unsynced bytes of {inside}")
        found += [f"{new} gets its name before {name} is settled" for name in unsettled.values()]
        for p in [p for p in written if p.startswith(path + "/") or p == path]: written[new + p[len(path):]] = written.pop(p)
        unsettled[os.path.dirname(new)] = new
    found += [f"{name} is never settled" for name in unsettled.values()]
    return found, renames


def main():
    if not os.path.exists(LIBRARY):
        plim.ok(False, f"{LIBRARY} is there")
        plim.done()
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        path = plim.job(folder, training__steps=4, training__save_every=1, training__eval_every=2, data__validation=f"[{folder}/corpus.txt]", training__load_best_model_at_end="true", output__keep_checkpoints=1)
        for what, args, least in (("train", ("train", path, "-q"), 4), ("train over a run", ("train", path, "-q", "--overwrite"), 4), ("export", ("export", f"{folder}/run", "-o", f"{folder}/model", "-q"), 1),
                                  ("tokenize", ("tokenize", f"{folder}/corpus.txt", "-o", f"{folder}/tokens.bin", "--tokenizer", "bytes", "-q"), 1)):
            result, events = order(folder, *args)
            found, renames = faults(events, folder)
            plim.ok(result.returncode == 0 and renames >= least and not found, f"{what}: {renames} names, {len(events)} calls {found[:3]} {result.stderr.strip()[-200:]}")
        # The judge sees what it is there for.
        _, events = order(folder, "train", path, "-q", "--overwrite")
        cut = lambda keep: [e for e in events if keep(e)]
        plim.ok(faults(cut(lambda e: e[0] != "S" or os.path.isdir(e[1])), folder)[0], "files that are not synced are seen")
        plim.ok(faults(cut(lambda e: e[0] != "S" or e[1] != f"{folder}/run"), folder)[0], "a folder that is not synced is seen")
    plim.done()


main()
