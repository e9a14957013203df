#!/usr/bin/env python3
"""Images that deploy/build-* made, as containers with a read-only root file system and 256 MB: a model of 96 MB under load, a job that continues,
bad input. By hand and in the workflow, with docker or podman (CONTAINER names another command with its options):
deploy/build-cpu && PLIMSOLL_LONG_TESTS=1 tests/cli/images.py"""
# run-tests: serial, timeout=900
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time

# Not from this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import llama_folder
import plim
import server

VERSION = subprocess.run([os.path.join(plim.SRC_DIR, "tools", "version")], capture_output=True, text=True).stdout.strip()
CONTAINER = shlex.split(os.environ.get("CONTAINER", "")) or [p for p in ("docker", "podman") if shutil.which(p)][:1]
SAFE = ["--rm", "--no-healthcheck", "--network=host", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges",
        "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--memory=256m"]
SIZES = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=8, head_dim=64, vocab_size=7168,
             max_position_embeddings=2048)
REQUESTS = 40


def skip(why):
    print(why)
    sys.exit(77)


def call(*words): return subprocess.run([*CONTAINER, *words], capture_output=True, text=True, timeout=600)


def command(target, *args, mounts=(), options=(), **env):
    words = ["run", *SAFE, *options, *(f"--volume={a}:{b}" for a, b in mounts), *(f"--env={k}={v}" for k, v in env.items())]
    return [*words, f"plimsoll:{VERSION}-{target}", *args]


def inspect(target):
    """Its settings, or None without the image."""
    found = call("image", "inspect", f"plimsoll:{VERSION}-{target}")
    return json.loads(found.stdout)[0] if found.returncode == 0 else None


def check_settings(target, image):
    config = image["Config"]
    plim.ok(config["User"] == "10001:10001" and config["StopSignal"] in ("SIGTERM", "15"), f"{target}: user {config['User']}, stopped by {config['StopSignal']}")
    plim.ok(config["Labels"]["org.opencontainers.image.version"] == VERSION and config["Labels"]["plimsoll.target"] == target, f"{target}: labels")
    plim.ok("health" in str(image.get("HealthCheck") or image.get("Healthcheck") or config.get("Healthcheck")), f"{target}: health check")
    plim.ok(call(*command(target, "version")).stdout.startswith(f"plimsoll {VERSION}\n"), f"{target}: version {VERSION}")


def refuses(what, words, target, **more):
    result = call(*command(target, **more))
    lines = result.stderr.splitlines()
    plim.ok(result.returncode == 2 and lines and all(w in lines[-1] for w in words) and (len(lines) == 1 or lines[-1].startswith("{")), f"{target}, {what}: {lines[-1:]}")


def bad_input(model, folder):
    refuses("nothing to do", ["MODEL", "JOB"], "cpu")
    refuses("no model", ["/models/model", "mount"], "cpu", MODEL="/models/model")
    for name, mode in (("", 0o700), ("config.json", 0o600), ("model.safetensors", 0o600)):
        copy = shutil.copytree(model, f"{folder}/closed{mode}{name}")
        os.chmod(os.path.join(copy, name), mode)
        refuses(f"unreadable {name or 'folder'}", [name or "/models/model"], "cpu", mounts=[(copy, "/models/model:ro")], MODEL="/models/model")
    torn = shutil.copytree(model, f"{folder}/torn")
    os.truncate(f"{torn}/model.safetensors", 1 << 20)
    refuses("a torn file", ["model.safetensors"], "cpu", mounts=[(torn, "/models/model:ro")], MODEL="/models/model")


def ask(port, method, path, body=None):
    c = server.http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        c.request(method, path, body)
        return c.getresponse().status
    except OSError: return 0
    finally: c.close()


def load(port):
    answers, numbers = [], iter(range(REQUESTS))

    def client():
        for number in numbers:
            body = json.dumps({"prompt": plim.CORPUS[40 * number:][:40 + 37 * number % 160], "max_tokens": 4})
            answers.append(ask(port, "POST", "/v1/completions", body))

    threads = [threading.Thread(target=client) for _ in range(16)]
    for t in threads: t.start()
    for t in threads: t.join()
    return {a: answers.count(a) for a in set(answers)}


