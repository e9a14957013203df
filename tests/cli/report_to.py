#!/usr/bin/env python3
"""Event files for TensorBoard and offline folders for W&B: framing and checksums are read back here by the formats' own rules,
and, where they are installed, by tensorboard's and wandb's own readers. A folder that cannot be written and a disk that fills.
"""
import glob
import json
import os
import struct
import sys
import tempfile
import time
import zlib

# Not from this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import plim

# ---- the formats, as their documents have them ----


def crc32c(data):
    table = crc32c.table
    crc = 0xFFFFFFFF
    for byte in data: crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _entry(n):
    for _ in range(8): n = n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1
    return n


crc32c.table = [_entry(n) for n in range(256)]


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecords(path):
    data, at, out = open(path, "rb").read(), 0, []
    while at < len(data):
        (length,), (crc,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        assert crc == masked(data[at:at + 8]), "checksum of a length"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length and struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), "checksum of a record"
        out.append(body)
        at += 16 + length
    return out


def wandb_records(path):
    """LevelDB's log: blocks of 32 KiB, parts with CRC-32 of type and data."""
    data = open(path, "rb").read()
    assert data[:7] == struct.pack("<4sHB", b":W&B", 0xBEE1, 0), "header"
    at, out, parts = 7, [], b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            assert data[at:at + left] == bytes(left), "padding"
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7:at + 7 + length]
        assert len(body) == length <= left - 7 and crc == zlib.crc32(body, zlib.crc32(bytes([kind]))), "a part"
        at += 7 + length
        parts = body if kind in (1, 2) else parts + body
        if kind in (1, 4): out.append(parts)
    return out


def fields(message):
    """protobuf's wire format: [(field, value)]; bytes stay bytes."""
    at, out = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128: return value
    while at < len(message):
        tag = varint()
        kind = tag & 7
        if kind == 0: value = varint()
        elif kind == 2:
            n = varint()
            value, at = message[at:at + n], at + n
        else:
            size = {1: 8, 5: 4}[kind]
            value, at = struct.unpack("<d" if size == 8 else "<f", message[at:at + size])[0], at + size
        out.append((tag >> 3, value))
    return out


def scalars(paths):
    """{tag: {step: value}} as TensorBoard sees files in order: a session that starts drops what is there from its step on."""
    out = {}
    for path in sorted(paths):
        records = [dict(fields(r)) for r in tfrecords(path)]
        assert records[0][3] == b"brain.Event:2", "version"
        for r in records:
            if 7 in r:
                for tag in out.values():
                    for step in [s for s in tag if s >= r[2]]: del tag[step]
            for _, value in fields(r.get(5, b"")):
                v = dict(fields(value))
                out.setdefault(v[1].decode(), {})[r[2]] = v[2]
    return out


def history(path):
    """(rows, run, summary, exit code) of a .wandb file."""
    rows, run, summary, code, numbers = [], None, {}, None, []
    item = lambda value: (lambda d: (d[1].decode(), json.loads(d[16])))(dict(fields(value)))
    for r in wandb_records(path):
        r = dict(fields(r))
        numbers.append(r[1])
        if 2 in r: rows.append(dict(item(v) for n, v in fields(r[2]) if n == 1) | {"step": dict(fields(dict(fields(r[2]))[2]))[1]})
        if 17 in r: run = fields(r[17])
        if 3 in r: summary = dict(item(v) for _, v in fields(r[3]))
        if 18 in r: code = dict(fields(r[18])).get(1, 0)
    assert numbers == list(range(1, len(numbers) + 1)), "records are numbered"
    return rows, run, summary, code


# ---- runs ----


def train(path, *args, env=None):
    result = plim.run("train", path, "-q", *args, env=env)
    return plim.events(result.stdout), result


def close(a, b): return abs(a - b) <= 1e-6 * abs(b)


