#!/usr/bin/env python3
"""Every kind of bad data: exit 2 and one line that names file, place and what is wrong; skip_bad counts instead."""
import csv
import gzip
import io
import json
import os
import resource
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

GOOD = "".join(json.dumps({"text": f"The {i}th ship took {i} barrels past the bar.", "q": "how many?", "a": str(i)}) + "\n" for i in range(60))


def write(path, data):
    with open(path, "wb") as f: f.write(data.encode() if isinstance(data, str) else data)
    return path


def refused(name, args, words):
    result = plim.run(*args)
    line = result.stderr
    missing = [w for w in words if w not in line]
    plim.ok(result.returncode == 2 and line.count("\n") == 1 and not missing, f"{name}: exit {result.returncode}: {line.strip()} {'LACKS ' + str(missing) if missing else ''}")


def train(path, data, *sets):
    args = ["train", path, "-q", "--no-checkpoint", "--set", f"data.train={data}"]
    for s in sets: args += ["--set", s]
    return args


def lines(folder, path):
    bad = f"{folder}/bad.jsonl"
    cases = [("broken JSON", '{"text":"abc"', "ends inside an object"), ("a missing field", '{"txt":"abc"}', "'text' is missing"),
             ("a field of another type", '{"text":["a"]}', "'text' is a list"), ("bytes that are no UTF-8", b'{"text":"\xff\xfe"}', "UTF-8"),
             ("a line that is no object", '"text"', "expected an object"), ("a lone surrogate", r'{"text":"\ud800x"}', "surrogate")]
    for name, line, word in cases:
        line = line if isinstance(line, bytes) else line.encode()
        write(bad, GOOD.encode() + b"\n" + line + b"\n" + GOOD.encode())
        refused(name, train(path, bad), ["bad.jsonl:62: ", word])
        result = plim.run(*train(path, bad, "data.skip_bad=true"))
        end = plim.events(result.stdout)[-1]
        notes = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note"]
        plim.ok(result.returncode == 0 and end.get("bad_records") == 1 and any("bad.jsonl:62: " in n for n in notes), f"{name}: skipped and counted {result.stderr.strip()}")
    write(bad, GOOD + '{"text":"' + "x" * 70000 + '"}\n')
    refused("a line that is too long", train(path, bad, "data.max_line_bytes=1000"), ["bad.jsonl:61: ", "data.max_line_bytes"])
    write(bad, '{"text":""}\n{"text":"x"}\n')
    refused("nothing to learn", train(path, bad), ["bad.jsonl", "no sample"])
    refused("half a pair", train(path, write(bad, GOOD), "data.prompt_field=q"), ["job.yaml", "'q'"])
    refused("a field that nobody has", train(path, bad, "data.field=body"), ["bad.jsonl:1: ", "'body' is missing"])
    ok = plim.run(*train(path, bad, "data.prompt_field=q", "data.response_field=a"))
    plim.ok(ok.returncode == 0, f"the same file as pairs trains {ok.stderr.strip()}")
    ok = plim.run(*train(path, bad, "data.source_field=q", "data.target_field=a", "data.packing=true"))
    plim.ok(ok.returncode == 0, f"and as source and target, packed {ok.stderr.strip()}")


