#!/usr/bin/env python3
# run-tests: not=asan, not=tsan, timeout=7200
"""Checkpoints that several ranks write at once: every rank its piece, one checkpoint for whoever reads it or goes on from it.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import pieces
import plim
import ranks

ranks.need_mpi()
ROWS = 12
MODEL = "architecture vocab_size hidden_size intermediate_size num_layers num_attention_heads num_key_value_heads tie_word_embeddings".split()


def job(folder, **changes):
    """State in three kinds: masters of 16 bits, two moments; a vocabulary whose rows three ranks do not share evenly."""
    keys = dict(training__gradient_accumulation_steps=1, training__threads=1, training__mixed_precision="bf16", training__steps=2,
                model__vocab_size=257, model__hidden_size=128, model__num_layers=2, model__tie_word_embeddings="false", training__max_grad_norm=1.0)
    return plim.job(folder, **{**keys, **changes})


def train(count, path, out, *args, stage=None, **more):
    """`count` ranks into a folder of their own."""
    base = ["train", path, "-q", "--json", "--set", f"output.dir={out}", "--set", f"training.batch_size={ROWS // count}"]
    if stage is not None and count > 1: base += ["--set", f"training.zero_stage={stage}"]
    return ranks.run(count, *base, *args, **more)


def newest(out):
    return max(glob.glob(f"{out}/checkpoint-*"))


def told_once(result, *texts):
    lines = [l for l in result.stderr.splitlines() if l.startswith("plimsoll:")]
    return len(lines) == 1 and all(t in lines[0] for t in texts)


def form(folder):
    """What is in the folder; stages and forms have the same bits."""
    path, held = job(folder), {}
    cases = [("stage 3", 3, "true"), ("stage 3 in pieces", 3, "false"), ("stage 0 in pieces", 0, "false")]
    if plim.LONG: cases += [("stage 1", 1, "true"), ("stage 2 in pieces", 2, "false")]
    for name, stage, gather in cases:
        out = f"{folder}/{name.replace(' ', '-')}"
        result = train(3, path, out, "--set", f"output.gather_weights={gather}", stage=stage)
        plim.ok(result.returncode == 0, f"{name}: 3 ranks save {result.stderr.strip()[:200]}")
        at = newest(out)
        held[name] = pieces.checkpoint(at)
        files = sorted(os.path.relpath(f, at) for f in glob.glob(f"{at}/**", recursive=True) if f.endswith("s"))
        expected = [f"state/piece-0000{r}-of-00003.safetensors" for r in (1, 2, 3)]
        expected += ["model.safetensors"] if gather == "true" else [f"piece-0000{r}-of-00003.safetensors" for r in (1, 2, 3)]
        plim.ok(files == sorted(expected), f"{name}: files {files}")
        listed = json.load(open(f"{at}/manifest.json"))["files"]
        plim.ok(set(files) < set(listed) and "state/model.pieces.json" in listed, f"{name}: the manifest binds them")
    first = held[cases[0][0]]
    for name, _, _ in cases[1:]: plim.ok(held[name] == first, f"{name}: the bits of {cases[0][0]}")
    sizes = [os.path.getsize(f) for f in sorted(glob.glob(f"{folder}/stage-3-in-pieces/checkpoint-*/state/piece*"))]
    plim.ok(max(sizes) < 1.2 * sum(sizes) / 3, f"ranks write alike: {sizes}")


def readers(folder):
    """What reads a whole checkpoint reads pieces."""
    path = job(folder, data__validation=f"[{folder}/corpus.txt]", training__eval_rows=4)
    for name, gather in (("whole", "true"), ("pieces", "false")): train(2, path, f"{folder}/{name}", "--set", f"output.gather_weights={gather}", stage=3)
    whole, cut = newest(f"{folder}/whole"), newest(f"{folder}/pieces")
    exports = []
    for name, at in (("whole", whole), ("pieces", cut)):
        result = plim.run("export", at, "-o", f"{folder}/export-{name}", "--dtype", "f32")
        exports.append(pieces.read(f"{folder}/export-{name}") if result.returncode == 0 else result.stderr)
    plim.ok(exports[0] == exports[1] and isinstance(exports[0], dict), f"export has the same numbers {str(exports[1])[:200] if isinstance(exports[1], str) else ''}")
    for name, args in (("inspect", ["--json", "--no-checksum"]), ("inspect", ["--json", "--checksum"]), ("generate", ["--prompt", "The old", "--max-tokens", 8, "--temperature", 0])):
        a, b = (plim.run(name, at, *args) for at in (whole, cut))
        same = a.stdout.replace(whole, "") == b.stdout.replace(cut, "") or "--checksum" in args
        plim.ok(a.returncode == b.returncode == 0 and same, f"{name} {' '.join(map(str, args))}: the same of both {a.stderr.strip()[:100]} {b.stderr.strip()[:200]}")
    evals = [plim.run("eval", path, "--model", at, "--json").stdout for at in (whole, cut)]
    told = [json.loads(e).get("loss") if e.startswith("{") else e for e in evals]
    plim.ok(told[0] == told[1] and told[0], f"eval: {told}")
    with open(path) as f: lines = f.read().split("\n")
    with open(path, "w") as f: f.write("\n".join(l for l in lines if not l.startswith("  ") or l.split(":")[0].strip() not in MODEL).replace("model:", f"model:\n  path: {cut}"))
    model = plim.run("train", path, "-q", "--json", "--no-checkpoint", "--steps", 1)
    plim.ok(model.returncode == 0, f"model.path: {model.stderr.strip()[:200]}")


# A step whose gradients are clipped to nothing and whose rate is 0: parameters stay, moments fade alike on every number of ranks.
IDLE = ["--resume", "--set", "training.learning_rate=0", "--change", "training.learning_rate", "--set", "training.max_grad_norm=1e-45",
        "--change", "training.max_grad_norm"]


def resume(folder):
    """Whoever goes on has the same state to the bit."""
    path, held = job(folder), {}
    for kind, change in (("adamw", []), ("adamw8bit", ["--set", "training.optimizer=adamw8bit"])):
        result = train(4, path, f"{folder}/{kind}", "--set", "output.gather_weights=false", *change, stage=3)
        plim.ok(result.returncode == 0, f"{kind}: 4 ranks save {result.stderr.strip()[:200]}")
        saved = pieces.checkpoint(newest(f"{folder}/{kind}"))
        goers = [(1, 0), (2, 1), (3, 3)] if not plim.LONG else [(1, 0), *((n, z) for n in (2, 3, 4) for z in range(4))]
        for count, stage in goers:
            out = f"{folder}/{kind}-{count}-{stage}"
            subprocess.run(["cp", "-r", f"{folder}/{kind}", out], check=True)
            result = train(count, path, out, "--steps", 3, *IDLE, *change, stage=stage)
            if not plim.ok(result.returncode == 0, f"{kind}: {count} ranks at stage {stage} go on {result.stderr.strip()[:300]}"): continue
            held[count, stage] = pieces.checkpoint(newest(out))
            plim.ok(all(held[count, stage][k] == saved[k] for k in saved if not k.startswith("state ")), f"{kind}: {count} ranks, stage {stage}: the parameters that were saved")
            plim.ok(held[count, stage] == held[1, 0], f"{kind}: {count} ranks, stage {stage}: masters and moments of one rank")


def reshard(folder):
    """In fp32, whoever goes on from four ranks' pieces has their losses within 1e-6."""
    path = job(folder, training__mixed_precision="fp32", training__save_every=3, training__learning_rate=2e-4)
    whole = plim.losses(train(4, path, f"{folder}/whole", "--steps", 6, stage=3).stdout or "")
    plim.ok(len(whole) == 6, f"4 ranks, six steps: {whole}")
    shutil.rmtree(f"{folder}/whole/checkpoint-00000006", ignore_errors=True)
    for count, stage in ((1, 0), (2, 2), (3, 3)):
        out = f"{folder}/reshard-{count}"
        subprocess.run(["cp", "-r", f"{folder}/whole", out], check=True)
        result = train(count, path, out, "--steps", 6, "--resume", stage=stage)
        got = plim.losses(result.stdout or "")
        far = max((abs(got[s] - whole[s]) / whole[s] for s in got), default=9)
        plim.ok(sorted(got) == [4, 5, 6] and far <= 1e-6, f"{count} ranks at stage {stage} go on with {far:.1e} {result.stderr.strip()[:200]}")


