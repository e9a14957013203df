#!/usr/bin/env python3
# run-tests: not=tsan
"""Kill test: kill -9 at random moments; resuming gives the uninterrupted run's losses, bit for bit; also where
updates wait for the next step's forward, which every start decides anew."""
import os
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

KILLS = 10 if plim.SANITIZED else 50
STEPS = 10
rng = random.Random(20)

with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=STEPS, training__save_every=1, training__mixed_precision="bf16", training__max_grad_norm=0.5,
                    training__lr_scheduler="greedy", training__greedy__patience=1,
                    training__greedy__factor=0.9, training__min_lr=1e-5)
    started = time.monotonic()
    whole = plim.run("train", path, "--json", "-q", "--set", f"output.dir={folder}/whole")
    length = time.monotonic() - started
    reference = plim.losses(whole.stdout)
    plim.ok(len(reference) == STEPS, f"the uninterrupted run has {STEPS} losses {whole.stderr.strip()}")

    kills, wrong, steps_at_kill, finished, longest = 0, [], set(), 0, max(0.1, length * 1.1)
    while kills < KILLS and not wrong:
        run_dir = f"{folder}/killed"
        subprocess.run(["rm", "-rf", run_dir], check=True)
        log = os.path.join(folder, "killed.jsonl")
        seen, code = {}, None
        while code != 0 and not wrong:  # one run, killed several times on its way
            args = [plim.PLIMSOLL, "train", path, "-q", "--resume", "--log", log, "--set", f"output.dir={run_dir}",
                    "--set", f"training.optimizer_in_forward={rng.choice(('true', 'false'))}"]
            if os.path.exists(log):
                os.remove(log)
            process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                process.wait(timeout=rng.uniform(0.02, longest) if kills < KILLS else None)
            except subprocess.TimeoutExpired:
                process.kill()
            code = process.wait()
            kills += code == -9  # one that ended just before is none
            got = plim.losses(open(log).read() if os.path.exists(log) else "")
            if code == -9:
                steps_at_kill.add(max(got, default=0))
                if not got: longest *= 1.05  # the machine may have become slower since the length was measured
            wrong += [(step, loss, reference[step]) for step, loss in got.items() if loss != reference[step]]
            seen.update(got)
            if code not in (0, -9):
                wrong.append((code, process.stderr.read()))
        finished += not wrong
        if not wrong and sorted(seen) != sorted(reference):  # a step is told before it is saved: none may be missing
            wrong.append(("steps that nobody told", sorted(set(reference) - set(seen))))
    plim.ok(not wrong, f"{kills} kills, at steps {sorted(steps_at_kill)}: every loss equals the uninterrupted run's {wrong[:3]}")
    plim.ok(kills >= KILLS and finished >= 1 and len(steps_at_kill) > 2, f"at least {KILLS} kills, at several steps, of {finished} runs that came to their end")
plim.done()
