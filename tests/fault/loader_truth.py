#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""The loader's memory is in the plan: what `plan` says is what `train` reserves, and the process never takes more.

Points differ in how data are read: streams with workers and shuffle blocks, compressed streams, long lines, token
files larger than what may stay mapped. The process's own peak is read from /proc while it runs; the bound on the
loader is the most it may take, so the process may stay below it.
"""
import gzip
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20


def write_lines(path, size, longest=200, opener=open):
    random.seed(9)
    words = plim.CORPUS.split()
    done = 0
    with opener(path, "wt") as f:
        while done < size:
            text = json.dumps({"text": " ".join(random.choices(words, k=random.randint(1, longest)))}) + "\n"
            f.write(text)
            done += len(text)


with tempfile.TemporaryDirectory() as folder:
    write_lines(f"{folder}/a.jsonl", 24 * MIB)
    write_lines(f"{folder}/b.jsonl.gz", 8 * MIB, opener=gzip.open)
    write_lines(f"{folder}/long.jsonl", 8 * MIB, longest=200000)
    plim.run("tokenize", f"{folder}/a.jsonl", "-o", f"{folder}/a.tok", "-q")
    path = plim.job(folder, training__steps=25, training__batch_size=16, data__max_length=128, model__hidden_size=32, model__intermediate_size=64,
                    model__num_layers=1, model__num_attention_heads=2, model__num_key_value_heads=1)
    points = [("JSON lines, 2 workers", "a.jsonl", []), ("no workers", "a.jsonl", ["data.workers=0"]),
              ("5 workers, packed, large blocks", "a.jsonl", ["data.workers=5", "data.packing=true", "data.shuffle_bytes=16MiB", "data.shuffle_buffer=100000"]),
              ("gzip", "b.jsonl.gz", ["data.max_line_bytes=1MiB"]), ("lines of a megabyte, split", "long.jsonl", ["data.overlong=split"]),
              ("a token file", "a.tok", []), ("a token file, packed", "a.tok", ["data.packing=true", "data.rows=samples"])]
    for name, data, sets in points:
        args = ["--set", f"data.train={folder}/{data}"] + [x for s in sets for x in ("--set", s)]
        plan, result = plim.plan(path, "--budget", "400MiB", *args)
        if not plim.ok(plan and plan["fits"], f"{name}: plans {result.stderr.strip()}"): continue
        events, peak, _, code, stderr = plim.run_watched("train", path, "--budget", "400MiB", "--no-checkpoint", *args)
        end = events[-1] if events else {}
        if not plim.ok(code == 0 and end.get("event") == "end", f"{name}: trains {stderr.strip()}"): continue
        total = plan["peak_bytes"]["total"]
        # The program itself differs by a few pages from run to run; the rest is the same number.
        plim.ok(end["ledger_peak"] == end["planned_peak"] and abs(end["planned_peak"] - total) < MIB,
                f"{name}: reserved {end['ledger_peak'] / MIB:.2f} MiB, planned {total / MIB:.2f} MiB")
        plim.ok(peak <= max(1.01 * total, total + MIB),
                f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB of which the loader {plan['by_class']['io'] / MIB:.2f} MiB")

# What is reserved is used: plans of jobs that read words with labels, and of those that tokenize, are within a tenth of the peak.
import encoder_jobs

with tempfile.TemporaryDirectory() as folder:
    write_lines(f"{folder}/a.jsonl", 2 * MIB)
    tokenizer = os.path.abspath(os.path.join(plim.SRC_DIR, "tests/golden/tokenizer/gpt2.json"))
    points = [("words with labels", encoder_jobs.job(f"{folder}/ner", "token_labels", rows=2000, training__threads=2)),
              ("tokenized", plim.job(folder, data__train=f"[{folder}/a.jsonl]", data__tokenizer=tokenizer, model__vocab_size=4096, data__workers=4, training__threads=2))]
    with open(f"{folder}/words.conll", "w") as f:
        for row in map(json.loads, open(f"{folder}/ner/token_labels.jsonl")): f.write("".join(f"{w} {l}\n" for w, l in zip(row["tokens"], row["labels"])) + "\n")
    points.append(("words with labels in columns", encoder_jobs.job(f"{folder}/columns", "token_labels", rows=2, training__threads=2,
                                                                     data__train=f"[{folder}/words.conll]", data__validation=f"[{folder}/words.conll]")))
    for name, path in points:
        total = plim.plan(path, "--budget", "400MiB")[0]["peak_bytes"]["total"]
        _, peak, _, code, stderr = plim.run_watched("train", path, "--budget", "400MiB", "--no-checkpoint")
        near = 1.15 if "columns" in name else 1.1  # a table's reader has buffers that a small file does not fill
        plim.ok(code == 0 and peak <= total <= near * peak, f"{name}: RSS {peak / MIB:.2f} MiB, planned {total / MIB:.2f} MiB {stderr.strip()}")
plim.done()