def tensorboard(folder, path):
    board = f"{folder}/board"
    asked = ("--set", "training.report_to=tensorboard", "--set", f"training.logging_dir={board}")
    events, result = train(path, *asked, "--steps", 4)
    steps, evals = ([e for e in events if e["event"] == kind] for kind in ("step", "eval"))
    got = scalars(glob.glob(f"{board}/events.out.tfevents.*"))
    plim.ok(result.returncode == 0 and os.listdir(board), f"report_to: tensorboard, logging_dir {result.stderr.strip()}")
    for tag, key in (("train/loss", "loss"), ("train/learning_rate", "lr"), ("train/grad_norm", "grad_norm"), ("train/tokens_per_second", "tokens_per_s")):
        plim.ok(sorted(got[tag]) == [1, 2, 3, 4] and all(close(got[tag][e["step"]], e[key]) for e in steps), f"{tag} is the log's")
    plim.ok({"memory/used", "memory/budget", "memory/param", "memory/state", "memory/act", "memory/overhead"} <= set(got), f"memory by class: {sorted(t for t in got if t[0] == 'm')}")
    plim.ok([got["eval/loss"][e["step"]] for e in evals] and all(close(got["eval/loss"][e["step"]], e["loss"]) for e in evals) and "eval/perplexity" in got, "scores of evaluations")
    # A run that was cut off after its checkpoint: its steps are made again, and the folder has each once. Its file is read after the
    # one that is there, though that is of this very second and of a process with a larger number.
    first = glob.glob(f"{board}/events.out.tfevents.*")[0]
    os.rename(first, f"{board}/events.out.tfevents.{int(time.time()) + 1:010d}.zzz.9999999.0")
    more, result = train(path, *asked, "--steps", 8, "--resume")
    files = glob.glob(f"{board}/events.out.tfevents.*")
    again = scalars(files)
    plim.ok(len(files) == 2 and sorted(again["train/loss"]) == list(range(1, 9)), f"a resume goes on in the same folder: {sorted(again['train/loss'])}")
    train(path, *asked, "--steps", 2, "--overwrite")
    plim.ok(sorted(scalars(glob.glob(f"{board}/events.out.tfevents.*"))["train/loss"]) == [1, 2], "a run that replaces another begins anew there")
    train(path, "--set", "training.report_to=tensorboard", "--steps", 4, "--overwrite", "--set", "training.log_every=2")
    got = scalars(glob.glob(f"{folder}/run/tensorboard/*"))
    plim.ok(sorted(got["train/loss"]) == [2, 4], "without logging_dir it is below output.dir; steps as training.log_every says")
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        plim.skip("tensorboard is not installed")
        return
    acc = event_accumulator.EventAccumulator(board)
    acc.Reload()
    plim.ok([e.step for e in acc.Scalars("train/loss")] == [1, 2] and close(acc.Scalars("train/loss")[0].value, steps[0]["loss"]),
            f"tensorboard's own reader: {len(acc.Tags()['scalars'])} tags")


def wandb(folder, path):
    asked = ("--set", "training.report_to=wandb", "--set", "training.run_name=mine", "--set", "training.save_every=4")
    events, result = train(path, *asked, "--steps", 4, "--overwrite", env={"WANDB_PROJECT": "ships"})
    steps, evals = ([e for e in events if e["event"] == kind] for kind in ("step", "eval"))
    runs = glob.glob(f"{folder}/run/wandb/offline-run-*")
    run_id = runs[0][-8:]
    file = f"{runs[0]}/run-{run_id}.wandb"
    rows, run, summary, code = history(file)
    plim.ok(result.returncode == 0 and len(runs) == 1 and [r["step"] for r in rows] == [r["_step"] for r in rows] == [1, 2, 3, 4], f"report_to: wandb {result.stderr.strip()}")
    plim.ok(all(r["train/loss"] == e["loss"] and r["train/learning_rate"] == e["lr"] for r, e in zip(rows, steps)) and "memory/param" in rows[0], "its history is the log's")
    plim.ok(rows[-1]["eval/loss"] == evals[-1]["loss"] and summary["eval/loss"] == evals[-1]["loss"] and code == 0, "evaluations, summary and exit")
    config = {d[1].decode(): json.loads(d[16]) for d in (dict(fields(v)) for n, v in fields(dict(run)[4]))}
    plim.ok(dict(run)[1].decode() == run_id and dict(run)[3] == b"ships" and dict(run)[8] == b"mine" and config["training.steps"] == 4 and
            config["model.architecture"] == "llama" and config["training.learning_rate"] == 0.001, "run, project, name and configuration")
    files = f"{runs[0]}/files"
    metadata, told = json.load(open(f"{files}/wandb-metadata.json")), json.load(open(f"{files}/wandb-summary.json"))
    plim.ok(metadata["program"].startswith("plimsoll") and told["train/loss"] == steps[-1]["loss"] and told["_step"] == 4, "metadata and summary as files")
    text = open(f"{files}/config.yaml").read()
    plim.ok("training.batch_size:\n    value: 4\n" in text and text.startswith("wandb_version: 1"), "config.yaml")
    plim.ok(os.path.samefile(f"{folder}/run/wandb/latest-run", runs[0]), "latest-run")
    train(path, *asked, "--steps", 6, "--resume")
    parts = sorted(glob.glob(f"{folder}/run/wandb/offline-run-*"))
    rows2, run2, _, _ = history(glob.glob(f"{parts[-1]}/*.wandb")[0])
    plim.ok(len(parts) == 2 and parts[-1].endswith(run_id) and [r["step"] for r in rows2] == [5, 6] and dict(run2)[18] == 1, "a resume goes on under the same ID")
    _, result = train(path, *asked, "--steps", 6, "--overwrite", "--budget-at", "3=64KiB")
    failed = [p for p in glob.glob(f"{folder}/run/wandb/offline-run-*") if p not in parts]
    plim.ok(result.returncode == 3 and history(glob.glob(f"{failed[0]}/*.wandb")[0])[3] == 3 and failed[0][-8:] != run_id, "a run that fails: its exit code, and an ID of its own")
    # Blocks of 32 KiB are crossed.
    train(path, *asked, "--steps", 60, "--overwrite", "--no-checkpoint", "--set", "training.batch_size=1", "--set", "training.gradient_accumulation_steps=1")
    large = max(glob.glob(f"{folder}/run/wandb/*/*.wandb"), key=os.path.getsize)
    plim.ok(os.path.getsize(large) > 32768 and [r["step"] for r in history(large)[0]] == list(range(1, 61)), f"{os.path.getsize(large)} bytes: records across blocks")
    try:
        from wandb.sdk.internal import datastore
        from wandb.proto import wandb_internal_pb2 as pb
    except ImportError:
        plim.skip("wandb with its reader (wandb.sdk.internal.datastore) is not installed")
        return
    for name in (file, large):
        store, seen = datastore.DataStore(), []
        store.open_for_scan(name)
        while (data := store.scan_data()) is not None:
            record = pb.Record()
            record.ParseFromString(data)
            seen.append(record)
        kinds = [r.WhichOneof("record_type") for r in seen]
        plim.ok(kinds[:3] == ["header", "run", "files"] and kinds[-2:] == ["summary", "exit"] and set(kinds[3:-2]) == {"history"}, f"wandb's own reader: {len(seen)} records")
    first = next(r for r in seen if r.WhichOneof("record_type") == "history").history
    plim.ok(first.step.num == 1 and "train/loss" in {i.key for i in first.item}, "and their fields")


