#!/usr/bin/env python3
"""Random servers and hostile clients: model families, real tokenizers of the three kinds and of GGUF files, budgets from the stated minimum up.
The system says how large each process was (VmHWM, read from here): none above its budget, and a plain request is answered in the end. Each server also
gets what it promised all at once, so that its peak can be held against its plan: a plan far above it reserves what nobody can use.

    python3 tests/fault/serve_random.py 500             # the whole sweep, for a machine with time
    python3 tests/fault/serve_random.py 1 --seed 7 --only 31 --verbose"""
# run-tests: timeout=600, not=asan, not=tsan
import argparse
import concurrent.futures
import http.client
import json
import os
import random
import re
import socket
import sys
import tempfile

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import gguf_file
import llama_folder
import plim
from plim import ok
import server
import tiny_bert

MIB = 1 << 20
GOLDEN = os.path.join(plim.SRC_DIR, "tests", "golden", "tokenizer")
TOKENIZERS = ("gpt2", "llama2", "llama3", "mistral", "qwen2", "roberta", "t5", "bert", "odd")
VOCAB = 2048
SIZES = {"model__vocab_size": VOCAB, "training__steps": 1, "data__max_length": 128}


def trained(folder, name, **changes):
    """The folder of a model that has seen one step."""
    where = f"{folder}/{name}"
    os.makedirs(where)
    result = plim.run("train", plim.job(where, **{**SIZES, **changes}, output__dir=f"{where}/run"), "-q")
    if result.returncode: raise SystemExit(f"{name}: {result.stderr}")
    return f"{where}/run"