def nodes(folder):
    """Pieces of every node are written once, and whoever goes on has the same state."""
    path, held, two = job(folder), {}, {"PLIMSOLL_RANKS_PER_NODE": "2"}
    result = train(4, path, f"{folder}/nodes", "--set", "output.gather_weights=false", stage=4, env=two)
    plim.ok(result.returncode == 0, f"2 nodes of 2 ranks save {result.stderr.strip()[:200]}")
    for count, stage, env in ((1, 0, {}), (4, 4, two), (3, 3, {})):
        subprocess.run(["cp", "-r", f"{folder}/nodes", f"{folder}/{count}"], check=True)
        result = train(count, path, f"{folder}/{count}", "--steps", 3, *IDLE, stage=stage, env=env)
        held[count] = pieces.checkpoint(newest(f"{folder}/{count}")) if result.returncode == 0 else result.stderr
        plim.ok(held[count] == held[1] and isinstance(held[1], dict), f"{count} ranks at stage {stage} go on with that state {result.stderr.strip()[:200]}")


def failures(folder):
    """What one rank cannot write, and what somebody damaged."""
    path, out = job(folder, training__save_every=1), f"{folder}/run"
    args = ["train", path, "-q", "--json", "--set", f"output.dir={out}", "--set", "training.batch_size=4", "--set", "training.zero_stage=3", "--resume"]
    for which, nth in ((1, 30), (0, 40)):
        process = ranks.one_apart(3, which, {"PLIMSOLL_FAULT": f"write:{nth}"}, *args, "--steps", 9)
        _, text = process.communicate(timeout=120)
        result = subprocess.CompletedProcess(args, process.returncode, "", text)
        plim.ok(process.returncode == 2 and told_once(result, "not saved, earlier ones are intact"), f"rank {which} cannot write: {text.strip()[:200]}")
        check = plim.run("doctor", out) if glob.glob(f"{out}/checkpoint-*") else None
        plim.ok(not glob.glob(f"{out}/.tmp*") and (not check or "is whole" in check.stdout), f"nothing half-written stays {check and check.stdout[:100]}")
    train(3, path, out, "--resume", "--steps", 4, stage=3)
    victim = f"{newest(out)}/state/piece-00002-of-00003.safetensors"
    with open(victim, "r+b") as f: f.seek(-5, 2), f.write(b"\x55\xaa")
    bad = train(2, path, out, "--resume", "--steps", 5, stage=3)
    plim.ok(bad.returncode == 2 and told_once(bad, victim, "is intact: use it"), f"a damaged piece is named: {bad.stderr.strip()[:300]}")
    os.remove(victim)
    bad = train(3, path, out, "--resume", "--steps", 5, stage=3)
    plim.ok(bad.returncode == 2 and told_once(bad, victim, "it is missing"), f"so is a missing one: {bad.stderr.strip()[:200]}")