def both(folder, path):
    events, result = train(path, "--set", "training.report_to=all", "--overwrite", "--set", f"output.dir={folder}/both")
    plim.ok(result.returncode == 0 and glob.glob(f"{folder}/both/tensorboard/*") and glob.glob(f"{folder}/both/wandb/offline-run-*"), "report_to: all")
    calm, _ = train(path, "--overwrite", "--set", f"output.dir={folder}/none", "--set", "training.report_to=none")
    plim.ok(plim.losses("\n".join(map(json.dumps, calm))) == plim.losses("\n".join(map(json.dumps, events))) and not glob.glob(f"{folder}/none/[tw]*"), "none: no files, the same losses")


def trouble(folder, path):
    """Before the first step a folder that cannot be made is an error; later the run goes on."""
    blocked = f"{folder}/a-file"
    open(blocked, "w").close()
    for args, word in ((("--set", "training.report_to=tensorboard", "--set", f"training.logging_dir={blocked}/x"), "training.logging_dir"),):
        _, result = train(path, *args, "--overwrite")
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and word in result.stderr and blocked in result.stderr, f"no such folder: {result.stderr.strip()}")
    os.makedirs(f"{folder}/full", exist_ok=True)
    open(f"{folder}/full/wandb", "w").close()
    _, result = train(path, "--set", "training.report_to=wandb", "--set", f"output.dir={folder}/full")
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "wandb" in result.stderr, f"nor for W&B: {result.stderr.strip()}")
    calm = plim.losses(train(path, "--overwrite", "--no-checkpoint")[1].stdout)
    for what, writes in (("tensorboard", 2), ("wandb", 6)):  # before the first step, at least
        for nth in range(writes + 1, 40):
            out = f"{folder}/lost-{what}-{nth}"
            result = plim.run("train", path, "-q", "--overwrite", "--no-checkpoint", "--set", f"training.report_to={what}", "--set", f"output.dir={out}", env={"PLIMSOLL_FAULT": f"write:{nth}"})
            events = plim.events(result.stdout)
            notes = [e["text"] for e in events if e["event"] == "note" and e["text"].startswith(what)]
            if notes: break
        plim.ok(result.returncode == 0 and len(notes) == 1 and "continues" in notes[0] and plim.losses(result.stdout) == calm, f"a write that fails in the run: {notes}")
        kept = glob.glob(f"{out}/tensorboard/*") if what == "tensorboard" else glob.glob(f"{out}/wandb/offline-run-*/*.wandb")
        read = [scalars([p]) if what == "tensorboard" else wandb_records(p) for p in kept]  # both refuse what is cut off
        plim.ok(len(read) == 1, f"{what}: what was written before is whole: {kept}")
    for word in ("mlflow", "clearml"):
        _, result = train(path, "--set", f"training.report_to={word}")
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "tensorboard, wandb" in result.stderr, f"report_to: {word}: {result.stderr.strip()}")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, data__validation=f"[{folder}/corpus.txt]", training__eval_rows=2, training__max_grad_norm=1.0)
    for part in (tensorboard, wandb, both, trouble): part(folder, path)
plim.done()