def gguf(folder):
    """A GGUF file of a LLaMA with the tokenizer of gpt2.json in it."""
    made = llama_folder.make(f"{folder}/for-gguf", vocab_size=VOCAB)
    with open(f"{GOLDEN}/gpt2.json", encoding="utf-8") as f: tree = json.load(f)
    vocab = dict(tree["model"]["vocab"])
    vocab.update({t["content"]: t["id"] for t in tree["added_tokens"]})
    tokens, types = [f"[PAD{i}]" for i in range(VOCAB)], [5] * VOCAB
    for text, i in vocab.items(): tokens[i], types[i] = text, 1
    merges = [m if isinstance(m, str) else " ".join(m) for m in tree["model"]["merges"] if m != "#version: 0.2"]
    meta, tensors = gguf_file.from_folder(made)
    meta.update({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": merges, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    path = f"{folder}/model.gguf"
    gguf_file.write(path, meta, tensors)
    return path


def models(folder):
    tiny_bert.make_model(f"{folder}/bert")
    return {
        "llama": lambda: server.blank_model(f"{folder}/llama", vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2),
        "llama-wide": lambda: server.blank_model(f"{folder}/wide", vocab_size=VOCAB, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, max_position_embeddings=512),
        "gpt2": lambda: trained(folder, "gpt2", model__architecture="gpt2", model__num_key_value_heads=4),
        "qwen2": lambda: trained(folder, "qwen2", model__architecture="qwen2"),
        "t5": lambda: trained(folder, "t5", **{**plim.T5, "model__vocab_size": VOCAB, "data__train": f"[{plim.pairs(folder)}]"}),
        "bert": lambda: f"{folder}/bert",
        "gguf": lambda: gguf(folder),
    }


# --- what is sent ---------------------------------------------------------------------------------------------

def long_text(rng, most):
    n = int(most * rng.choice((0.01, 0.1, 0.45, 0.7, 0.9)))
    unit = rng.choice(("th", "1", "0123456789", "a", " ", "\n", "\u00e9", "e\u0301", "\ufdfa", "\u2581", "ab ", "The ship ", "\u4f60\u597d", "\uac00", "\U0001f600", "0\u030a", "x\t", "<|endoftext|>"))
    if rng.random() < 0.2: return "".join(chr(rng.randrange(32, 0x3000)) for _ in range(n // 3))
    return unit * (n // len(unit.encode()) + 1)


def deep(rng, most):
    pair = rng.choice(("[]", '{"a":|}', "[0,"))
    if pair == "[0,": return "[" + "0," * (most // 3) + "0]"
    n = min(rng.choice((100, 127, 5000)), most // 8)
    return ("[" * n + "]" * n) if pair == "[]" else '{"a":' * n + "1" + "}" * n


def body(rng, kind, most):
    """A path and a body."""
    text = lambda: long_text(rng, most)
    what = rng.choice(("word", "tokens", "deep", "many", "chat", "parts", "tokenize", "detokenize", "likely", "echo", "stream", "embed", "stops", "plain", "garbage"))
    if what == "deep": return "/v1/completions", '{"prompt": "x", "user": ' + deep(rng, most) + "}"
    if what == "garbage": return "/v1/completions", "{" * rng.randrange(1, most)
    if what == "tokenize": return "/tokenize", {"prompt": text()}
    if what == "detokenize": return "/detokenize", {"tokens": [rng.randrange(VOCAB) if rng.random() < 0.5 else 5] * (most // 5)}
    if what == "chat": return "/v1/chat/completions", {"messages": [{"role": "user", "content": long_text(rng, most // 40)} for _ in range(30)]}
    if what == "parts": return "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "th"}] * (most // 40)}]}
    if what == "embed" or kind == "bert": return "/v1/embeddings", {"input": rng.choice((text(), ["a"] * 2048, ["word " * 6] * (most // 40), [text()], [[1, 2, 3]] * (most // 20)))}
    ask = {"prompt": text(), "max_tokens": rng.choice((1, 8, 30)), "ignore_eos": True}
    if what == "tokens": ask["prompt"] = [3] * (most // 3)
    if what == "many": ask = {"prompt": ["th" * 30] * rng.choice((8, 64, 128)), "max_tokens": 4}
    if what == "likely": ask = {"prompt": "The ship", "max_tokens": 40, "logprobs": 20, "n": rng.choice((1, 8, 128)), "ignore_eos": True}
    if what == "echo": ask.update(echo=True, n=rng.choice((1, 4, 64)), logprobs=rng.choice((0, 5)), prompt=long_text(rng, most // 50))
    if what == "stream": ask = {"prompt": "th" * 10, "max_tokens": 60, "stream": True, "n": rng.choice((1, 8)), "logprobs": 5, "ignore_eos": True}
    if what == "stops": ask = {"prompt": "x", "stop": ["y" * 256] * 16, "max_tokens": 20}
    if what == "plain": ask = {"prompt": "The ship", "max_tokens": 60, "ignore_eos": True}
    return "/v1/completions", ask


def send(s, path, ask, seen):
    text = ask if isinstance(ask, str) else json.dumps(ask, ensure_ascii=False)
    try:
        seen.append(s.request("POST", path, text.encode(), timeout=120)[0])
    except (OSError, http.client.HTTPException) as e:
        seen.append(type(e).__name__)


def idle(s, count):
    """Connections that want nothing, or begin and never end."""
    held = []
    for i in range(count):
        try:
            c = socket.create_connection(("127.0.0.1", s.port), timeout=10)
            if i % 2: c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n" + (b"X-Long: " + b"y" * 7000 + b"\r\n\r\n" + b"z" * 20000 if i % 4 == 1 else b""))
            held.append(c)
        except OSError:
            break
    return held


def ask_only(s, path, ask, held):
    """A connection that has asked and does not read, unless the server has hung up on it."""
    try:
        held.append(server.open_connection(s, path, ask))
    except OSError: pass


def drop(c):
    """Hangs up without reading."""
    try:
        c.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    c.close()


def fill(s, kind, limit):
    """All that was promised, at once: idle connections with long heads, as many answers as are taken, and behind them the largest bodies one by one."""
    plan = json.loads(s.get("/hold")[1])["plan"]
    most, context = int(re.search(r"(\d+) connections$", s.log(), re.M).group(1)), plan["context"]
    held, ids = [], [3 + i % (VOCAB // 2) for i in range(context)]
    for _ in range(most // 2 - 1):
        held.append(socket.create_connection(("127.0.0.1", s.port), timeout=60))
        try:
            held[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"y" * 3900)
        except OSError: pass  # hung up on already
    for n in [] if kind == "bert" else (64, 32, 16, 8, 4, 2, 1, 1):
        for likely in (20, 5, None):
            tokens = 3 * context // 4
            ask = {"prompt": ids[:tokens], "max_tokens": plan.get("answer") or context - tokens, "n": n, "ignore_eos": True, "frequency_penalty": 0.5, "temperature": 1}
            if likely: ask["logprobs"] = likely
            if len(held) < most - 4: ask_only(s, "/v1/completions", ask, held)
    for n in range(1, context) if kind == "bert" else (): send(s, "/v1/embeddings", {"input": "word " * n}, [])
    room = int(limit * 0.98)
    for n in (512, 256, 128, 64, 32) if kind == "bert" else ():
        text = "word " * min(context // 2, room // n // 5 - 4)
        send(s, "/v1/embeddings", {"input": [text] * n}, [])
        ask_only(s, "/v1/embeddings", {"input": [text] * n}, held)
    units = ("th", "1", "1 ", "\t", " ", "e\u0301", "\u4f60\u597d", "\uac00", "The ship went down to the sea. ")
    texts = [unit * ((room - 80) // len(unit.encode())) for unit in units]
    words = " ".join(f"w{i:x}" for i in range(room // 7))
    for text in texts + [words]: send(s, "/tokenize", {"prompt": text}, [])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i in range(0, 40): pool.submit(send, s, "/v1/embeddings" if kind == "bert" else "/tokenize", {("input" if kind == "bert" else "prompt"): words[i * 900 % len(words):][:900]}, [])
    send(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "th" * (room // 2 - 200)}]}]}, [])
    send(s, "/v1/completions", '{"prompt": "x", "user": ' + deep(random.Random(3), room) + "}", [])
    for c in held: drop(c)


def calm(s):
    """Does it answer, and is nothing left to do?"""
    try:
        return s.idle()
    except (OSError, http.client.HTTPException):
        return False


def body_limit(s):
    """Bytes of a body that are taken, as a refusal says."""
    told = s.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
    return int(re.search(rb"larger than the (\d+) bytes", told).group(1))


# --- servers --------------------------------------------------------------------------------------------------

def stated_minimum(model, flags):
    """Bytes that the program asks for, step by step until it takes them; how many times it asked."""
    budget, asked = 12 << 20, 0
    while asked < 12:
        with server.Server(model, "--budget", budget, *flags, program=plim.PLIMSOLL) as s:
            if s.port and s.process.poll() is None: return budget, asked
            missing = re.search(r"\((\d+) bytes\) missing", s.log().splitlines()[-1])
        if not missing: raise SystemExit(f"{model} {flags}: {s.log()}")
        budget, asked = budget + int(missing.group(1)), asked + 1
    raise SystemExit(f"{model}: no budget is enough")


def one(folder, made, number, seed, requests, verbose):
    """Planned and measured bytes of a server; None: it did not come up."""
    rng = random.Random(f"{seed}/{number}")
    kind = rng.choice(list(made))
    model = made[kind]
    tokenizer = None if kind in ("bert", "gguf") else rng.choice(TOKENIZERS)
    flags = ["--tokenizer", f"{GOLDEN}/{tokenizer}.json"] if tokenizer else []
    if kind != "bert": flags += ["--chat-template", f"{folder}/chat.jinja"]
    if rng.random() < 0.3: flags += ["--http-threads", rng.choice((1, 2, 8))]
    if rng.random() < 0.2: flags += ["--max-body", rng.choice(("32KiB", "256KiB", "1MiB"))]
    least, asked = stated_minimum(model, flags)
    budget = int(least * rng.choice((1, 1, 1.05, 1.3, 2, 4)))
    if budget == least: budget += 256 << 10  # a process is some pages larger or smaller from start to start
    name = f"{number}: {kind} {tokenizer or 'its own'} {budget / MIB:.1f} MiB of at least {least / MIB:.1f}"
    with server.Server(model, "--budget", budget, *flags, program=plim.PLIMSOLL) as s:
        if not s.port or s.process.poll() is not None:
            ok(False, f"{name}: does not come up: {s.log()[-300:]}")
            return None
        seen, limit = [], body_limit(s)
        held = idle(s, rng.choice((0, 20, 60)))
        with concurrent.futures.ThreadPoolExecutor(rng.choice((1, 4, 12))) as pool:
            for _ in range(requests): pool.submit(send, s, *body(rng, kind, int(limit)), seen)
        for c in held: drop(c)
        s.wait_for(lambda: calm(s))
        fill(s, kind, limit)
        s.wait_for(lambda: calm(s))
        hold, top = json.loads(s.get("/hold")[1]), server.resident(s.process)[1]
        plain = ("/v1/embeddings", {"input": "The ship"}) if kind == "bert" else ("/v1/completions", {"prompt": "The ship", "max_tokens": 2})
        last = s.request("POST", *plain)
        code = s.stop()
    total = hold["plan"]["total"]
    if verbose: print(f"# {flags} {hold['plan']}")
    counts = {str(c): sum(str(x) == str(c) for x in seen) for c in set(seen)}
    ok(top <= budget and last[0] == 200 and code == 0, f"{name}: {top / MIB:.2f} MiB at most, planned {total / MIB:.2f} ({100 * (total / top - 1):+.1f} %), asked {asked} times, {last[0]} {code} {counts}")
    return total, top, asked


def one_long_text(model):
    """A body as long as is allowed may be one text."""
    flags = ["--max-body", "256KiB"]
    with server.Server(model, "--budget", stated_minimum(model, flags)[0] + (256 << 10), *flags, program=plim.PLIMSOLL) as s:
        status, answer = s.post("/tokenize", {"prompt": "The ship " * 28000})
        ok("has more than" in str(answer), f"a text of 246 KiB is read and counted: {status} {answer}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/chat.jinja", "w") as f: f.write(server.TEMPLATE)
        made = {name: make() for name, make in models(folder).items()}
        one_long_text(made["gguf"])
        numbers = range(args.count) if args.only is None else [args.only]
        got = [r for r in (one(folder, made, n, args.seed, args.requests, args.verbose) for n in numbers) if r]
    near = sum(total <= 1.1 * top for total, top, _ in got)
    over = sorted(100 * (total / top - 1) for total, top, _ in got)
    if args.only is None: ok(over[len(over) // 2] <= 15, f"plans are near the peak: median {over[len(over) // 2]:.1f} % over it, most {over[-1]:.1f} %")
    print(f"# {near} of {len(got)} plans are within 10 % of the peak; the stated minimum was taken at once by {sum(a == 1 for _, _, a in got)}")
    plim.done()


main()
