#!/usr/bin/env python3
"""Records steps for the test of the planner's clock (tests/unit/test_clock_records.c), and shows predicted beside measured step times.

    bench/clock.py --plimsoll build/release/plimsoll -o tests/golden/clock cpu-demo cpu-heads
    bench/clock.py --plimsoll build/cuda/plimsoll -o records llama1b llama1b-at-8          # cases of bench/gpu/cases.py

A record is one JSON file of a few KB: the device's facts, the median time of the steps that were not traced, and for every kind and shape of
op on a lane how many there were and how long they took together. The time of a shape is the median over the traces (--traces).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "gpu"))
import cases

SMALL = dict(architecture="llama", vocab_size=256, hidden_size=256, intermediate_size=688, num_layers=6, num_attention_heads=8,
             num_key_value_heads=4, max_position_embeddings=128)
BYTES = dict(tokenizer="bytes", train=str(ROOT / "demo" / "corpus.txt"))
# Jobs of the CPU, each for terms of the clock: products and updates; short rows and small heads; a large head's exponentials; the disk.
CPU = {
    "cpu-demo": (SMALL, dict(max_length=128), dict(batch_size=16, micro_batch_size=16), []),
    "cpu-heads": (dict(SMALL, num_attention_heads=16, num_key_value_heads=16), dict(max_length=32), dict(batch_size=64, micro_batch_size=64), []),
    "cpu-long": (dict(SMALL, num_layers=2, num_attention_heads=4, max_position_embeddings=1024), dict(max_length=1024), dict(batch_size=4, micro_batch_size=4), []),
    "cpu-vocabulary": (dict(SMALL, vocab_size=32000, num_layers=2), dict(max_length=128), dict(batch_size=16, micro_batch_size=16), []),
    "cpu-fp32": (SMALL, dict(max_length=128), dict(batch_size=16, micro_batch_size=16, mixed_precision="fp32"), []),
    "cpu-disk": (dict(SMALL, hidden_size=768, intermediate_size=2048, num_attention_heads=12, num_layers=4), dict(max_length=128),
                 dict(batch_size=16, micro_batch_size=16), ["--set", "training.state_tier=disk"]),
}
STEPS = 9


def job_of(name, folder, threads):
    """Job file and options of a case."""
    if name not in CPU:
        case = cases.CASES[name]
        words = [w for word in case.words() for w in ("--set", word)]
        return cases.write_job(folder, name, STEPS), words + (["--budget", str(int(case.budget_gib * cases.GIB))] if case.budget_gib else [])
    model, data, training, words = CPU[name]
    training = dict(dict(mixed_precision="bf16"), **training, steps=STEPS, learning_rate=1e-4, device="cpu", **({"threads": threads} if threads else {}))
    path = f"{folder}/{name}.yaml"
    with open(path, "w") as f:
        json.dump(dict(model=model, data={**BYTES, **data}, training=training, output=dict(dir=f"{folder}/run")), f)
    return path, words


def run(plimsoll, job, words, trace, step):
    command = [plimsoll, "train", job, "--json", "-q", "--overwrite", "--no-checkpoint", "--steps", STEPS, "--trace", trace, "--trace-step", step, *words]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if result.returncode: sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    seconds = {e["step"]: e["tokens"] / e["tokens_per_s"] for e in events if e["event"] == "step"}
    with open(trace) as f: return seconds, json.load(f)


def ops_of(trace):
    """Time and count of each (kind, lane, shapes), in the tape's order."""
    ops = {}
    for e in trace["traceEvents"]:
        a = e.get("args", {})
        if "planned_us" not in a: continue
        op = ops.setdefault((e["cat"], a["lane"], a["shapes"]), [0, 0.0])
        op[0], op[1] = op[0] + 1, op[1] + e["dur"]
    return ops


def record(name, runs, traced):
    """One record of several runs."""
    lists = [ops_of(trace) for _, trace in runs]
    other = runs[0][1]["otherData"]
    calm = [s for seconds, _ in runs for step, s in seconds.items() if step > 3 and step != traced]
    passes = [{e["name"]: e["dur"] for e in trace["traceEvents"] if e.get("cat") == "pass"} for _, trace in runs]
    loop = [next(d for n, d in p.items() if n.startswith("micro-batch 1")) for p in passes]
    return dict(name=name, device=other["device"], micro_batch=other["micro_batch"], accumulation=other["accumulation"],
                step_us=round(1e6 * statistics.median(calm), 1), traced_us=round(statistics.median(t["otherData"]["measured_step_us"] for _, t in runs), 1),
                predicted_us=round(other["step_us"], 1), loop_us=round(statistics.median(loop), 1),
                update_us=round(statistics.median(p["update"] for p in passes), 1), facts=other["facts"],
                ops=[dict(kind=k, lane=l, ops=n, us=round(statistics.median(o[k, l, s][1] for o in lists), 1), shapes=s) for (k, l, s), (n, _) in lists[0].items()])


def write(path, rec):
    ops = ",\n".join("  " + json.dumps(o) for o in rec.pop("ops"))
    with open(path, "w") as f: f.write(json.dumps(rec)[:-1] + ',\n "ops": [\n' + ops + "\n]}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="+", help=", ".join(CPU) + ", or cases of bench/gpu/cases.py")
    p.add_argument("--plimsoll", default="build/release/plimsoll")
    p.add_argument("-o", "--out", default=".")
    p.add_argument("--traces", type=int, default=1, help="runs of each case")
    p.add_argument("--threads", type=int, default=0, help="threads of a CPU's cases")
    p.add_argument("--tables", action="store_true", help="also write what `plimsoll trace` says of each run, to CASE.txt")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    print(f"{'case':18} {'measured':>10} {'traced':>10} {'predicted':>10}  predicted / measured")
    with tempfile.TemporaryDirectory() as folder:
        for name in a.cases:
            job, words = job_of(name, folder, a.threads)
            trace = f"{folder}/t.trace.json"
            rec = record(name, [run(a.plimsoll, job, words, trace, STEPS - 2) for _ in range(a.traces)], STEPS - 2)
            if a.tables:
                with open(f"{a.out}/{name}.txt", "w") as f: subprocess.run([a.plimsoll, "trace", trace], stdout=f)
            print(f"{name:18} {rec['step_us'] / 1e3:10.2f} {rec['traced_us'] / 1e3:10.2f} {rec['predicted_us'] / 1e3:10.2f}  {rec['predicted_us'] / rec['step_us']:.3f}", flush=True)
            write(f"{a.out}/{name}.json", rec)


main()
