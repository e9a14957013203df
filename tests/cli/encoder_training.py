#!/usr/bin/env python3
"""Encoders as a user trains them: masked tokens, labels of words, pairs of sentences; from scratch and from a folder; evaluated, stopped
and resumed, exported, embedded; and one line for what does not go together."""
import json
import os
import random
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import encoder_jobs
import plim

OBJECTIVES = ("masked_tokens", "token_labels", "sentence_pairs")


def train(path, *args):
    done = plim.run("train", path, "-q", *args)
    plim.ok(done.returncode == 0, f"trained {args} {done.stderr.strip()}")
    return done


def losses(path, *args): return list(plim.losses(train(path, *args).stdout).values())


def evaluate(path, *args):
    done = plim.run("eval", path, "--json", "-q", *args)
    plim.ok(done.returncode == 0, f"evaluated {done.stderr.strip()}")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def refused(path, words, *args, command="train", code=2):
    done = plim.run(command, path, "-q", *args)
    plim.ok(done.returncode == code and done.stderr.count("\n") == 1 and all(w in done.stderr for w in words), f"refused {args}: {done.stderr.strip()}")


def edit(path, **keys):
    with open(path) as f: values = json.load(f)
    values.update(keys)
    encoder_jobs.write(path, values)


def resumes(folder, objective):
    """Stopped in the middle, a run goes on with the same bits."""
    path = encoder_jobs.job(folder, objective, training__save_every=3)
    whole = losses(path)
    shutil.rmtree(f"{folder}/run/checkpoint-00000006")
    if objective == "sentence_pairs": refused(path, ["micro_batch_size was 8, is 4"], "--resume", "--set", "training.batch_size=4", "--set", "training.gradient_accumulation_steps=2")
    rest = losses(path, "--resume")
    plim.ok(rest == whole[3:], f"{objective}: resumed, the same losses {rest} {whole[3:]}")
    return path, whole


def same_losses(folder, objective, path, whole):
    """What the planner may choose changes no loss."""
    for more in (["training.recompute=full"], ["training.state_tier=disk", "training.param_tier=disk"], ["training.loss_chunks=4"]):
        if objective == "sentence_pairs" and "loss_chunks" in more[0]: continue
        sets = [a for m in more for a in ("--set", m)]
        other = losses(path, "--no-checkpoint", "--overwrite", *sets)
        apart = max(abs(a - b) for a, b in zip(other, whole))
        plim.ok(apart < 1e-6, f"{objective}: {more} changes no loss, {apart:.1e}")


def learns_labels(folder):
    path = encoder_jobs.job(folder, "token_labels", training__steps=40, training__learning_rate=1e-2, training__eval_every=20)
    found = [e for e in plim.events(train(path).stdout) if e["event"] == "eval"]
    plim.ok(len(found) == 2 and found[-1]["f1"] > 0.95 and found[-1]["entities"] > 0, f"entities are learned: {found[-1]}")
    told = evaluate(path)
    plim.ok(told["f1"] > 0.95 and {"precision", "recall", "accuracy", "loss"} <= set(told), f"eval: {told.get('f1')}")
    with open(f"{folder}/run/checkpoint-00000040/config.json") as f: config = json.load(f)
    plim.ok(list(config["id2label"].values()) == encoder_jobs.LABELS and config["architectures"] == ["BertForTokenClassification"],
            f"names of labels come from the data, sorted: {config['id2label']}")
    shown = plim.run("inspect", f"{folder}/run/checkpoint-00000040", "--json")
    plim.ok(shown.returncode == 0 and json.loads(shown.stdout)[0].get("labels") == encoder_jobs.LABELS, "inspect names the labels")
    with open(f"{folder}/text", "w") as f: f.write("Ann lives in paris\n")
    told = plim.run("classify", f"{folder}/run", f"{folder}/text", "--aggregation", "simple", "-q")
    plim.ok(told.returncode == 0 and [(e["entity_group"], e["word"], e["start"], e["end"]) for e in json.loads(told.stdout)["entities"]]
            == [("PER", "ann", 0, 3), ("LOC", "paris", 13, 18)], f"classify finds them in a text: {told.stdout.strip()} {told.stderr.strip()}")
    again = encoder_jobs.job(folder, "token_labels", model__path=f"{folder}/run/checkpoint-00000040", output__dir=f"{folder}/next", training__steps=2)
    plim.ok(losses(again)[0] < 0.2, "training goes on from the checkpoint's folder, labels and all")
    words = encoder_jobs.job(folder, "masked_tokens", output__dir=f"{folder}/words", training__steps=60, training__learning_rate=1e-2, training__eval_rows=96)
    with open(f"{folder}/masked_tokens.jsonl", "w") as f: f.writelines(json.dumps({"text": "the old ship sails far away from home"[: 11 + i % 27]}) + "\n" for i in range(96))
    found = [e for e in plim.events(train(words).stdout) if e["event"] == "eval"]
    told = [evaluate(words, "--set", f"data.padding={p}") for p in ("max_length", "longest")]
    rights = [x["accuracy"] for x in (*told, found[-1])]
    plim.ok(0.5 < rights[0] <= 1 and rights == rights[:1] * 3 and "perplexity" in told[0], f"masked tokens: accuracy {rights} beside loss {told[0]['loss']:.3f}")
    fresh = encoder_jobs.job(folder, "masked_tokens", model__path=f"{folder}/run/checkpoint-00000040", output__dir=f"{folder}/other", training__steps=2)
    plim.ok(losses(fresh)[0] > 2, "another objective begins another head")


