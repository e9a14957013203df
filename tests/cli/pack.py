#!/usr/bin/env python3
"""plimsoll pack: offsets for intervals, checked here once more."""
import csv
import io
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

# Height 12 at the least: b1, b3 and b5 are alive at time 0.
SMALL = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


def overlap(rows):
    """The first two rows that meet in time and address, or None."""
    for i, a in enumerate(rows):
        for b in rows[:i]:
            in_time = int(a["lower"]) < int(b["upper"]) and int(b["lower"]) < int(a["upper"])
            in_place = int(a["offset"]) < int(b["offset"]) + int(b["size"]) and int(b["offset"]) < int(a["offset"]) + int(a["size"])
            if in_time and in_place: return a["id"], b["id"]
    return None


def height(rows):
    return max(int(r["offset"]) + int(r["size"]) for r in rows)


with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/small.csv"
    open(path, "w").write(SMALL)
    given = list(csv.DictReader(io.StringIO(SMALL)))

    result = plim.run("pack", path, "--capacity", "12", "--effort", "3600")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    plim.ok(result.returncode == 0, f"packs within 12: {result.stderr.strip()}")
    plim.ok([{k: r[k] for k in ("id", "lower", "upper", "size")} for r in rows] == given, "the rows are the given ones, in order")
    plim.ok(overlap(rows) is None and height(rows) <= 12, f"nothing overlaps and the height is {height(rows)}")
    plim.ok(all(word in result.stderr for word in ("height", "lower bound", "ratio", " ms")) and result.stderr.count("\n") == 1, "a summary on stderr")

    free = plim.run("pack", path, "-q", "-e", "0")
    plim.ok(free.returncode == 0 and not free.stderr and overlap(list(csv.DictReader(io.StringIO(free.stdout)))) is None, "without a capacity; --quiet is quiet")
    units = plim.run("pack", path, "-c", "1KiB", "-q")
    plim.ok(units.returncode == 0, "a capacity with a unit")
    piped = subprocess.run([plim.PLIMSOLL, "pack", "-", "-q", "-c", "12"], input=SMALL, capture_output=True, text=True)
    plim.ok(piped.stdout == result.stdout and piped.returncode == 0, "- reads standard input")
    plim.run("pack", path, "-c", "12", "-o", f"{folder}/out.csv")
    plim.ok(open(f"{folder}/out.csv").read() == result.stdout, "-o writes a file")
    again = plim.run("pack", f"{folder}/out.csv", "-c", "12", "-q")
    plim.ok(again.returncode == 0 and again.stdout == result.stdout, "what was written can be read again")

    low = plim.run("pack", path, "--capacity", "11", "--effort", "1")
    plim.ok(low.returncode == 3 and low.stderr.count("\n") == 1 and "1 missing" in low.stderr and not low.stdout, f"no room: exit 3: {low.stderr.strip()}")
    tricky = "id,lower,upper,size\na,0,4,3\nb,2,7,2\nc,0,2,5\nd,4,9,3\ne,7,12,2\nf,9,12,6\ng,4,7,3\n"
    open(f"{folder}/tricky.csv", "w").write(tricky)
    loose = plim.run("pack", f"{folder}/tricky.csv", "-q", "-e", "1")
    plim.ok(loose.returncode == 0 and overlap(list(csv.DictReader(io.StringIO(loose.stdout)))) is None, "an awkward one")

    for name, text, words in [
        ("no columns", "", []), ("a missing column", "id,lower,upper\na,0,1\n", ["size"]),
        ("an unknown column", "id,lower,upper,size,align\na,0,1,4,64\n", ["align"]),
        ("a size that is text", "id,lower,upper,size\na,0,1,big\n", [":2"]), ("a time that ends before it begins", "id,lower,upper,size\na,5,3,4\n", []),
        ("too few fields", "id,lower,upper,size\na,0,1\n", [":2"]), ("a negative size", "id,lower,upper,size\na,0,1,-4\n", []),
    ]:
        open(f"{folder}/bad.csv", "w").write(text)
        bad = plim.run("pack", f"{folder}/bad.csv")
        plim.ok(bad.returncode == 2 and bad.stderr.count("\n") == 1 and not bad.stdout and "bad.csv" in bad.stderr and all(w in bad.stderr for w in words),
                f"{name}: {bad.stderr.strip()}")
    for name, args in [("no file", [f"{folder}/none.csv"]), ("a capacity of 12Gb", [path, "-c", "12Gb"]), ("an effort of -1", [path, "-e", "-1"])]:
        bad = plim.run("pack", *args)
        plim.ok(bad.returncode == 2 and bad.stderr.count("\n") == 1, f"{name}: {bad.stderr.strip()}")
plim.done()
