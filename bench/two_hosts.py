#!/usr/bin/env python3
"""Two hosts in network namespaces (tests/support/two_hosts.py): what exchanges cost beside computing, and how near the planner's prediction
comes, which the run makes from rates that it has measured: those of the CPU, and those of the link while the CPU computes.

    python3 bench/two_hosts.py [--rates 1gbit,none] [--stages 0,1,2,3] [--sizes 256,512] [--repeats 3] [--steps 8] [--lanes 1]

A row is the fastest of all steps but the first two of a run, for others and the machine's owner only make it slower, as the median of the repeats, and
the median of their predictions; behind it the median step. "without" is the same step on both
hosts at once with nobody to talk to. Lane 0: exchanges in turn with computing. Two hosts on one machine share its caches and its memory, so the
CPU's rates are measured on both at once, as fast as a host is while the other one computes. Run it alone on the machine, or with PRIORITY=1
(as root), so that it has the processors before other programs.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "support"))
import plim
import two_hosts


def told(text):
    """Times of all but the first two steps, and what was predicted."""
    events = plim.events(text or "")
    return [e["step_ms"] for e in events if e["event"] == "step"][2:], [e["predicted_ms"] for e in events if "predicted_ms" in e]


def take_priority():
    """Before others, and before their sessions where the kernel shares processors among sessions first."""
    os.setpriority(os.PRIO_PROCESS, 0, -19)
    with open("/proc/self/autogroup", "w") as f: f.write("-19")


def calibrate(hosts, folder):
    """The rates of one host, while the other measures, too."""
    def start(name, cache):
        return subprocess.Popen(["ip", "netns", "exec", name, plim.PLIMSOLL, "calibrate", "--device", "cpu", "--threads", "1", "--force", "--disk", folder],
                                env={**os.environ, "XDG_CACHE_HOME": cache}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first, other = start(hosts.names[0], folder), start(hosts.names[1], f"{folder}/other")
    while first.poll() is None:
        if other.poll() is not None: other = start(hosts.names[1], f"{folder}/other")
        time.sleep(0.002)
    other.wait()


def alone(hosts, folder, args):
    """Both hosts by themselves, at the same time: the slower one, and its prediction."""
    runs = [subprocess.Popen(["ip", "netns", "exec", name, plim.PLIMSOLL, *map(str, args), "--set", f"output.dir={folder}/{name}"], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for name in hosts.names]
    return max((min(steps), predicted[0]) for steps, predicted in [told(r.communicate()[0]) for r in runs])


def measure(hosts, args, stage, lane, repeats):
    steps, best, predicted = [], [], []
    for _ in range(repeats):
        run = hosts.run(1, *args, "--set", f"training.zero_stage={stage}", env={"PLIMSOLL_LANE": lane}, limit=900)
        some, said = told(run.stdout)
        if not some: sys.exit(run.stderr.strip()[:500])
        steps, best, predicted = steps + some, best + [min(some)], predicted + said
    return statistics.median(best), statistics.median(predicted), statistics.median(steps)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rates", "1gbit,none"), ("stages", "0,1,2,3"), ("sizes", "256,512"), ("lanes", "1"), ("repeats", 3), ("steps", 8), ("layers", 6),
                        ("length", 128), ("batch", 8)):
        p.add_argument(f"--{name}", default=value, type=type(value))
    o = p.parse_args()
    two_hosts.need()
    if os.environ.get("PRIORITY"): take_priority()
    errors = []
    for rate in o.rates.split(","):
        with tempfile.TemporaryDirectory() as folder, two_hosts.Hosts(None if rate == "none" else rate) as hosts:
            os.environ["XDG_CACHE_HOME"] = folder  # each wire's rates are its own
            print(f"wire: {rate if hosts.shaped else 'not shaped'}, {'1 ms more' if hosts.delayed else 'no delay added'}", flush=True)
            calibrate(hosts, folder)
            for size in map(int, o.sizes.split(",")):
                path = plim.job(folder, model__hidden_size=size, model__intermediate_size=int(size * 2.75), model__num_layers=o.layers,
                                model__num_attention_heads=8, model__num_key_value_heads=8, data__max_length=o.length, training__batch_size=o.batch,
                                training__gradient_accumulation_steps=1, training__threads=1)
                args = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", o.steps]
                without, said = alone(hosts, folder, args)
                print(f"size {size}, without: {without:.1f} ms a step, predicted {said:.1f} ms ({100 * (said / without - 1):+.0f} %)", flush=True)
                for stage in o.stages.split(","):
                    for lane in o.lanes.split(","):
                        took, predicted, usual = measure(hosts, args, stage, lane, o.repeats)
                        errors.append(predicted / took - 1)
                        print(f"size {size}, stage {stage}{'' if lane == '1' else ', in turn'}: {took:.1f} ms a step, {took / without:.2f} x without, "
                              f"predicted {predicted:.1f} ms ({100 * errors[-1]:+.0f} %); median {usual:.1f} ms", flush=True)
            for name in glob.glob(f"{folder}/plimsoll/link*"):
                with open(name) as f: print(json.dumps(json.load(f)))
    print(json.dumps({"rows": len(errors), "worst": round(max(map(abs, errors)), 3), "median": round(statistics.median(map(abs, errors)), 3)}))


main()
