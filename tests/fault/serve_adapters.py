#!/usr/bin/env python3
"""Many adapters in one server: answers are those of each alone, whoever else is in the batch; loading and unloading; what is refused."""
import json
import os
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder
import plim
import server

server.need_http()
PROGRAM = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "plimsoll")
PROMPT = "The old ship lay in the harbour and nobody knew her name"


def together(tasks):
    """The results of functions that run at once."""
    got = [None] * len(tasks)

    def run(i): got[i] = tasks[i]()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(tasks))]
    for t in threads: t.start()
    for t in threads: t.join()
    return got


def ask(s, model, prompt=PROMPT, tokens=10, **more):
    return s.post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "ignore_eos": True, **more})


def numbers(answer):
    """Text and log-probabilities; an error instead where there is one."""
    status, body = answer
    return (body["choices"][0]["text"], body["choices"][0]["logprobs"]["token_logprobs"]) if status == 200 else (status, body)


def near(a, b): return a[0] == b[0] and all(abs(x - y) < 1e-4 for x, y in zip(a[1], b[1]))


def start(model, *flags): return server.Server(model, "--name", "base", *flags, program=PROGRAM)


with tempfile.TemporaryDirectory() as folder:
    model = llama_folder.make(f"{folder}/base", hidden_size=32, intermediate_size=48)
    base = {f"model__{k}": None for k in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")}
    base.update(model__path=model, training__learning_rate=None)
    dirs = {}
    for seed, (name, lora) in enumerate({"poet": "r=4,alpha=8,targets=q_proj,v_proj,down_proj", "legal": "r=8,alpha=4", "clerk": "r=3,alpha=6,targets=k_proj,gate_proj"}.items()):
        job = plim.job(folder, **{**base, "output__dir": f"{folder}/run-{name}", "training__seed": seed + 1})
        trained = plim.run("train", job, "--lora", lora, "--set", "training.learning_rate=0.03", "--steps", str(4 + 3 * seed), "-q")
        dirs[name] = f"{folder}/{name}"
        done = plim.run("export", f"{folder}/run-{name}", "-o", dirs[name], "--dtype", "f32")
        assert trained.returncode == 0 and done.returncode == 0, trained.stderr + done.stderr
    all_of = [x for name in dirs for x in ("--adapter", f"{name}={dirs[name]}")]

    # Merged, each alone in its server: what the others are compared with.
    merged = {}
    for name in [None, *dirs]:
        with start(model, *(("--adapter", dirs[name]) if name else ())) as s: merged[name or "base"] = numbers(ask(s, "base"))
    plim.ok(len({str(v) for v in merged.values()}) == 4, "four models, four answers")

    with start(model, *all_of, "--runtime-adapters") as s:
        alone = {name: numbers(ask(s, name)) for name in merged}
        plim.ok(all(near(alone[n], merged[n]) for n in merged), f"an adapter in a slot computes what the merged model does: {alone} {merged}")
        plim.ok(alone["base"] == merged["base"], "without an adapter: the model's own bits")
        names = [n for _ in range(3) for n in merged]
        mixed = together([lambda n=n: numbers(ask(s, n)) for n in names])
        plim.ok(all(m == alone[n] for m, n in zip(mixed, names)), "twelve requests of four models at once: each as alone, bit for bit")
        listed = json.loads(s.get("/v1/models")[1])["data"]
        plim.ok([m["id"] for m in listed] == ["base", *dirs] and listed[1]["parent"] == "base" and listed[1]["root"] == dirs["poet"], f"/v1/models: {listed}")
        plim.ok(ask(s, "poet")[1]["model"] == "poet", "the answer names the adapter")
        status, body = ask(s, "nobody")
        plim.ok(status == 404 and "there is no model 'nobody' here" in body["error"]["message"], f"an unknown name: {body}")

        # Blocks of keys and values are an adapter's own.
        long = PROMPT * 2
        shared = [ask(s, n, long)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for n in ("poet", "legal", "base", "poet", "legal", "base")]
        plim.ok(shared[:3] == [shared[0]] * 3 and all(later > shared[0] for later in shared[3:]), f"the same text is shared only under the same adapter: {shared}")

        # Coming and going.
        status, _, text = s.request("POST", "/v1/load_lora_adapter", {"lora_name": "new", "lora_path": dirs["clerk"]})
        plim.ok(status == 200 and numbers(ask(s, "new")) == alone["clerk"], f"loaded while it runs: {status} {text}")
        status, _, text = s.request("POST", "/v1/load_lora_adapter", {"lora_name": "new", "lora_path": dirs["poet"]})
        plim.ok(status == 422 and "is already loaded" in text, f"a name twice: {status} {text}")
        status, _, text = s.request("POST", "/v1/load_lora_adapter", {"lora_name": "new", "lora_path": dirs["poet"], "load_inplace": True})
        plim.ok(status == 200 and numbers(ask(s, "new")) == alone["poet"], f"replaced: {status} {text}")
        with_it = threading.Thread(target=lambda: late.append(ask(s, "new", tokens=200)))
        late = []
        with_it.start()
        s.wait_for(lambda: s.metric("num_requests_running") or late)
        status, _, text = s.request("POST", "/v1/unload_lora_adapter", {"lora_name": "new"})
        gone = ask(s, "new")[0]
        with_it.join()
        plim.ok(status == 200 and gone == 404 and late[0][0] == 200 and late[0][1]["usage"]["completion_tokens"] == 200, f"unloaded: requests under way finish, new ones get 404: {status} {gone} {late[0][0]}")
        status, _, text = s.request("POST", "/v1/unload_lora_adapter", {"lora_name": "new"})
        plim.ok(status == 404 and "there is no adapter 'new'" in text, f"unloaded twice: {status} {text}")
        plim.run("export", f"{folder}/run-legal", "-o", f"{folder}/legal.gguf", "--dtype", "f32")
        status, _, text = s.request("POST", "/v1/load_lora_adapter", {"lora_name": "gguf", "lora_path": f"{folder}/legal.gguf"})
        plim.ok(status == 200 and near(numbers(ask(s, "gguf")), alone["legal"]), f"a GGUF adapter: {status} {text}")
        s.request("POST", "/v1/unload_lora_adapter", {"lora_name": "gguf"})
        for _ in range(80):
            s.request("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": dirs["poet"]})
            s.request("POST", "/v1/unload_lora_adapter", {"lora_name": "x"})
        plim.ok(len(json.loads(s.get("/v1/models")[1])["data"]) == 4 and numbers(ask(s, "legal")) == alone["legal"], "80 times loaded and unloaded")
        for body, code, words in (({"lora_path": "x"}, 422, "lora_name is missing"), ({"lora_name": "y"}, 422, "lora_path is missing"), ({"lora_name": "y", "lora_path": f"{folder}/none"}, 422, "none"),
                                  ({"lora_name": "base", "lora_path": dirs["poet"]}, 422, "is the model itself"), ({"lora_name": "y", "lora_path": dirs["poet"], "load_inplace": 1}, 422, "true or false")):
            status, _, text = s.request("POST", "/v1/load_lora_adapter", body)
            plim.ok(status == code and words in text, f"refused: {words}: {status} {text.strip()}")
        wide = llama_folder.make(f"{folder}/wide", hidden_size=64)
        job = plim.job(folder, **{**base, "model__path": wide, "output__dir": f"{folder}/run-wide"})
        plim.run("train", job, "--lora", "r=8", "--steps", "1", "-q"), plim.run("export", f"{folder}/run-wide", "-o", f"{folder}/other", "--dtype", "f32")
        status, _, text = s.request("POST", "/v1/load_lora_adapter", {"lora_name": "y", "lora_path": f"{folder}/other"})
        plim.ok(status == 422 and "the adapter is of another model" in text, f"an adapter of another model: {status} {text.strip()}")
        plim.ok(s.stop() == 0, "stops")

    # Fewer slots than adapters: they take turns, and nothing is lost.
    with start(model, *all_of, "--max-adapters", "1") as s:
        names = [n for _ in range(4) for n in merged]
        mixed = together([lambda n=n: numbers(ask(s, n)) for n in names])
        plim.ok(all(m == alone[n] for m, n in zip(mixed, names)), f"one slot for three adapters: each as alone")
        status, _, text = s.request("POST", "/v1/load_lora_adapter", {"lora_name": "y", "lora_path": dirs["poet"]})
        plim.ok(status == 403 and "--runtime-adapters" in text, f"not without the flag: {status} {text.strip()}")
        ask(s, "poet")
        shutil.move(dirs["legal"], f"{folder}/away")
        broken, fine = ask(s, "legal"), ask(s, "poet")
        shutil.move(f"{folder}/away", dirs["legal"])
        plim.ok(broken[0] == 500 and "adapter_config.json" in str(broken[1]) and fine[0] == 200 and numbers(ask(s, "legal")) == alone["legal"], f"files that have gone: one request fails, and works when they are back: {broken}")

    # A budget that moves takes no adapter along. A sanitizer's process is larger than this one's budget.
    socket = f"{folder}/serve.sock"
    with start(model, *all_of, *([] if plim.SANITIZED else ["--budget", "64MiB"]), "--control", socket) as s:
        for budget in ("32MiB", "64MiB") if not plim.SANITIZED else ():
            moved = plim.run("ctl", socket, "budget", budget)
            mixed = together([lambda n=n: numbers(ask(s, n)) for n in merged])
            plim.ok(moved.returncode == 0 and all(m == alone[n] for m, n in zip(mixed, merged)), f"the same answers with {budget} {moved.stderr.strip()}")

    # The plan counts slots, and has fewer of them where the budget is small.
    def plan(*flags):
        result = plim.run("serve", model, "--plan", "--json", *flags)
        return json.loads(result.stdout)["plan"] if result.returncode == 0 else result.stderr
    none, three, many = plan(), plan(*all_of), plan(*all_of, "--max-adapters", "64")
    each = three["adapters"]["bytes"] // 3
    plim.ok(three["adapters"]["slots"] == 3 and three["adapters"]["rank"] == 8 and three["parameters"] == none["parameters"] + 3 * each, f"slots are parameters: {three['adapters']}")
    plim.ok(many["parameters"] == none["parameters"] + 64 * each, "64 of them are 64 times as many bytes")
    text = plim.run("serve", model, "--plan", *all_of).stdout
    plim.ok("adapters" in text and "3 of rank 8" in text, "plan for people")
    large = [*all_of, "--max-adapter-rank", "512", "--scratch", "none"] # a process is not the same to the page each time: slots are larger
    low, high = 1 << 20, 256 << 20
    while high - low > 1 << 18:
        middle = (low + high) // 2
        low, high = (low, middle) if isinstance(plan(*large, "--budget", str(middle)), dict) else (middle, high)
    least, enough = plan(*large, "--budget", str(high + (1 << 19))), plan(*large, "--budget", str(high + (16 << 20)))
    plim.ok(least["adapters"]["slots"] == 1 and least["total"] <= high + (1 << 19) and enough["adapters"]["slots"] == 3, f"the smallest budget holds one slot, a larger one all: {least['adapters']} {enough['adapters']}")
    plim.ok(plan("--adapter", f"g={folder}/legal.gguf")["adapters"] == plan("--adapter", f"p={dirs['legal']}")["adapters"], "a GGUF adapter has the slots of its folder")
    open_rank = plan("--max-adapters", "2", "--max-adapter-rank", "4")
    plim.ok(open_rank["adapters"]["slots"] == 2 and open_rank["adapters"]["rank"] == 4, f"room for adapters that come later: {open_rank['adapters']}")

    # Refusals at the start.
    for flags, words in ((["--adapter", "a=" + dirs["poet"], "--adapter", "a=" + dirs["legal"]], "the name is given twice"), (["--adapter", "=" + dirs["poet"]], "write NAME=DIR"),
                         (["--adapter", dirs["poet"], "--adapter", dirs["legal"]], "only one adapter can be merged"), (["--adapter", dirs["poet"], "--adapter", "a=" + dirs["legal"]], "must be the only one"),
                         (["--adapter", f"a={folder}/none"], "none"), (["--adapter", f"a={folder}/other"], "another model"), (["--runtime-adapters"], "--max-adapters"),
                         ([*all_of, "--max-adapter-rank", "4"], "ranks up to 8")):
        result = plim.run("serve", model, "--port", "0", "--device", "cpu", *flags)
        plim.ok(result.returncode == 2 and words in result.stderr.splitlines()[-1], f"refused: {words}: {result.returncode} {result.stderr.strip()[-200:]}")
    config = json.load(open(f"{dirs['poet']}/adapter_config.json"))
    for key, value, words in (("use_dora", True, "DoRA cannot be served beside the model"), ("modules_to_save", ["lm_head"], "modules_to_save cannot"), ("bias", "all", "trained biases cannot")):
        shutil.copytree(dirs["poet"], f"{folder}/bad", dirs_exist_ok=True)
        with open(f"{folder}/bad/adapter_config.json", "w") as f: json.dump({**config, key: value}, f)
        result = plim.run("serve", model, "--port", "0", "--device", "cpu", "--adapter", f"a={folder}/bad")
        plim.ok(result.returncode != 0 and words in result.stderr, f"refused: {words}: {result.returncode} {result.stderr.strip()[-200:]}")
    golden = os.path.join(plim.SRC_DIR, "tests", "golden")
    result = plim.run("serve", f"{golden}/llama-untied", "--port", "0", "--device", "cpu", "--adapter", f"a={golden}/adapter-llama-embed")
    plim.ok(result.returncode == 2 and "of embeddings and of the output projection can only be merged" in result.stderr, f"refused: an embedding's adapter: {result.returncode} {result.stderr.strip()[-200:]}")
plim.done()
