#!/usr/bin/env python3
"""load_best_model_at_end and early stopping: as transformers' Trainer and EarlyStoppingCallback decide, resumed or not."""
import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def callback(losses, every, patience, threshold):
    """(step of the best, step the run ends at) by the rules of Trainer._determine_best_metric and EarlyStoppingCallback.on_evaluate."""
    best = best_step = None
    counter = 0
    for i, loss in enumerate(losses):
        improved = best is None or (loss < best and abs(loss - best) > threshold)
        counter = 0 if improved else counter + 1
        if best is None or loss < best: best, best_step = loss, (i + 1) * every
        if patience and counter >= patience: return best_step, (i + 1) * every
    return best_step, None


def evals(text): return [(e["step"], e["loss"]) for e in plim.events(text) if e.get("event") == "eval"]


def checkpoints(folder): return sorted(int(n.split("-")[1]) for n in os.listdir(f"{folder}/run") if re.fullmatch(r"checkpoint-\d+", n))


def train(folder, *args, **keys):
    base = dict(training__steps=24, training__eval_every=2, training__learning_rate=0.02, training__seed=3, data__validation=f"[{folder}/other.txt]", training__log_every=100)
    path = plim.job(folder, **{**base, **keys})
    with open(f"{folder}/other.txt", "w") as f: f.write(plim.CORPUS[::-1][:2000])
    log = f"{folder}/log.jsonl"
    if "--resume" not in args and os.path.exists(log): os.remove(log)
    result = plim.run("train", path, "--log", log, *args)
    return result, open(log).read() if os.path.exists(log) else ""


with tempfile.TemporaryDirectory() as folder:
    plain, text = train(folder)
    seen = evals(text)
    losses = [loss for _, loss in seen]
    best_step = 2 * (losses.index(min(losses)) + 1)
    plim.ok(plain.returncode == 0 and len(seen) == 12 and best_step < 24, f"a run whose last evaluation is not its best ({best_step} of 24) {plain.stderr.strip()[-200:]}")

    best, text = train(folder, "--overwrite", training__load_best_model_at_end="true", output__keep_checkpoints=1)
    link = os.readlink(f"{folder}/run/best") if os.path.islink(f"{folder}/run/best") else ""
    plim.ok(best.returncode == 0 and evals(text) == seen and link == f"checkpoint-{best_step:08d}", f"the best evaluation's checkpoint is linked: {link} {best.stderr.strip()[-200:]}")
    plim.ok(checkpoints(folder) == sorted({best_step, 24}), f"the best stays beside the newest of keep_checkpoints: 1: {checkpoints(folder)}")
    told = plim.run("inspect", f"{folder}/run")
    scored = plim.run("eval", f"{folder}/job.yaml", "--json")
    value = json.loads(scored.stdout)["loss"] if scored.returncode == 0 else -1
    plim.ok(abs(value - min(losses)) < 2e-3 * min(losses), f"eval of the run's folder is the best's loss: {value} {min(losses)} {scored.stderr.strip()[-200:]}")

    for patience, threshold in ((1, 0), (2, 0), (2, 0.05), (30, 0)):
        want_best, want_end = callback(losses, 2, patience, threshold)
        result, text = train(folder, "--overwrite", training__early_stopping_patience=patience, training__early_stopping_threshold=threshold, training__load_best_model_at_end="true")
        steps = max(step for step, _ in evals(text))
        link = os.readlink(f"{folder}/run/best")
        plim.ok(result.returncode == 0 and steps == (want_end or 24) and link == f"checkpoint-{want_best:08d}" and (("early stopping" in result.stdout + result.stderr) == bool(want_end)),
                f"patience {patience}, threshold {threshold}: ends at {steps} ({want_end}), best {link} ({want_best})")
    # A run that is cut and resumed counts on.
    want_best, want_end = callback(losses, 2, 2, 0)
    if want_end:
        cut = want_end - 1
        train(folder, "--overwrite", training__early_stopping_patience=2, training__steps=cut)
        result, text = train(folder, "--resume", training__early_stopping_patience=2)
        plim.ok(result.returncode == 0 and max(step for step, _ in evals(text)) == want_end, f"cut at {cut} and resumed, it ends at the same step {want_end}: {evals(text)[-1:]} {result.stderr[-200:]}")
        again, _ = train(folder, "--resume", training__early_stopping_patience=2)
        plim.ok(again.returncode == 0 and "early stopping" in again.stdout + again.stderr, "resumed once more, it has ended and says so")
    # A larger value may be the better one.
    result, text = train(folder, "--overwrite", training__load_best_model_at_end="true", training__greater_is_better="true", training__metric_for_best_model="eval_loss", output__keep_checkpoints=1)
    worst = 2 * (losses.index(max(losses)) + 1)
    plim.ok(result.returncode == 0 and os.readlink(f"{folder}/run/best") == f"checkpoint-{worst:08d}", "greater_is_better: true turns it round")

with tempfile.TemporaryDirectory() as folder:
    for keys, words in ((dict(training__load_best_model_at_end="true", training__eval_every=0), ("load_best_model_at_end", "eval_steps")),
                        (dict(training__early_stopping_patience=2, data__validation="null"), ("early_stopping_patience", "data.validation")),
                        (dict(training__load_best_model_at_end="true", training__metric_for_best_model="f1"), ("metric_for_best_model", "f1", "loss"))):
        result, _ = train(folder, **keys)
        planned = plim.run("plan", f"{folder}/job.yaml")
        plim.ok(planned.returncode == 2 and planned.stderr == result.stderr, f"plan refuses it, too: {planned.stderr.strip()}")
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words), f"refused by name: {result.stderr.strip()}")
    result, _ = train(folder, "--no-checkpoint", training__load_best_model_at_end="true")
    plim.ok(result.returncode == 2 and "--no-checkpoint" in result.stderr, f"nothing to keep: {result.stderr.strip()}")
plim.done()