def folders(folder):
    """Ranks on two machines without a common folder, as two working folders: rank 0 writes all of it."""
    path = job(folder)
    for name in ("a", "b"): os.makedirs(f"{folder}/{name}", exist_ok=True)
    args = ["train", path, "-q", "--json", "--set", "output.dir=run", "--set", "training.batch_size=6", "--set", "training.zero_stage=3", "--set", "output.gather_weights=false"]
    process = ranks.apart([(1, {}, args, f"{folder}/a"), (1, {}, args, f"{folder}/b")])
    _, text = process.communicate(timeout=120)
    at = f"{folder}/a/run"
    good = process.returncode == 0 and os.path.exists(f"{newest(at)}/state/model.safetensors")
    plim.ok(good and not os.path.exists(f"{folder}/b/run/checkpoint-00000002"), f"no common folder: rank 0 writes everything {text.strip()[:200]}")
    process = ranks.apart([(1, {}, args + ["--resume", "--steps", 4], f"{folder}/a"), (1, {}, args + ["--resume", "--steps", 4], f"{folder}/b")])
    _, text = process.communicate(timeout=120)
    plim.ok(process.returncode == 2 and "the newest checkpoint is not that of rank 0" in text, f"ranks that find different checkpoints: {text.strip()[:200]}")


for part in (form, readers, resume, reshard, nodes, failures, folders):
    with tempfile.TemporaryDirectory() as folder: part(folder)
plim.done()
