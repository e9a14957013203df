#!/usr/bin/env python3
"""A server on XLA's real CPU plug-in: the CPU backend's text through the OpenAI client, staged log, overload, a budget that moves, SIGTERM;
the second start reuses every executable; files of the cache that others wrote or changed are compiled again; what is no plug-in or no model
is refused in one line.

tools/deps.sh test fetches the plug-in into build/pjrt; PLIMSOLL_TEST_PJRT names another."""
# run-tests: timeout=1200, not=asan, not=tsan
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
sys.path.insert(0, os.path.join(here, "..", "support"))
import http.client
import json
import re
import shutil
import subprocess
import tempfile
import time

import llama_folder
import plim
from plim import ok
import server
import xla

try:
    import openai
except ImportError:
    openai = None

server.need_http()
PLUGIN = xla.need_plugin()
MIB = 1 << 20
SIZES = dict(num_hidden_layers=1, head_dim=64, hidden_size=64)
ASK = {"prompt": "The ship", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
CHAT = dict(messages=[{"role": "user", "content": "Hi"}], max_tokens=6, temperature=0)
STAGES = ["start", "config_loaded", "tokenizer_loaded", "weights_mapped", "model_loaded_cpu", "inputs_on_device", "model_on_device", "compilation_started",
          "compilation_complete", "warmup_complete", "model_saved", "final_cleanup", "ready"]


class Server(server.Server):
    def __enter__(self):  # XLA compiles meanwhile
        self.wait_for(lambda: self.process.poll() is not None or self.healthy(), 300)
        return self


def serve(model, *flags):
    return Server(model, "--max-context", 64, "--parallel", 2, "--queue", 1, "--max-connections", 64, "--http-threads", 2, *flags, program=plim.PLIMSOLL)


def texts(s):
    """Answers of each kind, the same from every device."""
    code, plain = s.post("/v1/completions", ASK)
    parts = s.stream("/v1/completions", ASK)
    _, chat = s.post("/v1/chat/completions", CHAT)
    spoken = s.stream("/v1/chat/completions", CHAT)
    return [plain["choices"][0]["text"], "".join(p["choices"][0]["text"] for p in parts if p != "[DONE]"), chat["choices"][0]["message"]["content"],
            "".join(p["choices"][0]["delta"].get("content") or "" for p in spoken if p != "[DONE]")] if code == 200 else plain


def by_client(s):
    """The same through the openai package."""
    client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0)
    ask = dict(model="m", prompt=ASK["prompt"], max_tokens=ASK["max_tokens"], temperature=0, extra_body={"ignore_eos": True})
    plain = client.completions.create(**ask)
    parts = client.completions.create(**ask, stream=True)
    chat = client.chat.completions.create(model="m", **CHAT)
    spoken = client.chat.completions.create(model="m", **CHAT, stream=True)
    return [plain.choices[0].text, "".join(p.choices[0].text for p in parts if p.choices), chat.choices[0].message.content,
            "".join(p.choices[0].delta.content or "" for p in spoken if p.choices)]


def counts(log):
    """Programs that a start compiled, and those it reused."""
    return [sum(map(int, re.findall(rf"{word} (\d+) program", log))) for word in ("compiled", "reused")]


def read_answer(c):
    """(status, JSON) of a connection that has asked."""
    r = http.client.HTTPResponse(c)
    r.begin()
    answer = r.status, json.loads(r.read())
    c.close()
    return answer


def overload(s):
    long = dict(ASK, max_tokens=50)
    asked = [server.open_connection(s, "/v1/completions", long) for _ in range(12)]  # all before the first answer is read
    answers = [read_answer(c) for c in asked]
    refused = [r["error"]["code"] for code, r in answers if code == 429]
    served = [r["choices"][0]["text"] for code, r in answers if code == 200]
    ok(len(served) + len(refused) == 12 and served and len(set(served)) == 1 and set(refused) == {"queue_full"},
       f"12 requests at once for two places and one seat: {len(served)} answered alike, {len(refused)} refused as queue_full")


def live_budget(s, path, wanted):
    def budget(to):
        r = plim.run("ctl", path, "budget", to, "--json")
        return json.loads(r.stdout) if r.stdout.startswith("{") else {"error": r.stderr.strip()}
    def hold(): return json.loads(s.get("/hold")[1])
    before = hold()
    total, line = before["plan"]["total"], before["budget"]
    for to in (total - (64 << 10), line):
        reply = budget(to)  # which comes before programs are compiled
        s.wait_for(lambda: hold()["budget"] == to, 300)
        now = hold()
        ok(reply.get("ok") and now["budget"] == to and now["used"] <= to and (now["blocks"] < before["blocks"]) == (to < line) and texts(s) == wanted,
           f"a budget of {to} instead of {before['budget']}: {now['used']} bytes, {now['blocks']} blocks {reply.get('error', '')}")
    none = budget(1 << 20)
    ok("need" in none.get("error", "") and "1.00 MiB" in none["error"], f"a budget that holds nothing is refused: {none}")


def drains(s):
    slow = server.background(s.post, "/v1/completions", dict(ASK, max_tokens=50))
    s.wait_for(lambda: json.loads(s.get("/hold")[1])["running"] == 1 or slow.result)
    code = s.stop()
    slow.join()
    ok(code == 0 and slow.result[0] == 200 and slow.result[1]["usage"]["completion_tokens"] == 50, f"SIGTERM finishes what is under way, exit {code}")
    ok("stopping: finishing" in s.log() and s.log().rstrip().endswith("stopped"), "and says so")


