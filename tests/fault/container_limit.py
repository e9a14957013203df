#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""A server of a model of 96 MB in a real control group of 256 MB, started by the image's entry point without a budget, with more clients than
it takes: all are answered or refused, and the system kills nobody. Skips itself where groups cannot be made.

By hand, for longer: PLIMSOLL_LOAD_REQUESTS=2000 tests/fault/container_limit.py"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import control_group
import llama_folder
import plim
import server

MB, MIB = 1000 * 1000, 1 << 20
LIMIT, CLIENTS = 256 * MB, 32
REQUESTS = int(os.environ.get("PLIMSOLL_LOAD_REQUESTS", "40"))
SIZES = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=8, head_dim=64, vocab_size=7168,
             max_position_embeddings=2048)


def ask(port, method, path, body=None):
    c = server.http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        c.request(method, path, body)
        r = c.getresponse()
        return r.status, r.read().decode()
    except OSError: return 0, ""
    finally: c.close()


def load(port, group):
    """Answers by status, and the most that the group used of what cannot be dropped."""
    answers, peak, numbers, lock = [], 0, iter(range(REQUESTS)), threading.Lock()

    def client():
        while True:
            with lock: number = next(numbers, None)
            if number is None: return
            body = json.dumps({"prompt": plim.CORPUS[40 * number % 9000:][:40 + 37 * number % 160], "max_tokens": 4, "temperature": 0})
            answers.append(ask(port, "POST", "/v1/completions", body)[0])

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for t in threads: t.start()
    while any(t.is_alive() for t in threads):
        peak = max(peak, group.used())
        time.sleep(0.03)
    return {a: answers.count(a) for a in set(answers)}, peak


def main():
    server.need_http()
    with control_group.Group() as group, tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/llama", **SIZES)
        size = os.path.getsize(f"{model}/model.safetensors")
        group.limit(LIMIT)
        env = {**os.environ, "PLIMSOLL": os.path.abspath(plim.PLIMSOLL), "MODEL": model, "HOST": "127.0.0.1", "PORT": "0", "DEVICE": "cpu", "THREADS": "1",
               "CONTROL": "none"}
        process = subprocess.Popen([os.path.join(plim.SRC_DIR, "deploy", "entrypoint")], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, preexec_fn=group.enter)
        log = server.background(process.stderr.read)
        found = re.search(r":(\d+)$", process.stdout.readline().strip())
        port, until = int(found.group(1)) if found else 0, time.time() + 120
        while found and process.poll() is None and time.time() < until and ask(port, "GET", "/health")[0] != 200: time.sleep(0.05)
        metrics = ask(port, "GET", "/metrics")[1]
        budget = re.search(r"^plimsoll_budget_bytes\S* (\d+)", metrics, re.M)
        answers, peak = load(port, group)
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        log.join()
        budget = int(budget.group(1)) if budget else 0
        plim.ok(LIMIT // 2 < budget <= LIMIT // 10 * 9, f"cgroup v{group.version}: the budget follows from the limit: {budget / MB:.0f} of {LIMIT / MB:.0f} MB")
        plim.ok(sum(answers.values()) == REQUESTS and set(answers) <= {200, 400, 429} and answers.get(200), f"a model of {size / MB:.0f} MB, {CLIENTS} clients: {answers}")
        plim.ok(code == 0 and group.kills() == 0 and peak <= LIMIT, f"at most {peak / MB:.0f} MB in use, {group.kills()} killed, exit {code} {'' if code == 0 else log.result[-400:]}")
    plim.done()


main()