def learns_pairs(folder):
    path = encoder_jobs.job(folder, "sentence_pairs", training__steps=40, training__learning_rate=1e-2, model__pooling="cls", data__padding="longest")
    train(path)
    with open(f"{folder}/sentence_pairs.jsonl") as f: records = [json.loads(line) for line in f]
    told = evaluate(path)
    plim.ok(told["retrieval_accuracy"] > 0.5 and "spearman" not in told, f"pairs: {told}")
    with open(f"{folder}/scored.jsonl", "w") as f:
        for i, r in enumerate(records): f.write(json.dumps(dict(r, score=i / 10) if i % 2 else dict(r, text_b=r["text_a"], score=50.5)) + "\n")
    told = evaluate(path, "--set", f"data.validation={folder}/scored.jsonl")
    plim.ok(told["scored_pairs"] == len(records) and told["spearman"] > 0.5, f"scores: {told}")
    with open(f"{folder}/texts.txt", "w") as f: f.write("ann lives in paris\nthe red ship\n")
    made = [plim.run("embed", what, f"{folder}/texts.txt", "-q", "--device", "cpu") for what in (f"{folder}/run", path)]
    plim.run("export", f"{folder}/run", "-o", f"{folder}/out", "-q")
    made.append(plim.run("embed", f"{folder}/out", f"{folder}/texts.txt", "-q", "--device", "cpu"))
    plim.ok(all(m.returncode == 0 and m.stdout == made[0].stdout != "" for m in made), f"embed: run, config and export alike {made[0].stderr}")
    with open(f"{folder}/out/1_Pooling/config.json") as f: pooling = json.load(f)
    with open(f"{folder}/out/modules.json") as f: modules = json.load(f)
    plim.ok(pooling["pooling_mode_cls_token"] and not pooling["pooling_mode_mean_tokens"] and len(modules) == 3, "the export says how vectors are made")


def wrong(root):
    path = encoder_jobs.job(f"{root}/wrong", "token_labels")
    refused(path, ["bert learns masked_tokens, token_labels, sentence_pairs and not next_token"], "--set", "training.objective=next_token")
    refused(path, ["bert", "not source_target"], "--set", "training.objective=source_target")
    refused(path, ["llama learns next_token, dpo, kto, orpo and not masked_tokens"], "--set", "model.architecture=llama", "--set", "training.objective=masked_tokens")
    refused(path, ["data.labels", "two labels"], "--set", "data.labels=O")
    refused(path, ["label 'B-LOC' is not in the label list (O, B-PER)", "data.labels"], "--set", "data.labels=O,B-PER")
    refused(path, ["'O' occurs twice"], "--set", "data.labels=O,O")
    refused(path, ["label names", "missing"], "--set", "data.second_field=tags")
    refused(path, ["text_a", "missing"], "--set", "training.objective=sentence_pairs")
    refused(path, ["batch_size"], "--set", "training.objective=sentence_pairs", "--set", "training.batch_size=1")
    refused(path, ["micro_batch_size", "batch_size, 8"], "--set", "training.objective=sentence_pairs", "--set", "training.micro_batch_size=4")
    refused(path, ["tokenizer with [MASK]"], "--set", "training.objective=masked_tokens", "--set", "data.tokenizer=bytes", "--set", "model.vocab_size=256")
    with open(f"{root}/wrong/token_labels.jsonl", "a") as f: f.write(json.dumps(dict(tokens=["ann"], labels=[{}])) + "\n")
    refused(path, [".jsonl:97", "neither a name nor"])


def plans(path, objective):
    plan, done = plim.plan(path)
    plim.ok(plan is not None and done.returncode == 0, f"{objective}: planned {done.stderr.strip()}")
    if objective == "sentence_pairs" and plan:
        plim.ok(plan["knobs"]["micro_batch"] == 8, "a batch of pairs is one pass")
        sets = ["--set", "training.gradient_accumulation_steps=2", "--budget", "1MiB"]
        _, done = plim.plan(path, *sets)
        plim.ok(done.returncode == 3, "and where it does not fit, nothing does")


with tempfile.TemporaryDirectory() as root_:
    for objective_ in OBJECTIVES:
        path_, whole_ = resumes(f"{root_}/{objective_}", objective_)
        plans(path_, objective_)
        same_losses(f"{root_}/{objective_}", objective_, path_, whole_)
    learns_labels(f"{root_}/labels")
    learns_pairs(f"{root_}/pairs")
    wrong(root_)
plim.done()
