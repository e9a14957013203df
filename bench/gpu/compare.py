#!/usr/bin/env python3
"""Training on one GPU against PyTorch: same shapes, same tokens, same card, medians of steps; prints the table.

    python3 bench/gpu/compare.py --list
    python3 bench/gpu/compare.py --plimsoll build/release/plimsoll --out bench/gpu/CARD-DATE.json
    python3 bench/gpu/compare.py --cases lora --out FILE.json --append --missing --minutes 9 --folder /dev/shm   # again until all is there
    python3 bench/gpu/compare.py --merge A.json B.json --out BOTH.json                            # runs nothing
    python3 bench/gpu/compare.py --dry-run                                                        # no GPU, no PyTorch

Cases are in cases.py, how PyTorch is set up in torch_step.py. The file is written after every run, so what was measured
is kept when a later run fails; it says when, on what, from which commit and by which command. Memory of ours is what the
driver says the process takes, context and libraries included; PyTorch's is its allocator's peak, which leaves those out
(the driver's number is beside it).
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import cases
import machine
import probe
import report
from cases import CASES, GIB, GROUPS

HERE = os.path.dirname(os.path.abspath(__file__))
LEAST = 30  # seconds that must be left to begin another run
TORCH_SECONDS = 90  # of a run of PyTorch's that has not been measured: it compiles


class Failed(Exception):
    """A run that gave no result; the text says why."""


def launch(command, limit, folder):
    """Runs a program to its end: (standard output, peak RSS in bytes, seconds)."""
    out, err, start = f"{folder}/stdout", f"{folder}/stderr", time.monotonic()
    with open(out, "w") as o, open(err, "w") as e:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=o, stderr=e)
    peak, late = 0, False
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        late = time.monotonic() - start > limit
        if late: process.kill()
        time.sleep(0.05)
    with open(out) as o, open(err) as e: text, words = o.read(), e.read()
    if late: raise Failed(f"no result after {limit:.0f} s")
    if process.returncode: raise Failed(f"exit code {process.returncode}: {words.strip()[-300:]}")
    return text, peak, time.monotonic() - start


def resident(pid):
    """The most a process has had in memory until now, in bytes; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def our_command(a, name, path, what):
    """`plimsoll train` or `plan` of a case."""
    case, command = CASES[name], [a.plimsoll, what, path, "--json", "-q"]
    for word in case.words() + a.set: command += ["--set", word]
    return command + (["--budget", str(int(case.budget_gib * GIB))] if case.budget_gib else [])


def our_run(a, name, folder, limit):
    case, path = CASES[name], cases.write_job(folder, name, a.steps)
    planned = None
    if case.host_gib:  # all of the host's bytes: tier, program and loader
        planned = json.loads(launch(our_command(a, name, path, "plan") + ["--no-checkpoint"], limit, folder)[0])
    text, rss, seconds = launch(our_command(a, name, path, "train") + ["--no-checkpoint"], limit, folder)
    events = [json.loads(line) for line in text.splitlines()]
    plan = next(e for e in events if e["event"] == "plan")
    steps = [e for e in events if e["event"] == "step"]
    speeds = [e["tokens_per_s"] for e in steps[case.warm_up:]]
    short = [e["tokens"] for e in steps if e["tokens"] != case.tokens()]
    if len(speeds) != case.measured(a.steps) or short: raise Failed(f"{len(speeds)} steps measured, {len(short)} with too few tokens")
    return dict(tokens_per_s=statistics.median(speeds), tokens_per_s_min=min(speeds), tokens_per_s_max=max(speeds),
                steps=len(speeds), warm_up=case.warm_up, gradients=case.gradients, budget_bytes=plan["budget_bytes"],
                planned_bytes=plan["planned_total"], predicted_tokens_per_s=1e3 * case.tokens() / plan["predicted_ms"],
                driver_bytes=max(e["memory"]["used"] for e in steps),
                host_tier_bytes=plan["host_bytes"], rss_bytes=max([rss] + [e["rss_peak"] for e in events if e["event"] == "end"]),
                **(dict(host_budget_bytes=planned["host_budget_bytes"], host_bytes=planned["peak_bytes"]["host"])
                   if planned else {}),
                loss_first=round(steps[0]["loss"], 4), loss_last=round(steps[-1]["loss"], 4), knobs=plan["knobs"],
                settings=case.words() + a.set, seconds=round(seconds, 1))


def torch_run(a, name, variant, folder, limit):
    config = cases.torch_config(folder, name, variant, a.steps)
    text, rss, seconds = launch([a.python, f"{HERE}/torch_step.py", json.dumps(config)], limit, folder)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    result = json.loads(lines[-1]) if lines else {}
    if "error" in result or not result: raise Failed(result.get("error", "no result"))
    return dict(result, rss_bytes=rss, seconds=round(seconds, 1))


def parts(a, names):
    """Every run asked for, in order: (case, None: ours, or PyTorch's variant)."""
    wanted = cases.VARIANTS if a.torch is None else a.torch.split(",")
    for name in names:
        yield from ((name, v) for v in CASES[name].torch if v in wanted and not a.no_torch)
        yield name, None


def place(results, name, variant, value=None):
    """The result of a run, put there first when one is given; None: there is none."""
    entry = results["cases"].setdefault(name, dict(plimsoll=None, torch={}))
    if value is not None and variant: entry["torch"][variant] = value
    if value is not None and not variant: entry["plimsoll"] = value
    return entry["torch"].get(variant) if variant else entry["plimsoll"]


