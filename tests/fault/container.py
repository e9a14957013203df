#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Every command in a container, without --budget: the limit, less what others in it use, is the line. The container is a folder of
files that are kept true to the process (support/machine.py), and a stand-in for the kernel kills whatever passes the limit.

By hand, more sizes: PLIMSOLL_CONTAINERS=150,160,...,400 tests/fault/container.py"""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder
import plim
import server
import tiny_bert
from machine import Machine

MIB = 1 << 20
OTHERS = 12 * MIB
SIZES = [int(n) for n in os.environ.get("PLIMSOLL_CONTAINERS", "150,192").split(",")]


class Container(Machine):
    """A control group of so many MiB, of which others use some: files for the program, SIGKILL for who takes more."""

    def __init__(self, mib):
        super().__init__(8 << 30, OTHERS)
        self.limit, self.kills, self.peak = mib * MIB, 0, 0
        while not os.path.exists(f"{self.root}/sys/fs/cgroup/memory.max"): time.sleep(0.005)

    def run(self, *args):
        return self.end(self.start(*args))

    def start(self, *args, **more):
        process = subprocess.Popen([plim.PLIMSOLL, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "PLIMSOLL_MACHINE": self.root}, **more)
        self.follow(process.pid)
        threading.Thread(target=self.watch, args=(process,), daemon=True).start()
        return process

    def watch(self, process):
        while process.poll() is None:
            taken = self.ours(process.pid)
            self.peak = max(self.peak, taken)
            if taken + OTHERS > self.limit:
                self.kills += 1
                return process.kill()
            time.sleep(0.003)

    def end(self, process):
        try: out, err = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        self.pid = None
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def post(port, number):
    body = json.dumps({"prompt": plim.CORPUS[40 * number:40 * number + 90], "max_tokens": 6, "temperature": 0})
    one = server.http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        one.request("POST", "/v1/completions", body)
        return one.getresponse().status
    except OSError: return 0
    finally: one.close()


def serve(box, model, socket):
    process = box.start("serve", model, "--port", 0, "--device", "cpu", "--threads", 2, "--control", socket)
    found = re.search(r":(\d+)$", process.stdout.readline().strip())
    until, answers = time.time() + 300, []
    while found and time.time() < until and process.poll() is None:
        try:
            if server.socket.create_connection(("127.0.0.1", int(found.group(1))), 1).close() is None and health(int(found.group(1))) == 200: break
        except OSError: pass
        time.sleep(0.02)
    threads = [threading.Thread(target=lambda i=i: answers.append(post(int(found.group(1)), i))) for i in range(24)] if found else []
    for t in threads: t.start()
    for t in threads: t.join()
    raised = plim.run("ctl", socket, "budget", box.limit + MIB)
    plim.ok(raised.returncode != 0 and "the container's limit" in raised.stdout + raised.stderr, f"ctl budget above it: {(raised.stdout + raised.stderr).strip()[:200]}")
    if process.poll() is None: process.terminate()
    result = box.end(process)
    plim.ok(result.returncode == 0 and len(answers) == 24 and set(answers) <= {200, 400, 429} and 200 in answers,
            f"{box.limit // MIB} MiB, serve: {sorted(answers)} {'' if result.returncode == 0 else result.stderr[-300:]}")


def health(port):
    one = server.http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        one.request("GET", "/health")
        return one.getresponse().status
    finally: one.close()


def commands(box, folder, model, bert):
    job = plim.job(folder, training__batch_size=64, data__max_length=256, training__steps=1, training__gradient_accumulation_steps=1)
    lines = os.path.join(folder, "lines.txt")
    prompts = os.path.join(folder, "prompts.txt")
    with open(lines, "w") as f: f.writelines(f"{plim.CORPUS[i:i + 150]}\n" for i in range(300))
    with open(prompts, "w") as f: f.writelines(f"{plim.CORPUS[i:i + 60]}\n" for i in range(24))
    for name, args in (("train", ("train", job, "--overwrite", "-q", "--json")), ("eval", ("eval", job, "-q", "--json", "--rows", 8)),
                       ("embed", ("embed", bert, lines, "-o", f"{folder}/v.npy", "--batch", 65536, "-q")),
                       ("generate", ("generate", model, "--prompts-file", prompts, "-n", 4, "--parallel", 24, "--json", "-q"))):
        result = box.run(*args)
        told = json.loads(result.stdout) if name == "eval" and result.returncode == 0 else {}
        plim.ok(result.returncode == 0 and told.get("memory", {}).get("budget_bytes", 0) <= box.limit - OTHERS,
                f"{box.limit // MIB} MiB, {name}: {result.returncode} {result.stderr.strip()[-200:]}")


def refused(box, model, bert, folder):
    """A budget above the limit, for every command, as train refuses it."""
    job = plim.job(folder)
    over = f"{box.limit // MIB + 1}MiB"
    for name, args in (("serve", ("serve", model, "--port", 0)), ("generate", ("generate", model, "-p", "a")), ("embed", ("embed", bert, f"{folder}/corpus.txt")),
                       ("train", ("train", job, "--overwrite")), ("eval", ("eval", job))):
        result = box.run(*args, "--budget", over, *(() if name in ("train", "eval") else ("--device", "cpu")))
        plim.ok(result.returncode == 2 and "the container's limit" in result.stderr and "budget" in result.stderr, f"{name} --budget {over}: {result.stderr.strip()[-200:]}")
    result = box.run("generate", model, "-p", "a", "-n", 1, "--device", "cpu", "--budget", box.limit - OTHERS // 2)
    plim.ok(result.returncode == 0 and "free now" in result.stderr, f"more than is free now is told: {result.stderr.strip()[:200]}")


def main():
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        model = llama_folder.make(f"{folder}/llama", hidden_size=512, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8,
                                  head_dim=64, vocab_size=8192, max_position_embeddings=2048)
        bert = f"{folder}/bert"
        tiny_bert.make_model(bert)
        size = os.path.getsize(f"{model}/model.safetensors") // MIB
        for mib in SIZES:
            box = Container(mib)
            try:
                serve(box, model, f"{folder}/socket")
                commands(box, folder, model, bert)
                if mib == SIZES[0]: refused(box, model, bert, folder)
                plim.ok(box.kills == 0 and box.peak + OTHERS <= box.limit, f"{mib} MiB, a model of {size}: at most {box.peak / MIB:.1f} MiB, {box.kills} killed")
            finally: box.close()
    plim.done()


main()
