#!/usr/bin/env python3
"""generate answers a chat model's prompt through its template, --raw goes on with the text; chat holds a conversation over a pipe:
history, its end in the context, /clear and /exit. `help COMMAND` is `COMMAND --help`."""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder
import plim

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
FLAGS = ("-t", 0, "-n", 6, "--device", "cpu", "-q")


def rendered(*turns):
    return "".join(f"<{role}>{text}\n" for role, text in turns) + "<assistant>"


def tokens(model, prompt, *flags):
    """Generated ids and the prompt's length."""
    out = plim.run("generate", model, "-p", prompt, *FLAGS, "--json", *flags)
    if not plim.ok(out.returncode == 0, f"generate {flags} {out.stderr.strip()}"): return None, 0, None
    told = json.loads(out.stdout)
    return told["tokens"], told["prompt_tokens"], told["text"]


def talk(model, lines, *flags):
    return subprocess.run([plim.PLIMSOLL, "chat", model, *map(str, FLAGS), *map(str, flags)], input=lines, capture_output=True, text=True, timeout=120)


def check_generate(model, plain):
    ids, count, _ = tokens(model, "Hi")
    raw_ids, raw_count, _ = tokens(model, rendered(("user", "Hi")), "--raw")
    plim.ok(ids == raw_ids and count == raw_count, f"the template is what generate uses: {ids} {raw_ids}")
    plim.ok(tokens(model, "Hi", "--raw")[1] == 2, "--raw: the prompt alone")
    plim.ok(tokens(plain, "Hi")[1] == 2, "a model without a template goes on with the text")
    open(os.path.join(model, "chat_template.jinja"), "w").write("{% if %}")
    out = plim.run("generate", model, "-p", "Hi", *FLAGS)
    plim.ok(out.returncode == 2 and "--raw" in out.stderr and out.stderr.count("\n") == 1, f"a template that cannot be read: {out.stderr.strip()}")
    named = os.path.join(os.path.dirname(model), "no chat template")
    os.symlink(model, named)
    out = plim.run("generate", named, "-p", "Hi", *FLAGS)
    plim.ok(out.returncode == 2 and "--raw" in out.stderr, f"nor is it missing for the folder's name: {out.stderr.strip()}")
    os.remove(named)
    os.remove(os.path.join(model, "chat_template.jinja"))


def check_chat(model, plain):
    first = tokens(model, rendered(("user", "Hi")), "--raw")[2]
    second = tokens(model, rendered(("user", "Hi"), ("assistant", first), ("user", "So?")), "--raw")[2]
    fresh = tokens(model, rendered(("user", "So?")), "--raw")[2]
    told = talk(model, "Hi\n\nSo?\n")
    plim.ok(told.returncode == 0 and told.stdout == f"{first}\n{second}\n", f"two lines, two answers, the second with the first in mind {told}")
    told = talk(model, "Hi\n/clear\nSo?\n/exit\nnever\n")
    plim.ok(told.stdout == f"{first}\n{fresh}\n", "/clear forgets, /exit ends")
    system = tokens(model, rendered(("system", "Short."), ("user", "Hi")), "--raw")[2]
    plim.ok(talk(model, "Hi", "--system", "Short.").stdout == f"{system}\n", "a system message; a last line without its end")
    told = talk(model, "Hi\nSo?\n", "--max-context", 48)
    plim.ok(told.returncode == 0 and told.stdout == f"{first}\n{fresh}\n", f"what outgrows the context is forgotten {told}")
    told = talk(model, "x" * 100 + "\nHi\n", "--max-context", 48)
    plim.ok(told.returncode == 0 and told.stdout == f"{first}\n" and "beyond the context of 48" in told.stderr, f"a message that is too long is refused, and the talk goes on {told.stderr}")
    told = talk(plain, "Hi\n")
    plim.ok(told.returncode == 2 and "no chat template" in told.stderr and not told.stdout, f"a model without a template: {told.stderr.strip()}")


def check_help():
    for name in ("train", "chat"):
        plim.ok(plim.run("help", name).stdout == plim.run(name, "--help").stdout != "", f"help {name}")
    out = plim.run("help", "trian")
    plim.ok(out.returncode == 2 and "train" in out.stderr, "help of a command that is none")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        plain = llama_folder.make(os.path.join(folder, "plain"))
        model = llama_folder.make(os.path.join(folder, "model"))
        json.dump({"chat_template": TEMPLATE}, open(os.path.join(model, "tokenizer_config.json"), "w"))
        check_generate(model, plain)
        check_chat(model, plain)
    check_help()
    plim.done()