def serves(model):
    """No budget is given: it follows from the container's limit."""
    name = f"plimsoll-test-{os.getpid()}"
    process = subprocess.Popen([*CONTAINER, *command("cpu", mounts=[(model, "/models/model:ro")], options=[f"--name={name}"], MODEL="/models/model", HOST="127.0.0.1", PORT="0",
                                                     MAX_BATCH_SIZE="4", ENABLE_MIXED_PRECISION="false")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = server.background(process.stderr.read)
    try:
        found = re.search(r":(\d+)$", process.stdout.readline().strip())
        port, until = int(found.group(1)) if found else 0, time.time() + 120
        while found and process.poll() is None and time.time() < until and ask(port, "GET", "/health") != 200: time.sleep(0.1)
        healthy = call("exec", f"--env=PORT={port}", name, "/usr/libexec/plimsoll/health").returncode
        answers = load(port)
        killed = call("inspect", "--format={{.State.OOMKilled}}", name).stdout.strip()
    finally:
        call("stop", "--time=60", name)
        code = process.wait(60)
    log.join()
    plim.ok(healthy == 0 and answers.get(200) and set(answers) <= {200, 400, 429} and sum(answers.values()) == REQUESTS, f"96 MB in 256 MB: {answers}")
    plim.ok(killed == "false" and code == 0, f"killed: {killed}; stopped with {code} {log.result[-300:] if code else ''}")


def trains(model, folder):
    os.makedirs(f"{folder}/runs", 0o777)
    os.chmod(f"{folder}/runs", 0o777)
    with open(f"{folder}/corpus.txt", "w") as f: f.write(plim.CORPUS)
    with open(f"{folder}/job.yaml", "w") as f:
        f.write("model: {path: /models/model}\ndata: {train: [/data/corpus.txt], max_length: 32}\ntraining: {batch_size: 1, device: cpu, optimizer: sgd}\n")
    mounts = [(model, "/models/model:ro"), (f"{folder}/job.yaml", "/job/job.yaml:ro"), (f"{folder}/corpus.txt", "/data/corpus.txt:ro"), (f"{folder}/runs", "/runs")]
    for steps in (2, 3):
        done = call(*command("cpu", mounts=mounts, JOB="/job/job.yaml", OUTPUT="/runs/run", STEPS=steps))
        seen = [e["step"] for e in plim.events(done.stdout) if e.get("event") == "step"]
        plim.ok(done.returncode == 0 and seen == ([1, 2] if steps == 2 else [3]), f"a job trains and continues: steps {seen}{done.stderr[-300:] if done.returncode else ''}")
    ranks(mounts)


def ranks(mounts):
    """Two containers train together, as the pods of an indexed Job: each has a host name of its own."""
    env = dict(JOB="/job/job.yaml", OUTPUT="/runs/ranks", STEPS=2, WORLD_SIZE=2, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1", MASTER_PORT=29511)
    words = [command("cpu", mounts=mounts, options=[f"--hostname=rank-{r}"], RANK=r, **env) for r in (0, 1)]
    other = subprocess.Popen([*CONTAINER, *words[1]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = call(*words[0])
    code = other.wait(60)
    seen = [e["step"] for e in plim.events(done.stdout) if e.get("event") == "step"]
    plim.ok(done.returncode == 0 == code and seen == [1, 2], f"two ranks: {done.returncode}, {code}, steps {seen}{done.stderr[-300:] if done.returncode else ''}")


def main():
    if os.environ.get("PLIMSOLL_LONG_TESTS") != "1": skip("PLIMSOLL_LONG_TESTS=1 runs the images")
    if not CONTAINER: skip("needs docker or podman")
    images = {t: i for t in ("cpu", "cuda", "neuron") if (i := inspect(t))}
    if not images: skip(f"no image plimsoll:{VERSION}-cpu; make it with deploy/build-cpu")
    for target, image in images.items(): check_settings(target, image)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        model = llama_folder.make(f"{folder}/llama", **SIZES)
        if "cpu" in images:
            bad_input(model, folder)
            serves(model)
            trains(llama_folder.make(f"{folder}/small"), folder)
        if "neuron" in images:
            refuses("no plug-in", ["libneuronpjrt.so", "/opt/aws/neuron/lib"], "neuron", mounts=[(model, "/models/model:ro")], MODEL="/models/model")
    plim.done()


main()
