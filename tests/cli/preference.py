#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Preference training as a user meets it: dpo, kto and orpo learn; micro-batches, recompute, slices of the loss, budgets and a resume do
not change what they learn; plans are true; the reference is computed once; wrong keys and bad records are one line each."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

STEPS = 4


def preferences(folder, rows=40):
    """Pairs and single completions cut from the corpus, of many lengths: their paths."""
    pairs, singles = os.path.join(folder, "preferences.jsonl"), os.path.join(folder, "single.jsonl")
    with open(pairs, "w") as f, open(singles, "w") as g:
        for i in range(rows):
            prompt, good = plim.CORPUS[31 * i:31 * i + 4 + 7 * i % 24], plim.CORPUS[17 * i:17 * i + 3 + 5 * i % 29]
            f.write(json.dumps({"prompt": prompt, "chosen": good, "rejected": good.upper()[::-1] + "!"}) + "\n")
            g.write(json.dumps({"prompt": prompt, "completion": good if i % 2 else good[::-1] + "!", "label": bool(i % 2)}) + "\n")
    return pairs, singles


def job(folder, kind, **more):
    pairs, singles = preferences(folder)
    keys = dict(training__objective=kind, data__train=f"[{singles if kind == 'kto' else pairs}]", training__batch_size=8,
                training__gradient_accumulation_steps=1, training__steps=STEPS)
    return plim.job(folder, **{**keys, **more})


def train(path, *sets, args=("--no-checkpoint",)):
    result = plim.run("train", path, "-q", "--json", *args, *[x for s in sets for x in ("--set", s)])
    return result, plim.events(result.stdout)


def values(events, key): return [e[key] for e in events if e["event"] == "step"]


def near(a, b, least): return len(a) == len(b) > 0 and all(abs(x - y) <= least * max(abs(x), 1e-3) for x, y in zip(a, b))


def learns(folder, kind, first):
    path = job(folder, kind, data__validation=f"[{preferences(folder)[kind == 'kto']}]", training__eval_every=STEPS)
    result, events = train(path)
    losses, end = values(events, "loss"), events[-1] if events else {}
    plim.ok(result.returncode == 0 and len(losses) == STEPS, f"{kind}: trains {result.stderr.strip()[:200]}")
    if first: plim.ok(abs(losses[0] - first) < 1e-6 and values(events, "rewards/margins")[0] == 0, f"{kind}: begins at the reference, with {losses[0]}")
    rewards = [e for e in events if e["event"] == "eval"]
    plim.ok(rewards and rewards[-1]["rewards/margins"] > 0, f"{kind}: the evaluation's margin grows")
    plim.ok(end.get("planned_peak") == end.get("ledger_peak") > 0, f"{kind}: planned and reserved bytes are equal")
    plim.ok(abs(end.get("rss_peak", 0) - end.get("planned_peak", 0)) <= 6 << 20, f"{kind}: the plan says {end.get('planned_peak')}, the process takes {end.get('rss_peak')}")
    return path, losses


def invariant(folder):
    path = job(folder, "dpo", training__max_grad_norm=1.0)
    _, whole = train(path, "training.micro_batch_size=8")
    losses, norms = values(whole, "loss"), values(whole, "grad_norm")
    for name, sets, exact in [("recompute", ["training.micro_batch_size=8", "training.recompute=full"], True),
                              ("slices of the loss", ["training.micro_batch_size=8", "training.loss_chunks=2"], True),
                              ("micro-batches", ["training.micro_batch_size=2"], False),
                              ("rows of any length", ["data.padding=longest", "data.group_by_length=false"], False)]:
        _, events = train(path, *sets)
        same = values(events, "loss") == losses if exact else near(values(events, "loss"), losses, 1e-4)
        plim.ok(same and near(values(events, "grad_norm"), norms, 1e-6 if exact else 1e-3), f"dpo: {name} keep the losses {values(events, 'loss')} {losses}")
    least = plim.plan(path, "--budget", "1MiB")[0]
    budget = least["peak_bytes"]["total"]
    result, events = train(path, f"budget={budget}")
    plim.ok(result.returncode == 0 and near(values(events, "loss"), losses, 1e-4), f"dpo: trains in the stated minimum of {budget} bytes {result.stderr.strip()[:200]}")


