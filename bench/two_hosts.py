#!/usr/bin/env python3
"""Two hosts in network namespaces with 1 Gb/s between them (tests/support/two_hosts.py): what exchanges cost beside computing, one after
the other with it, and what the planner predicts.

    python3 bench/two_hosts.py [--rate 1gbit] [--stage 3] [--steps 8] [--size 512] [--layers 6] [--length 256] [--batch 4]

"without" is the same step on both hosts at once with nobody to talk to. Rates of the CPU are measured, so run it alone on the machine.
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "support"))
import plim
import ranks
import two_hosts


def step_ms(text):
    """The fastest of all but the first steps, for others may use the machine, and what was predicted."""
    events = plim.events(text or "")
    steps = [e["step_ms"] for e in events if e["event"] == "step"][2:]
    predicted = [e["predicted_ms"] for e in events if "predicted_ms" in e]
    return (min(steps) if steps else float("nan")), (predicted[0] if predicted else float("nan"))


def planned_ms(path, stage):
    """What `plan` says of two machines with such a network, with this CPU's measured rates."""
    plan, _ = plim.plan(path, "--no-checkpoint", "--ranks", 2, "--nodes", 2, "--network", "1g", "--set", f"training.zero_stage={stage}")
    return plan["predicted"]["step_ms"] if plan else float("nan")


def alone(hosts, args):
    """Both hosts by themselves, at the same time; the slower one."""
    runs = [subprocess.Popen(["ip", "netns", "exec", name, plim.PLIMSOLL, *map(str, args), "--set", f"output.dir={path}"], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for name, path in zip(hosts.names, ("/tmp/two-a", "/tmp/two-b"))]
    return max(step_ms(r.communicate()[0])[0] for r in runs)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rate", "1gbit"), ("stage", "3"), ("steps", 8), ("size", 512), ("layers", 6), ("length", 256), ("batch", 4)):
        p.add_argument(f"--{name}", default=value, type=type(value))
    o = p.parse_args()
    two_hosts.need()
    with tempfile.TemporaryDirectory() as folder, two_hosts.Hosts(o.rate) as hosts:
        path = plim.job(folder, model__hidden_size=o.size, model__intermediate_size=int(o.size * 2.75), model__num_layers=o.layers, model__num_attention_heads=8,
                        model__num_key_value_heads=8, data__max_length=o.length, training__batch_size=o.batch, training__gradient_accumulation_steps=1, training__threads=1)
        args = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", o.steps]
        print(f"wire: {o.rate if hosts.shaped else 'not shaped'}, {'1 ms more' if hosts.delayed else 'no delay added'}")
        without = alone(hosts, args)
        for stage in o.stage.split(","):
            for lane in ("1", "0"):
                run = hosts.run(1, *args, "--set", f"training.zero_stage={stage}", env={"PLIMSOLL_LANE": lane}, limit=900)
                with_, predicted = step_ms(run.stdout)
                if lane == "1": predicted = planned_ms(path, stage)
                if with_ != with_: print(run.stderr.strip()[:500])
                print(f"stage {stage}, {'beside computing' if lane == '1' else 'one after the other'}: {with_:.1f} ms a step, "
                      f"{with_ / without:.2f} x without ({without:.1f} ms), predicted {predicted:.1f} ms ({100 * (predicted / with_ - 1):+.0f} %)")


main()
