#!/usr/bin/env python3
"""training.epochs trains every row of the data once in each epoch: its last step has the rows that are left."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def rows(folder, count):
    """Samples of different lengths; the path of their file."""
    path = f"{folder}/rows{count}.jsonl"
    with open(path, "w") as f:
        for i in range(count): f.write(json.dumps({"text": plim.CORPUS[37 * i:37 * i + 8 + 5 * i % 40]}) + "\n")
    return path


def job(folder, count, batch, epochs, **more):
    accumulation = more.pop("accumulation", 1)
    return plim.job(folder, **{"model__num_layers": 1, "data__train": f"[{rows(folder, count)}]", "training__batch_size": batch, "training__steps": -1,
                               "training__gradient_accumulation_steps": accumulation, "training__epochs": epochs, **more})


def train(path, *args):
    return plim.run("train", path, "-q", "--json", "--overwrite", *args)


def of(result, kind, *fields):
    return [tuple(e[f] for f in fields) if len(fields) > 1 else e[fields[0]] for e in plim.events(result.stdout) if e["event"] == kind]


def counts(folder):
    cases = [  # rows, batch, accumulation, epochs, rows of each step
        (10, 8, 1, 1, [8, 2]), (10, 4, 2, 1, [8, 2]), (11, 32, 1, 3, [11, 11, 11]), (16, 8, 1, 2, [8, 8, 8, 8]),
        (10, 4, 1, 1.5, [4, 4, 2, 4, 4]), (1, 4, 1, 2, [1, 1]),
    ]
    for count, batch, accumulation, epochs, want in cases:
        for more in ({}, dict(data__padding="longest"), dict(data__packing="true")) if count == 10 and epochs == 1 else ({},):
            path = job(folder, count, batch, epochs, accumulation=accumulation, **more)
            result, name = train(path, "--no-checkpoint"), f"{count} rows, batch {batch} x {accumulation}, {epochs} epochs {more}"
            trained = of(result, "step", "rows")
            if "data__packing" in more:
                plim.ok(result.returncode == 0 and len(trained) == 1, f"{name}: packed rows are fewer: {trained}")
                continue
            plim.ok(trained == want, f"{name}: {trained} {result.stderr.strip()}")
            plan, _ = plim.plan(path)
            plim.ok(plan and plan["predicted"]["steps"] == len(want), f"{name}: a plan counts as many steps")
            done = of(result, "step", "epoch")
            plim.ok(done and abs(done[-1] - sum(want) / count) < 1e-9, f"{name}: epochs in events: {done}")
            whole = (sum(want) + count - 1) // count
            plim.ok(of(result, "epoch", "epoch") == list(range(1, whole + 1)), f"{name}: every epoch is announced")
            plim.ok(of(result, "end", "rows") == [sum(want)], f"{name}: and all rows are counted at the end")


def weighing(folder):
    """The last step's loss and gradient are means over its own tokens: as of a run whose batch is what is left."""
    path = job(folder, 10, 8, 1, training__learning_rate=0)
    last = of(train(path, "--no-checkpoint"), "step", "loss", "tokens", "grad_norm")[-1]
    path = job(folder, 10, 8, 1, training__learning_rate=0, training__micro_batch_size=2)
    small = of(train(path, "--no-checkpoint"), "step", "loss", "tokens", "grad_norm")[-1]
    path = job(folder, 10, 2, 1, training__learning_rate=0, training__optimizer_in_backward="false")
    alone = of(train(path, "--no-checkpoint"), "step", "loss", "tokens", "grad_norm")[-1]
    plim.ok(last[1] == alone[1] == small[1] and abs(last[0] - alone[0]) < 1e-6, f"the loss of two rows is that of a batch of two: {last} {alone}")
    plim.ok(abs(small[2] - alone[2]) < 1e-5 * alone[2], f"and so is the gradient: {small} {alone}")


def schedule(folder):
    """The rate ends where the steps do."""
    path = job(folder, 10, 8, 3, training__lr_scheduler="linear", training__learning_rate=0.006)
    rates = of(train(path, "--no-checkpoint"), "step", "lr")
    plim.ok([round(r, 6) for r in rates] == [0.006, 0.005, 0.004, 0.003, 0.002, 0.001], f"six steps of a linear rate: {rates}")


def resumed(folder):
    """Killed or extended inside an epoch, with either way of reading: the same bits."""
    text = dict(data__train=f"[{folder}/corpus.txt]", data__max_length=256, training__batch_size=13, training__epochs=3)
    for name, more in (("JSON lines", {}), ("small blocks", dict(data__workers=1, data__shuffle_buffer=4)), ("padding: longest", dict(data__padding="longest")), ("text by index", text)):
        path = job(folder, 10, 4, 4, **more)
        result = train(path)
        whole, sizes = plim.losses(result.stdout), of(result, "step", "rows")
        plim.ok(len(whole) >= 6 and min(sizes) < max(sizes), f"{name}: epochs end with fewer rows: {sizes}")
        for stop in (3, 7) if more is not text else (3,):
            first = train(path, "--steps", stop)
            then = plim.run("train", path, "-q", "--json", "--resume")
            both = {**plim.losses(first.stdout), **plim.losses(then.stdout)}
            plim.ok(both == whole, f"{name}: stopped after step {stop} and resumed {then.stderr.strip()}")
    path = job(folder, 10, 4, 1, training__lr_scheduler="constant")
    first = train(path)
    path = job(folder, 10, 4, 4, training__lr_scheduler="constant")
    then = plim.run("train", path, "-q", "--json", "--resume")
    both = {**plim.losses(first.stdout), **plim.losses(then.stdout)}
    plim.ok(both == plim.losses(train(path).stdout), "one epoch extended to four")
    path = plim.job(folder, model__num_layers=1, data__train=f"[{rows(folder, 10)}]", training__batch_size=4, training__gradient_accumulation_steps=1, training__steps=14)
    refused = plim.run("train", path, "-q", "--resume")
    plim.ok(refused.returncode == 2 and "training.epochs" in refused.stderr and refused.stderr.count("\n") == 1, f"steps instead of epochs: {refused.stderr.strip()}")
    taken = plim.run("train", path, "-q", "--resume", "--change", "training.epochs")
    plim.ok(taken.returncode == 0, f"unless that is accepted {taken.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    counts(folder)
    weighing(folder)
    schedule(folder)
    resumed(folder)
plim.done()
