#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Tokenizers and chat templates from strangers: reading and using them stays inside the budget and the stated limits,
and what exceeds one is one clear line. Memory is what the system says of the ended process."""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

MIB = 1 << 20


def measured(*args):
    """(exit code, stdout, stderr, peak bytes) of the program. The peak is at least this script's own size."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([plim.PLIMSOLL, *map(str, args)], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        return process.returncode, out.read(), err.read(), usage.ru_maxrss * 1024


def alphabet():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in shown}
    for b in range(256):
        if b not in letters: letters[b] = chr(256 + len(letters) - len(shown))
    return [letters[b] for b in range(256)]


def apart(make):
    """Runs in a process of its own: what this one has ever taken counts as its children's."""
    def call(*args, **keys):
        pid = os.fork()
        if pid == 0:
            make(*args, **keys)
            os._exit(0)
        os.waitpid(pid, 0)
        return args[0]
    return call


@apart
def tokenizer(folder, size=256, text=lambda: None, parts=dict):
    """A byte-level BPE of `size` tokens in folder; parts() replace those of tokenizer.json, text() all of it."""
    letters = alphabet()
    vocab = {c: i for i, c in enumerate(letters)}
    merges, known = [], iter(list(vocab))
    while len(vocab) < size:
        left = next(known, None)
        if left is None: known = iter(list(vocab)[256:])
        for right in letters[:size - len(vocab)] if left else ():
            vocab[left + right] = len(vocab)
            merges.append(f"{left} {right}")
    spec = {"version": "1.0", "normalizer": None, "post_processor": None, "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}, **parts()}
    os.makedirs(folder)
    with open(f"{folder}/tokenizer.json", "w") as f: f.write(text() or json.dumps(spec, ensure_ascii=False))


def one_line(err): return err.count("\n") == 1


with tempfile.TemporaryDirectory() as folder:
    size = 100000
    large = tokenizer(f"{folder}/large", size)
    path = plim.job(folder, model__vocab_size=size, model__hidden_size=8, model__intermediate_size=16, model__num_attention_heads=2, model__num_key_value_heads=1,
                    model__num_layers=1, data__tokenizer=large, data__max_length=16, training__batch_size=1, training__gradient_accumulation_steps=1, training__steps=1)
    first = plim.run("train", path, "-q")
    plim.ok(first.returncode == 0, f"a model of {size} tokens {first.stderr.strip()}")
    ran = {}
    for budget in (20, 22, 24, 28, 32, 48):
        for name, args in (("generate", ["generate", f"{folder}/run", "-p", "The ship", "-n", 4, "--device", "cpu", "-q"]), ("eval", ["eval", path, "--rows", 2, "-q"])):
            code, _, err, peak = measured(*args, "--budget", f"{budget}MiB")
            ran[name] = ran.get(name) or code == 0
            plim.ok(peak <= budget * MIB and (code == 0 or (code in (2, 3) and one_line(err) and "budget" in err)), f"{name} in {budget} MiB: {'runs' if code == 0 else err.strip()}, {peak / MIB:.1f} MiB")
    plim.ok(ran["generate"] and ran["eval"], "and runs where there is room")

    small = tokenizer(f"{folder}/small")
    with open(f"{folder}/chat.jsonl", "w") as f:
        for i in range(3000): f.write(json.dumps({"messages": [{"role": "user", "content": f"the {i}th question"}, {"role": "assistant", "content": f"its {i}th answer"}]}) + "\n")
    for name, body, good in (("repeats each message 3,000 times", "{% for m in messages %}{% for i in range(3000) %}{{ m.content }}{% endfor %}{% endfor %}", False),
                             ("writes 30 KB after each conversation", "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ 'x' * 30000 }}", True),
                             ("keeps 3,000 copies", "{% set ns = namespace(x=[]) %}{% for i in range(3000) %}{% set ns.x = ns.x + [messages[0].content * 50] %}{% endfor %}{{ ns.x[0] }}", False)):
        with open(f"{folder}/t.jinja", "w") as f: f.write(body)
        chat = plim.job(folder, model__num_layers=1, data__train=f"[{folder}/chat.jsonl]", data__tokenizer=small, data__messages_field="messages", data__chat_template=f"{folder}/t.jinja",
                        data__max_length=64, training__steps=4)
        planned, _ = plim.plan(chat)
        code, _, err, peak = measured("train", chat, "-q", "--no-checkpoint")
        plim.ok(good == bool(planned), f"plan reads the first conversations, too: {'plans' if planned else 'refuses'}")
        total = planned["peak_bytes"]["total"] if planned else 64 * MIB
        plim.ok((code == 0) == good and peak <= total, f"a template that {name}: {'trains' if code == 0 else err.strip()}, {peak / MIB:.1f} of {total / MIB:.1f} MiB")
        plim.ok(good or (code == 2 and one_line(err) and "bytes" in err), "refused in one line with the limit")

    grow = tokenizer(f"{folder}/grow", parts=lambda: {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * 1000}})
    huge = tokenizer(f"{folder}/huge", parts=lambda: {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * MIB}})
    twice = tokenizer(f"{folder}/twice", parts=lambda: {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 16}] * 12}})
    many = tokenizer(f"{folder}/many", parts=lambda: {"post_processor": {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"a": {"id": "a", "ids": [1] * 1000000, "tokens": ["a"]}}}})
    flat = tokenizer(f"{folder}/flat", text=lambda: "[" + "1," * (20 * MIB) + "1]")
    deep = tokenizer(f"{folder}/deep", text=lambda: "[" + ",".join(["{" + ",".join(f'"{i}":{{}}' for i in range(50)) + "}"] * 200000) + "]")
    with open(f"{folder}/plain.txt", "w") as f: f.write("a" * 400000 + "\n")
    for name, what, limit, most in (("Replace 'a' by 1,000 characters", grow, "normalizer", 64), ("Replace 'a' by 1 MiB", huge, "normalizer", 64), ("Replace twelve times over", twice, "normalizer", 64),
                                    ("TemplateProcessing with 1,000,000 ids", many, "256 ids", 160), ("[1,1,...]", flat, "512 MiB", 560), ("maps in a list", deep, "512 MiB", 560)):
        code, _, err, peak = measured("tokenize", f"{folder}/plain.txt", "--format", "lines", "-t", what, "-o", f"{folder}/out.tok", "--no-resume", "-q")
        plim.ok(code == 2 and one_line(err) and limit in err and peak < most * MIB, f"{name}: {err.strip()[:200]}, {peak / MIB:.1f} MiB")
    for name, what in (("Replace 'a' by 1 MiB", huge), ("[1,1,...]", flat)):
        code, _, err, peak = measured("generate", f"{folder}/run", "-p", "a" * 3000, "-n", 2, "--device", "cpu", "--tokenizer", what, "-q", "-b", "64MiB")
        plim.ok(code in (2, 3) and one_line(err) and peak <= 64 * MIB, f"generate in 64 MiB with {name}: {err.strip()[:200]}, {peak / MIB:.1f} MiB")
plim.done()
