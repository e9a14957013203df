#!/usr/bin/env python3
"""Files as they come: pipes, lines of many megabytes, byte order marks, keys given twice, small vocabularies and
small token files (E)."""
import json
import os
import resource
import stat
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20


def write(path, data):
    with open(path, "wb") as f: f.write(data.encode() if isinstance(data, str) else data)
    return path


def sets(*keys): return [x for key in keys for x in ("--set", key)]


def one_line(name, result, *words):
    plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words), f"{name}: exit {result.returncode}: {result.stderr.strip()}")


def pipes(folder, path):
    """a pipe in place of a file is refused by name, or read once; nothing waits for a writer that never comes."""
    pipe = f"{folder}/pipe.jsonl"
    os.mkfifo(pipe)
    one_line("data", plim.run("train", path, "-q", *sets(f"data.train={pipe}")), pipe, "not a regular file")
    one_line("a tokenizer", plim.run("plan", path, *sets(f"data.tokenizer={pipe}")), pipe, "is a pipe")
    one_line("a template", plim.run("plan", path, *sets("data.messages_field=m", f"data.chat_template={pipe}")), pipe, "is a pipe")
    one_line("a file to inspect", plim.run("inspect", pipe), pipe, "is a pipe")
    one_line("a job that nobody writes", plim.run("plan", pipe), pipe, "nothing came through it")
    with open(path) as f: text = f.read()
    result = subprocess.run(["bash", "-c", '"$0" plan -q <(cat "$1")', plim.PLIMSOLL, path], capture_output=True, text=True)
    plim.ok(result.returncode == 0 and "fits" in result.stdout and text, f"a job through a pipe {result.stderr.strip()}")


def targets(folder, path):
    """What is no file is not replaced by one: a pipe, or a link to it."""
    pipe, link = f"{folder}/target", f"{folder}/link"
    os.mkfifo(pipe), os.symlink(pipe, link)
    for name in (pipe, link):
        for args in (["plan", path, "-q", "--snapshot", name], ["plan", path, "-q", "--html", name], ["train", path, "-q", "--steps", 1, "--no-checkpoint", "--trace", name],
                     ["tokenize", f"{folder}/corpus.txt", "-q", "-o", name]):
            one_line(f"{args[0]} {args[-2]} into {os.path.basename(name)}", plim.run(*args), name, "is a pipe")
    plim.ok(stat.S_ISFIFO(os.lstat(pipe).st_mode) and os.path.islink(link), "and both are there as before")
    left = [n for n in os.listdir(folder) if n.startswith(("target.", "link."))]
    plim.ok(not left, f"with nothing beside them {left}")


def long_lines(folder):
    """eight times the line takes about eight times the time; looking at it again for each piece took sixty times."""
    used = []
    for megabytes in (8, 64):
        data = write(f"{folder}/one.jsonl", json.dumps({"text": "x y " * (megabytes * 250000)}) + "\n")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = plim.run("tokenize", data, "-o", f"{folder}/one.tok", "-q", "--max-line", "100MiB", "--threads", "1")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        plim.ok(result.returncode == 0, f"a line of {megabytes} MB {result.stderr.strip()}")
    plim.ok(used[1] < 24 * used[0] + 0.1, f"reading a line is linear: {used[0]:.3f} s, eight times it {used[1]:.3f} s")


def tokens_of(folder, line, *args):
    data = write(f"{folder}/twice.jsonl", line + "\n")
    out = f"{folder}/twice.tok"
    result = plim.run("tokenize", data, "-o", out, "-q", "--no-resume", *args)
    if result.returncode: return result.stderr.strip()
    with open(out, "rb") as f: raw = f.read()
    count = int.from_bytes(raw[32:40], "little")
    return bytes(raw[256 + 2 * i] for i in range(count)).decode()


def small_things(folder, path):
    """What people have in their files."""
    with open(path) as f: bom = write(f"{folder}/bom.yaml", "\ufeff" + f.read())
    result = plim.run("plan", bom, "-q")
    plim.ok(result.returncode == 0, f"YAML with a byte order mark {result.stderr.strip()}")
    flow = write(f"{folder}/flow.yaml", "\ufeff{budget: 64MiB, model: {architecture: llama}}\n")
    result = plim.run("plan", flow, "-q")
    plim.ok("document start" not in result.stderr, f"in flow style as well {result.stderr.strip()}")
    marked = write(f"{folder}/marked.txt", "\ufeff" + plim.CORPUS)
    plain, with_mark = (plim.run("train", path, "-q", "--steps", 2, "--no-checkpoint", "--set", f"data.train={p}") for p in (f"{folder}/corpus.txt", marked))
    plim.ok(plim.losses(plain.stdout) and plim.losses(with_mark.stdout) == plim.losses(plain.stdout), f"text as bytes with a byte order mark {with_mark.stderr.strip()}")
    for line in ('{"text":"first","text":"last"}', '{"text":12,"text":"last"}', r'{"text":"a\nb\nc","x":1,"te\u0078t":"last"}'):
        plim.ok(tokens_of(folder, line) == json.loads(line)["text"], f"of a key given twice the last counts, as in Python: {line}: {tokens_of(folder, line)}")
    template = write(f"{folder}/t.jinja", "{% for m in messages %}[{{ m.content }}]{% endfor %}")
    line = '{"m":[{"role":"user","content":"first","content":"last"}]}'
    got = tokens_of(folder, line, "--messages-field", "m", "--chat-template", template)
    plim.ok(got == "[last]", f"and in a conversation: {got}")


def small_token_files(folder, path):
    """A token file of a small vocabulary needs no key, and costs what it is."""
    words = {w: i for i, w in enumerate(["<unk>", "ship", "bar", "tide", "past", "the", "went"])}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
                 "model": {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": words}}
    write(f"{folder}/tokenizer.json", json.dumps(tokenizer))
    write(f"{folder}/small.txt", "the ship went past the bar\n" * 2000)
    result = plim.run("tokenize", f"{folder}/small.txt", "-o", f"{folder}/small.tok", "-q", "--tokenizer", f"{folder}/tokenizer.json")
    plim.ok(result.returncode == 0, f"seven words {result.stderr.strip()}")
    small = sets(f"data.train={folder}/small.tok", "model.vocab_size=16")
    result = plim.run("train", path, "-q", "--no-checkpoint", *small)
    plim.ok(result.returncode == 0, f"token files of a vocabulary below 256 under format: auto {result.stderr.strip()}")
    one_line("text still needs 256", plim.run("train", path, "-q", "--no-checkpoint", *sets("model.vocab_size=16")), "256 or more")
    plan, _ = plim.plan(path, *small)
    size = os.path.getsize(f"{folder}/small.tok")
    plim.ok(plan["loader"]["bytes"] < size + MIB // 8, f"the loader of a token file of {size} bytes is planned with {plan['loader']['bytes']}")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder)
    pipes(folder, path)
    targets(folder, path)
    long_lines(folder)
    small_things(folder, path)
    small_token_files(folder, path)
plim.done()