def forms(folder, path):
    """Tables are read as records, whatever they are called; what is no text is named; plan refuses what train would."""
    rows = [json.loads(line) for line in GOOD.splitlines()]

    def tokens(name, content):
        result = plim.run("tokenize", write(f"{folder}/{name}", content), "-o", f"{folder}/{name}.tokens", "-q")
        return open(f"{folder}/{name}.tokens", "rb").read() if result.returncode == 0 else result.stderr

    wanted = tokens("t.jsonl", GOOD)
    out = io.StringIO()
    table = csv.DictWriter(out, ["q", "text", "a"])
    table.writeheader(), table.writerows(rows)
    tabs = out.getvalue().replace(",", "\t")
    for name, content in (("t.csv", out.getvalue()), ("csv.txt", out.getvalue()), ("t.tsv", tabs), ("t.json", json.dumps(rows, indent=1)),
                          ("array.txt", json.dumps(rows)), ("lines.json", GOOD), ("t.csv.gz", gzip.compress(out.getvalue().encode()))):
        plim.ok(tokens(name, content) == wanted, f"{name}: the tokens of JSON lines")
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "parquet")
    same = tokens("p.jsonl", open(f"{golden}/rows.jsonl", "rb").read())
    for name in ("snappy", "zstd_v2", "gzip_pages", "none_v2"):
        plim.ok(tokens(f"{name}.parquet", open(f"{golden}/{name}.parquet", "rb").read()) == same, f"Parquet, {name}: the tokens of JSON lines")
    result = plim.run(*train(path, f"{folder}/snappy.parquet"), "--json")
    plim.ok(len(plim.losses(result.stdout)) == 4, f"Parquet trains {result.stderr.strip()}")
    result = plim.run(*train(path, f"{folder}/t.csv"), "--json")
    plim.ok(len(plim.losses(result.stdout)) == 4, f"CSV trains {result.stderr.strip()}")
    for name, content, word in (("a.parquet", b"PAR1\x15\x00 cut off", "not a whole Parquet file"), ("b.txt", b"PK\x03\x04\x14\x00", "a ZIP archive"), ("c.txt", b"abc\0def", "binary data"),
                                ("d.jsonl", b"ARROW1\0\0", "an Arrow file"), ("e.tar.gz", gzip.compress(bytes(257) + b"ustar"), "a tar archive"),
                                ("f.json", '{\n"data": 1}', "one JSON value"), ("g.txt", "EU B-ORG\nis O\nold O\n", "CoNLL")):
        refused(name, train(path, write(f"{folder}/{name}", content)), [name, word])
    result = plim.run(*train(path, f"{folder}/c.txt", "data.format=text"))
    plim.ok(result.returncode == 0, f"data.format: text takes any bytes {result.stderr.strip()}")
    refused("a table without the column", train(path, f"{folder}/t.csv", "data.field=body"), ["t.csv", "no column 'body'", "q, text, a"])
    refused("a row that is too long", train(path, write(f"{folder}/long.csv", "text,q\n\"a\nb\",1\nx,y,z\n")), ["long.csv:4: ", "more than 2 fields"])
    refused("one byte", train(path, write(f"{folder}/one.txt", "x")), ["one.txt", "holds one byte"])
    plan = ["plan", path, "-q", "--set"]
    refused("plan without the file", [*plan, f"data.train={folder}/none.txt"], ["data.train", "none.txt"])
    refused("plan without a file whose name is like the key", [*plan, f"data.train={folder}/data.train.txt"], ["job.yaml: key 'data.train': ", "data.train.txt"])
    refused("plan without the file of evaluations", [*plan, f"data.validation={folder}/none.txt"], ["data.validation", "none.txt"])
    refused("plan without the field", [*plan, f"data.train={folder}/t.jsonl", "--set", "data.field=body"], ["data.train", "t.jsonl:1: ", "'body' is missing"])
    elsewhere = plim.run("plan", path, "--device", "a100-80", "--set", f"data.train={folder}/none.txt")
    plim.ok(elsewhere.returncode == 0 and "not on this machine" in elsewhere.stderr, f"for another machine that is a note: {elsewhere.stderr.strip()}")
    limited = subprocess.run([plim.PLIMSOLL, "plan", path, "-q", "--set", f"data.train={folder}/t.jsonl", "--set", "data.max_length=10000000"], capture_output=True, text=True,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)))
    plim.ok("out of memory" not in limited.stderr and limited.returncode in (0, 3), f"long rows are looked at one by one: exit {limited.returncode} {limited.stderr.strip()[:200]}")


def words(folder, path):
    """CoNLL trains as the same sentences in JSON lines do."""
    sentences = [([f"w{i}", "is", "here"], ["B-PER" if i % 2 else "B-LOC", "O", "O"]) for i in range(30)]
    write(f"{folder}/w.jsonl", "".join(json.dumps({"tokens": t, "labels": l}) + "\n" for t, l in sentences))
    write(f"{folder}/w.txt", "\n\n".join("\n".join(f"{w} X {l}" for w, l in zip(t, ls)) for t, ls in sentences) + "\n")
    job = plim.job(folder, model__architecture="bert", model__num_key_value_heads=4, data__shuffle_buffer=1, training__objective="token_labels")
    got = [plim.run(*train(job, f"{folder}/{name}"), "--json") for name in ("w.jsonl", "w.txt")]
    losses = [plim.losses(g.stdout) for g in got]
    plim.ok(len(losses[0]) == 4 and losses[0] == losses[1], f"CoNLL: {losses} {got[1].stderr.strip()}")


