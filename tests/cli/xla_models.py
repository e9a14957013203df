#!/usr/bin/env python3
"""Models on XLA's CPU plug-in that are more than plain weights: quantised blocks, adapters and preferences give the CPU backend's tokens and losses.

tools/deps.sh test fetches the plug-in into build/pjrt; PLIMSOLL_TEST_PJRT names another. PLIMSOLL_XLA_MODELS=all runs every block type, adapter
and objective instead of one of each."""
# run-tests: timeout=600, not=asan, not=tsan
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gguf_file
import llama_folder
import plim
from plim import ok

PLUGIN = os.path.abspath(os.environ.get("PLIMSOLL_TEST_PJRT", f"{plim.SRC_DIR}/build/pjrt/xla_cpu_pjrt.so"))
if not os.path.exists(PLUGIN):
    print(f"skipped: there is no {PLUGIN}; tools/deps.sh test fetches it")
    sys.exit(77)
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # programs compile in half the time
ALL = os.environ.get("PLIMSOLL_XLA_MODELS") == "all"
XLA = f"pjrt:{PLUGIN}"
FROM_FILES = {f"model__{k}": None for k in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")}


def generated(model, device, *args):
    """Drawn tokens, and the bytes of the parameters."""
    result = plim.run("generate", model, "-p", "The ship", "-n", 6, "-t", 1.5, "--seed", 5, "--json", "-q", "--tokenizer", "bytes", "--device", device, *args)
    if result.returncode: return result.stderr.strip()
    told = json.loads(result.stdout)
    return told["tokens"], told["memory"]["parameter_bytes"]


def same_tokens(name, model, *args):
    here, there = generated(model, "cpu", *args), generated(model, XLA, *args)
    ok(isinstance(here, tuple) and here == there, f"{name}: tokens and bytes {there}, on the CPU {here}")


def evaluated(folder, device, model):
    path = plim.job(folder, **FROM_FILES, model__path=model, data__max_length=16, training__batch_size=2)
    result = plim.run("eval", path, "--json", "--rows", "4", "-q", "--set", f"training.device={device}")
    return json.loads(result.stdout)["loss"] if result.returncode == 0 else result.stderr.strip()


def near(here, there):
    return isinstance(here, list) and isinstance(there, list) and len(here) == len(there) > 0 and all(abs(a - b) <= 2e-5 * max(1, abs(a)) for a, b in zip(here, there))


def same_losses(name, folder, steps=4, **keys):
    path = plim.job(folder, **{"data__max_length": 24, "training__batch_size": 4, "training__gradient_accumulation_steps": 1, "training__steps": steps, **keys})
    losses = []
    for device in ("cpu", XLA):
        result = plim.run("train", path, "-q", "--json", "--no-checkpoint", "--set", f"training.device={device}")
        losses.append([e["loss"] for e in plim.events(result.stdout) if e["event"] == "step"] if result.returncode == 0 else result.stderr.strip())
    ok(near(*losses) and losses[0][0] != losses[0][-1], f"{name}: losses {losses[1]}, on the CPU {losses[0]}")


def files_with_blocks(folder):
    """Blocks of every type of GGUF. The CPU rounds activations to 8 bits when it multiplies blocks, so its losses come from the numbers they stand for."""
    path, numbers = f"{folder}/mixed.gguf", f"{folder}/numbers"
    gguf_file.write(path, *gguf_file.random_llama(["Q6_K", "Q8_0", "Q4_K", "Q5_K", "Q4_0"]))
    plim.run("export", path, "-o", numbers, "--dtype", "f32", "-q")
    here, there = evaluated(folder, "cpu", numbers), evaluated(folder, XLA, path)
    ok(isinstance(there, float) and near([here], [there]), f"mixed GGUF: loss {there}, on the CPU {here}")
    if ALL: same_tokens("mixed GGUF", path)


def quantised_on_loading(folder):
    model = llama_folder.make(f"{folder}/model")
    for kind in ("q8", "q4", "nf4", "fp4") if ALL else ("nf4",): same_tokens(kind, model, "--weights", kind)


def adapters(folder):
    """DoRA has column_scale; an adapter on blocks has linear_q and linear_q_dx."""
    model = dict(FROM_FILES, model__path=llama_folder.make(f"{folder}/base"), training__learning_rate=0.01, adapter__r=4)
    if ALL:
        for kind in ("lora", "rslora", "dora"): same_losses(kind, folder, 10, **model, adapter__type=kind)
        for base in ("q8", "q4", "nf4", "fp4"): same_losses(f"lora on {base}", folder, 10, **model, adapter__type="lora", model__weights=base)
        return
    same_losses("dora", folder, **model, adapter__type="dora")
    same_losses("lora on q4", folder, **model, adapter__type="lora", model__weights="q4")


def preferences(folder):
    pairs, singles = f"{folder}/pairs.jsonl", f"{folder}/singles.jsonl"
    with open(pairs, "w") as f, open(singles, "w") as g:
        for i in range(24):
            prompt, good = plim.CORPUS[31 * i:31 * i + 2 + i % 5], plim.CORPUS[17 * i:17 * i + 3 + 5 * i % 11]
            f.write(json.dumps({"prompt": prompt, "chosen": good, "rejected": good.upper()[::-1] + "!"}) + "\n")
            g.write(json.dumps({"prompt": prompt, "completion": good if i % 2 else good[::-1] + "!", "label": bool(i % 2)}) + "\n")
    kinds = {"dpo": {}}
    if ALL:
        for loss in ("hinge", "ipo", "sigmoid_norm", "robust", "apo_zero", "apo_down"):
            kinds[f"dpo, {loss}"] = {"training__loss_type": loss, **({"training__label_smoothing": 0.1} if loss == "robust" else {})}
        kinds |= {"kto": {}, "orpo": {}}
    for name, more in kinds.items():
        kind = name.split(",")[0]
        same_losses(name, folder, 10 if ALL else 4, training__objective=kind, data__train=f"[{singles if kind == 'kto' else pairs}]", training__learning_rate=1e-3, **more)


with tempfile.TemporaryDirectory() as scratch:
    os.environ.setdefault("XDG_CACHE_HOME", f"{scratch}/cache")
    for part in (files_with_blocks, quantised_on_loading, adapters, preferences):
        os.mkdir(f"{scratch}/{part.__name__}")
        part(f"{scratch}/{part.__name__}")
plim.done()