def shared(folder):
    """data.pair_length computes prompts once: the same losses in less memory, in every way of running, and what does not fit is left out."""
    kinds = (("dpo", {}), ("orpo", dict(data__padding="longest")), ("dpo", dict(model__architecture="gpt2", model__num_key_value_heads=4)), ("dpo", dict(training__loss_type="ipo", model__architecture="gemma3", model__sliding_window=16)))
    for kind, more in kinds:
        path = job(folder, kind, data__max_length=64, training__max_grad_norm=1.0, **more)
        (_, apart), (result, once) = train(path), train(path, "data.pair_length=96")
        same = near(values(once, "loss"), values(apart, "loss"), 1e-5) and near(values(once, "grad_norm"), values(apart, "grad_norm"), 1e-4)
        plim.ok(same and (kind == "orpo" or values(once, "rewards/margins")[0] == 0), f"{kind} {more}: a prompt computed once has the losses of two rows: {values(once, 'loss')} {values(apart, 'loss')} {result.stderr.strip()[:200]}")
        plim.ok(once[-1]["planned_peak"] == once[-1]["ledger_peak"] < apart[-1]["planned_peak"], f"{kind} {more}: and takes less memory: {once[-1]['planned_peak']} of {apart[-1]['planned_peak']}")
    path = job(folder, "dpo", data__max_length=64, data__pair_length=96, training__mixed_precision="bf16")
    base = train(path, "training.micro_batch_size=8")[1]
    for name, sets in (("recompute", ["training.recompute=full"]), ("selective recompute", ["training.recompute=selective"]), ("slices", ["training.loss_chunks=2"]), ("offload", ["training.param_tier=disk"])):
        result, events = train(path, "training.micro_batch_size=8", *sets)
        plim.ok(values(events, "loss") == values(base, "loss") != [], f"shared prompts: {name} changes no bit {values(events, 'loss')} {result.stderr.strip()[:200]}")
    _, first = train(path, "training.steps=2", args=("--overwrite",))
    _, second = train(path, args=("--resume",))
    plim.ok(values(first, "loss") + values(second, "loss") == values(train(path)[1], "loss"), "shared prompts: a resumed run has the same bits")
    plim.run("export", f"{folder}/run", "-o", f"{folder}/shared-base", "-q")
    lora = plim.job(folder, **{f"model__{k}": None for k in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")},
                    model__path=f"{folder}/shared-base", training__objective="dpo", data__train=f"[{preferences(folder)[0]}]", data__max_length=64, training__batch_size=8, training__gradient_accumulation_steps=1, training__steps=STEPS,
                    adapter__type="dora", training__learning_rate=0.01)
    (_, apart), (result, once) = train(lora), train(lora, "data.pair_length=96")
    plim.ok(near(values(once, "loss"), values(apart, "loss"), 1e-4), f"shared prompts: an adapter learns the same {values(once, 'loss')} {values(apart, 'loss')} {result.stderr.strip()[:200]}")
    data = os.path.join(folder, "long.jsonl")
    with open(data, "w") as f:
        for i in range(32): f.write(json.dumps({"prompt": "ask", "chosen": "a" * (40 if i % 4 == 0 else 9), "rejected": "b" * (40 if i % 4 == 0 else 9)}) + "\n")
    result, events = train(job(folder, "dpo", data__max_length=64, data__train=f"[{data}]"), "data.pair_length=64")
    plim.ok(result.returncode == 0 and events[-1].get("dropped_samples", 0) >= 8, f"shared prompts: pairs of more positions are left out and counted: {events[-1:]} {result.stderr.strip()[:200]}")


def resume(folder):
    path = job(folder, "dpo")
    _, whole = train(path, args=("--overwrite",))
    plim.ok(os.path.exists(f"{folder}/run/reference.logps"), "dpo: the reference is in the run's folder")
    _, first = train(path, "training.steps=2", args=("--overwrite",))
    plim.ok("computing" not in json.dumps(first), "dpo: a second run of the same job finds the reference")
    _, second = train(path, args=("--resume",))
    plim.ok(values(first, "loss") + values(second, "loss") == values(whole, "loss"), "dpo: a resumed run has the same bits")
    train(path, "training.steps=2", args=("--overwrite",))
    os.remove(f"{folder}/run/reference.logps")
    _, again = train(path, args=("--resume",))
    plim.ok("computing" in json.dumps(again) and values(again, "loss") == values(whole, "loss")[2:], "dpo: a reference that is gone is computed from the starting weights")
    _, other = train(path, "training.seed=9")
    plim.ok("computing" in json.dumps(other), "dpo: other starting weights have another reference")


def columns(folder):
    path = job(folder, "dpo", training__batch_size=4)
    data = os.path.join(folder, "given.jsonl")
    with open(data, "w") as f:
        for line in open(preferences(folder)[0]): f.write(json.dumps({**json.loads(line), "ref_chosen_logps": -8.0, "ref_rejected_logps": -16.0}) + "\n")
    _, events = train(path, f"data.train={data}", "training.steps=1")
    step = [e for e in events if e["event"] == "step"][0]
    want = 0.1 * (step["logps/chosen"] + 8 - step["logps/rejected"] - 16)
    plim.ok(abs(step["rewards/margins"] - want) < 1e-5, f"dpo: the reference's numbers in the data are used: {step['rewards/margins']} {want}")


def weights(folder):
    """dpo's loss over tokens is that of supervised training on the chosen completions, and so is its gradient."""
    keys = dict(training__batch_size=40, training__steps=1, training__max_grad_norm=1.0)
    tokens = train(job(folder, "dpo", **keys, training__sft_weight=1.0, training__beta=1e-6))[1]
    sft = train(job(folder, "dpo", **{**keys, "training__objective": "sft", "data__prompt_field": "prompt", "data__response_field": "chosen"}))[1]
    a, b = ({k: values(e, k)[0] for k in ("loss", "grad_norm", "tokens")} for e in (tokens, sft))
    plim.ok(abs(a["loss"] - b["loss"] - 0.6931472) < 1e-5 and abs(a["grad_norm"] / b["grad_norm"] - 1) < 1e-4 and a["tokens"] == b["tokens"],
            f"dpo: sft_weight is the weight of supervised training's loss: {a} {b}")


def rates(folder):
    path = job(folder, "dpo", training__learning_rate=None)
    plim.ok(values(train(path, "training.steps=1")[1], "lr") == [1e-6], "dpo: the learning rate is 1e-6 where the job gives none")


def refused(name, result, words):
    missing = [w for w in words if w not in result.stderr]
    lines = [line for line in result.stderr.splitlines() if "tokenizer" not in line]
    plim.ok(result.returncode == 2 and len(lines) == 1 and not missing, f"{name}: {result.returncode} {result.stderr.strip()} LACKS {missing}")


def refusals(folder):
    path = job(folder, "dpo")
    rows = [('{"prompt": "a", "chosen": "same", "rejected": "same"}', ["bad.jsonl:2", "'chosen' and 'rejected' are the same"]),
            ('{"prompt": "a", "chosen": "b"}', ["bad.jsonl:2", "'rejected' is missing", "data.rejected_field"]),
            ('{"prompt": "a", "chosen": "", "rejected": "b"}', ["bad.jsonl:2", "'chosen' is empty"]),
            ('{"prompt": [], "chosen": [{"role": "assistant", "content": "b"}], "rejected": []}', ["bad.jsonl:2", "data.chat_template"])]
    for row, words in rows:
        with open(f"{folder}/bad.jsonl", "w") as f: f.write('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' + row + "\n")
        refused("bad record", train(path, f"data.train={folder}/bad.jsonl")[0], words)
    keys = [("kto", "training.batch_size=1", ["training.batch_size", "2 or more"]), ("kto", "data.padding=longest", ["data.padding", "max_length"]),
            ("kto", "training.loss_type=ipo", ["training.loss_type", "kto"]), ("orpo", "training.label_smoothing=0.1", ["training.label_smoothing"]),
            ("dpo", "data.packing=true", ["data.packing"]), ("kto", "data.pair_length=300", ["data.pair_length", "no pairs of completions"]),
            ("dpo", "data.pair_length=5", ["data.pair_length", "twice that"]), ("sft", "data.pair_length=300", ["data.pair_length", "remove the key"])]
    for kind, key, words in keys: refused(f"{kind} with {key}", train(job(folder, kind), key)[0], words)
    refused("dpo of experts with data.pair_length", train(job(folder, "dpo", **plim.EXPERTS), "data.pair_length=300")[0], ["data.pair_length", "routers count"])
    encoder = job(folder, "dpo", model__architecture="bert", model__num_key_value_heads=None)
    plim.ok("dpo" in train(encoder)[0].stderr, "an encoder learns no preferences")


def losses_over_prompts(folder):
    pair = dict(training__objective="sft", data__prompt_field="prompt", data__response_field="chosen")
    path = job(folder, "dpo", **pair)
    def tokens(*sets): return values(train(path, "training.steps=1", *sets)[1], "tokens")
    response, both = tokens(), tokens("training.completion_only_loss=false")
    plim.ok(response and both and both[0] > response[0], f"sft: completion_only_loss: false learns prompts, too: {response} {both}")


with tempfile.TemporaryDirectory() as folder:
    for kind, first in (("dpo", 0.6931472), ("kto", 0.5), ("orpo", 0)): learns(folder, kind, first)
    invariant(folder)
    shared(folder)
    resume(folder)
    columns(folder)
    weights(folder)
    rates(folder)
    refusals(folder)
    losses_over_prompts(folder)
plim.done()