def expected(results, name, variant):
    """Seconds that a run will take: as it did last time, else a guess."""
    have = place(results, name, variant) or {}
    return have.get("seconds") or (TORCH_SECONDS if variant else CASES[name].seconds)


def run_all(a, results, folder):
    """Runs what was asked for; the names of what no time was left for. A shorter run goes on behind a longer one that is skipped."""
    start, left = time.monotonic(), []
    for name, variant in parts(a, cases.chosen(a.cases)):
        have = place(results, name, variant)
        if a.missing and have and "error" not in have: continue
        room = a.minutes * 60 - (time.monotonic() - start) if a.minutes else math.inf
        needs = max(LEAST, expected(results, name, variant))
        if room < needs:
            print(f"{name} {variant or 'plimsoll'}: skipped: takes about {needs:.0f} s, {max(room, 0):.0f} s are left", flush=True)
            left.append(f"{name} {variant or 'plimsoll'}")
            continue
        limit = min(a.limit if variant else CASES[name].limit or a.limit, room)
        try:
            value = torch_run(a, name, variant, folder, limit) if variant else our_run(a, name, folder, limit)
        except Exception as e:  # whatever it was: it is this run's result, and the next one begins
            value = dict(error=str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}")
        place(results, name, variant, dict(value, run=len(results["runs"]) - 1))
        report.write(results, a.out)
        print(report.line(results, name, variant), flush=True)
    return left


def dry_run(a, folder):
    """Prints every run and plans ours for a card that is not here; how many do not fit."""
    misfits = 0
    for name, variant in parts(a, cases.chosen(a.cases)):
        if variant:
            print(f"{name}: torch_step.py {json.dumps(cases.torch_config(folder, name, variant, a.steps))}")
            continue
        case, path = CASES[name], cases.write_job(folder, name, a.steps, dry=True)
        print(f"{name}: {' '.join(our_command(a, name, path, 'train'))} --no-checkpoint")
        try:
            text = launch(our_command(a, name, path, "plan") + ["--device", a.device], a.limit, folder)[0]
            plan = json.loads(text)
            total, host = plan["peak_bytes"]["total"], plan["peak_bytes"]["host"]
            fits = plan["fits"] and total <= (case.budget_gib or 1e9) * GIB and host <= (case.host_gib or 1e9) * GIB
            print(f"{name}: {'fits' if fits else 'DOES NOT FIT'}: {total / GIB:.2f} GiB planned of "
                  f"{plan['budget_bytes'] / GIB:.2f}, {host / GIB:.2f} GiB on the host, "
                  f"{plan['predicted']['tokens_per_s']:.0f} tok/s predicted on {a.device}; {report.knobs(plan['knobs'])}")
        except (Failed, ValueError, KeyError, OSError) as e:
            fits = False
            print(f"{name}: NO PLAN: {e}")
        misfits += not fits
    print(f"{misfits} cases do not fit")
    return misfits


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plimsoll", default="build/release/plimsoll")
    p.add_argument("--python", default=sys.executable, help="an interpreter that has torch and transformers")
    p.add_argument("--cases", default="all", help="names and groups with commas between (default: all)")
    p.add_argument("--set", action="append", default=[], help="more KEY=VALUE for our runs")
    p.add_argument("--steps", type=int, default=cases.STEPS, help=f"steps measured, of us and of PyTorch (default: {cases.STEPS})")
    p.add_argument("--limit", type=int, default=300, help="seconds for one run")
    p.add_argument("--minutes", type=float, help="begin no run that would not end within so many minutes")
    p.add_argument("--torch", help=f"PyTorch's variants: {', '.join(cases.VARIANTS)} (default: each case's own)")
    p.add_argument("--no-torch", action="store_true")
    p.add_argument("--folder", help="where jobs and base models are made, e.g. /dev/shm (default: where temporary files are)")
    p.add_argument("--out", help="write everything measured here, as JSON")
    p.add_argument("--append", action="store_true", help="keep what --out already has; what is run again replaces its old self")
    p.add_argument("--missing", action="store_true", help="with --append: run only what is not there or failed")
    p.add_argument("--merge", nargs="+", metavar="FILE", help="run nothing: put files together and print their table")
    p.add_argument("--commit", help="what was measured, where git cannot tell")
    p.add_argument("--cudnn-probe", action="store_true", help="instead: cuDNN's attention alone, checked and timed")
    p.add_argument("--dry-run", action="store_true", help="print what would be run; plan our runs for --device")
    p.add_argument("--device", default="h200", help="the card that --dry-run plans for")
    p.add_argument("--list", action="store_true")
    return p.parse_args()


def main():
    a = options()
    try:
        names = cases.chosen(a.cases)
        kept = a.merge or ([a.out] if a.append and a.out and os.path.exists(a.out) else [])
        results = report.merge(kept)
    except (OSError, ValueError) as e:
        sys.exit(f"compare.py: {e}")
    if a.list:
        for group, held in GROUPS.items(): print(f"{group}:", *(n for n in held if n in names))
        return 0
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        if a.dry_run: return 1 if dry_run(a, folder) else 0
        if a.cudnn_probe: return probe.run(folder)
        left = []
        if not a.merge:
            results["runs"].append(machine.header(a.plimsoll, a.commit))
            left = run_all(a, results, folder)
    report.write(results, a.out)
    print("\n" + report.table(results))
    if left: print("no time was left for: " + ", ".join(left))
    return 1 if left or report.failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