def late(folder, path):
    """A bad record in the middle of a run: the work is saved, and with skip_bad it goes on."""
    bad = write(f"{folder}/late.jsonl", GOOD * 2 + "{broken\n" + GOOD)
    sets = ["--set", f"data.train={bad}", "--set", "data.shuffle_buffer=8", "--set", f"output.dir={folder}/late", "--steps", "20"]
    result = plim.run("train", path, "-q", *sets)
    steps = len(plim.losses(result.stdout))
    plim.ok(result.returncode == 2 and "late.jsonl:121: " in result.stderr and 0 < steps < 20, f"stopped after step {steps}: {result.stderr.strip()}")
    plim.ok(os.path.exists(f"{folder}/late/checkpoint-{steps:08d}/trainer.json"), "and saved that step")
    more = plim.run("train", path, "-q", *sets, "--resume", "--set", "data.skip_bad=true")
    plim.ok(more.returncode == 0 and min(plim.losses(more.stdout)) == steps + 1 and plim.events(more.stdout)[-1].get("bad_records") == 1, f"goes on from there {more.stderr.strip()}")


def packages(folder, path):
    whole = gzip.compress(GOOD.encode() * 50)
    refused("gzip that is cut off", train(path, write(f"{folder}/cut.jsonl.gz", whole[: len(whole) // 2])), ["cut.jsonl.gz", "damaged"])
    refused("a name that lies", train(path, write(f"{folder}/lie.jsonl.gz", GOOD)), ["job.yaml", "data.train", "lie.jsonl.gz", "gzip"])
    refused("files of two kinds", train(path, f"{folder}/corpus.txt,{write(folder + '/k.jsonl', GOOD)}"), ["job.yaml", "corpus.txt", "k.jsonl", "data.format"])
    refused("a glob that matches nothing", train(path, f"{folder}/none-*.txt"), ["job.yaml", "data.train", "none-*.txt", "no file matches"])
    os.mkdir(f"{folder}/empty")
    refused("an empty folder", train(path, f"{folder}/empty"), ["job.yaml", "data.train", "no file"])
    refused("a tokenizer that is not there", train(path, f"{folder}/corpus.txt", f"data.tokenizer={folder}/none.json"), ["job.yaml", "data.tokenizer", "none.json"])
    refused("messages without a template", train(path, f"{folder}/k.jsonl", "data.messages_field=m"), ["job.yaml", "template"])


def tokens(folder, path):
    made = plim.run("tokenize", f"{folder}/corpus.txt", "-o", f"{folder}/good.tok", "-q")
    plim.ok(made.returncode == 0, f"a good token file to spoil {made.stderr.strip()}")
    good = open(f"{folder}/good.tok", "rb").read()
    for name, at, word in [("its magic", 3, ""), ("its header", 40, "header"), ("its tokens", 1000, "bytes 256 to"), ("its checksums", len(good) - 3, "checksum table")]:
        spoiled = bytearray(good)
        spoiled[at] ^= 4
        bad = write(f"{folder}/bad.tok", bytes(spoiled))
        if word: refused(f"a token file with damage in {name}", train(path, bad), ["bad.tok", "damaged", word])
        result = plim.run("inspect", bad)
        plim.ok(result.returncode == 2 and "bad.tok" in result.stderr, f"inspect: damage in {name}: {result.stderr.strip()}")
    refused("a token file cut short", train(path, write(f"{folder}/bad.tok", good[:-100])), ["bad.tok", "damaged"])
    refused("a vocabulary larger than the model's", train(path, f"{folder}/good.tok", "model.vocab_size=200", "data.format=tokens"), ["job.yaml", "good.tok", "256", "200"])
    refused("tokenize without output", ["tokenize", f"{folder}/corpus.txt"], ["--output"])
    refused("tokenize of nothing", ["tokenize", f"{folder}/nothing.txt", "-o", f"{folder}/x.tok"], ["nothing.txt"])
    refused("tokenize of a bad line", ["tokenize", write(f"{folder}/b.jsonl", '{"text":1}\n'), "-o", f"{folder}/x.tok"], ["b.jsonl:1:", "number"])


with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_)
    lines(folder_, path_)
    forms(folder_, path_)
    words(folder_, path_)
    path_ = plim.job(folder_)
    late(folder_, path_)
    packages(folder_, path_)
    tokens(folder_, path_)
plim.done()