def first_and_second(folder, model):
    control = f"{folder}/control.sock"
    with serve(model) as s: wanted = texts(s)
    begin = time.time()
    with serve(model, "--device", "pjrt:cpu", "--budget", "1GiB", "--control", control) as s:
        first = time.time() - begin
        log = s.log()
        stages = re.findall(r"stage +\d+/13 (\w+) ", log)
        ok(stages == STAGES and "rung full" in log, f"the staged log: {stages}")
        compiled, reused = counts(log)
        ok(compiled >= 2 and reused == 0, f"the first start compiles {compiled} programs")
        got = texts(s)
        ok(got == wanted, f"completion, chat and both streamed are the CPU backend's: {got}")
        if openai: ok(by_client(s) == wanted, "through the openai package too")
        else: plim.skip("no openai package here")
        live_budget(s, control, wanted)
        overload(s)
        ok(s.wait_for(s.idle), "nothing is left over")
        drains(s)
    begin = time.time()
    with serve(model, "--device", "pjrt:cpu", "--budget", "1GiB") as s:
        second = time.time() - begin
        now = counts(s.log())
        ok(now == [0, compiled] and texts(s) == wanted, f"the second start compiles {now[0]} and reuses {now[1]} of {compiled}: ready after {second:.2f} s instead of {first:.2f} s")
    return wanted


def within_plan(model):
    """With programs of the cache, at three budgets: planned = ledger to the byte, and the process is never above it."""
    for budget in (1024, 256, 128):
        with serve(model, "--device", "pjrt:cpu", "--budget", budget * MIB) as s:
            for _ in range(3): texts(s)
            hold, peak = json.loads(s.get("/hold")[1]), server.resident(s.process)[1]
            beside = s.metric("server_bytes_most") + hold["plan"]["requests"]
        total = hold["plan"]["total"]
        ok(hold["used"] == total <= hold["budget"] == budget * MIB, f"{budget} MiB: ledger {hold['used']} = planned {total}")
        ok(total - beside - 32 * MIB < peak <= total, f"{budget} MiB: RSS at most {peak / MIB:.2f} MiB; planned {total / MIB:.2f} MiB, {beside / MIB:.2f} MiB of it for connections and requests")


def changed_cache(folder, model, wanted):
    """One file of the cache is damaged, and another belongs to somebody else."""
    cache = f"{folder}/cache/plimsoll/pjrt"
    def flip(path):
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
    ways = [("damaged", flip), ("somebody else owns it or may write it", lambda p: os.chown(p, 12345, 12345) if os.geteuid() == 0 else os.chmod(p, 0o666))]
    names = sorted(os.listdir(cache), key=lambda n: os.stat(f"{cache}/{n}").st_mtime)[-len(ways):]  # of the last start
    for (_, change), name in zip(ways, names): change(f"{cache}/{name}")
    with serve(model, "--device", "pjrt:cpu", "--budget", "1GiB") as s:
        log, got = s.log(), texts(s)
    ignored = [line for line in log.splitlines() if "the file is ignored, and its program is compiled again" in line]
    told = [any(word in line for line in ignored) for word, _ in ways]
    ok(all(told) and counts(log)[0] == len(ignored) == len(names) and got == wanted, f"{len(names)} files of the cache that cannot be trusted: {ignored}")
    ok(all(os.stat(f"{cache}/{n}").st_uid == os.geteuid() and not os.stat(f"{cache}/{n}").st_mode & 0o77 for n in names), "they are replaced")


def refused(folder, model):
    def run(model, device):
        return subprocess.run([plim.PLIMSOLL, "serve", model, "--port", "0", "-q", "--device", device], capture_output=True, text=True, timeout=60)
    text, library = f"{folder}/text.so", os.path.abspath(f"{os.environ.get('BUILD_DIR', 'build/release')}/tests/fake_nccl.so")
    with open(text, "w") as f: f.write("no library\n")
    broken = shutil.copytree(model, f"{folder}/broken")
    with open(f"{broken}/model.safetensors", "r+b") as f: f.truncate(os.path.getsize(f"{broken}/model.safetensors") - 4096)
    bare = f"{folder}/bare"
    os.makedirs(bare)
    for words, r in (("no shared library", run(model, f"pjrt:{text}")), ("GetPjrtApi", run(model, f"pjrt:{library}")), ("there is no such PJRT plug-in", run(model, f"pjrt:{folder}/none.so")),
                     ("model.safetensors", run(broken, "pjrt:cpu")), ("config.json", run(bare, "pjrt:cpu"))):
        last = r.stderr.splitlines()[-1] if r.stderr else ""
        ok(r.returncode == 2 and words in last and r.stderr.count("plimsoll: ") == 1, f"exit {r.returncode}: {last}")


def main():
    os.environ.pop("XDG_RUNTIME_DIR", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        os.environ["XLA_FLAGS"] = xla.QUICK
        os.environ["PJRT_PLUGIN_LIBRARY_PATH"] = PLUGIN
        model = llama_folder.make(f"{folder}/m", **SIZES)
        with open(f"{model}/tokenizer_config.json", "w") as f: json.dump({"chat_template": server.TEMPLATE}, f)
        wanted = first_and_second(folder, model)
        within_plan(model)
        changed_cache(folder, model, wanted)
        refused(folder, model)
    plim.done()


main()
