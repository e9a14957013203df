"""What the script tests share: running the real program, reading the OS, printing TAP."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

PLIMSOLL = os.environ.get("PLIMSOLL", "build/release/plimsoll")
SRC_DIR = os.environ.get("SRC_DIR", ".")
LONG = bool(os.environ.get("PLIMSOLL_LONG_TESTS"))
SANITIZED = any(word in os.environ.get("BUILD_DIR", "") for word in ("asan", "tsan"))
CORPUS = " ".join(
    f"The {a} {b} took {n} barrels past the {c} before the {d} turned."
    for n, (a, b, c, d) in enumerate(
        (a, b, c, d)
        for a in ("heavy", "small", "old", "swift", "patient")
        for b in ("ship", "barge", "cutter", "ferry")
        for c in ("bar", "light", "mole", "shoal")
        for d in ("tide", "wind", "watch")
    )
)

_count = 0
_failed = 0


def ok(condition, text):
    """One TAP line."""
    global _count, _failed
    _count += 1
    _failed += not condition
    print(f"{'ok' if condition else 'not ok'} {_count} - {text}", flush=True)
    return condition


def skip(text):
    global _count
    _count += 1
    print(f"ok {_count} - {text} # SKIP", flush=True)


def done():
    print(f"1..{_count}")
    sys.exit(1 if _failed else 0)


def need_gpu():
    """Ends the test as skipped unless a GPU answers and the program has the CUDA backend in it."""
    why = "CUDA_VISIBLE_DEVICES hides every GPU" if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else ""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
        if listed.returncode or "GPU" not in listed.stdout: why = "nvidia-smi lists no GPU"
    except (OSError, subprocess.TimeoutExpired):
        why = "no GPU: nvidia-smi does not run"
    if not why and not has_cuda(): why = "this plimsoll was built without CUDA"
    if why:
        print(why)
        sys.exit(77)


def has_cuda():
    return json.loads(run("version", "--json").stdout)["features"]["cuda"]


def job(folder, **changes):
    """A small job's YAML in a folder, for the CPU; changes are dotted keys with __ for dots, None leaves one out."""
    keys = {
        "model.architecture": "llama", "model.vocab_size": 256, "model.hidden_size": 64,
        "model.intermediate_size": 192, "model.num_layers": 3, "model.num_attention_heads": 4,
        "model.num_key_value_heads": 2, "model.tie_word_embeddings": "true",
        "data.train": f"[{folder}/corpus.txt]", "data.max_length": 64, "data.tokenizer": "bytes",
        "training.batch_size": 4, "training.gradient_accumulation_steps": 2, "training.steps": 4,
        "training.learning_rate": 1e-3, "training.mixed_precision": "fp32", "training.seed": 7,
        "training.device": "cpu",
        "output.dir": f"{folder}/run",
    }
    keys.update({k.replace("__", "."): v for k, v in changes.items()})
    keys = {k: v for k, v in keys.items() if v is not None}
    path = os.path.join(folder, "job.yaml")
    with open(os.path.join(folder, "corpus.txt"), "w") as f:
        f.write(CORPUS)
    sections = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    with open(path, "w") as f:
        for section, items in sections.items():
            if "" in items:
                f.write(f"{section}: {items['']}\n")
                continue
            f.write(f"{section}:\n")
            for name, value in items.items():
                f.write(f"  {name}: {value}\n")
    return path


def gone(process, seconds=60):
    """Has a process ended, or does within a moment?"""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def pairs(folder, rows=40):
    """JSON lines of sources and targets cut from the corpus, of many lengths; the path."""
    path = os.path.join(folder, "pairs.jsonl")
    with open(path, "w") as f:
        for i in range(rows):
            source, target = CORPUS[31 * i:31 * i + 1 + 29 * i % 64], CORPUS[17 * i:17 * i + 1 + 23 * i % 48]
            f.write(json.dumps({"source": source, "target": target}) + "\n")
    return path


T5 = dict(model__architecture="t5", model__num_key_value_heads=4, model__head_dim=24, model__num_decoder_layers=2,
          model__feed_forward_proj="gated-gelu", model__tie_word_embeddings="false", data__max_length=48, data__max_source_length=64)

EXPERTS = dict(model__architecture="mixtral", model__intermediate_size=96, model__num_experts=5, model__num_experts_per_tok=2,
               model__router_aux_loss_coef=0.02, model__router_z_loss_coef=0.001, model__tie_word_embeddings="false")


def run(*args, env=None, cwd=None):
    """The program to its end. A quiet train tells its losses as JSON, as tests want them."""
    if args[:1] == ("train",) and "-q" in args and not {"--json", "--log"} & set(args): args += ("--json",)
    return subprocess.run([PLIMSOLL, *map(str, args)], capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, cwd=cwd)


def plan(path, *args):
    result = run("plan", path, "--json", "-q", *args)
    return json.loads(result.stdout) if result.stdout.startswith("{") else None, result


def smallest(path, *args):
    """Bytes of the smallest plan. The program's own size is most of a small job's, and differs by machine and kernel."""
    return plan(path, "--budget", "1MiB", *args)[0]["peak_bytes"]["total"]


def events(text):
    """The JSON lines of a log; a line cut off by a kill is left out."""
    out = []
    for line in text.splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:
            pass
    return out


WATCHED = {"log.jsonl", "plan.json"}


def left(folder):
    """Names in a run's folder beside what watchers read."""
    return sorted(set(os.listdir(folder)) - WATCHED)


def losses(text):
    return {e["step"]: e["loss"] for e in events(text) if e["event"] == "step"}


def read_status(pid, key):
    """A field of /proc/PID/status in bytes, or None."""
    try:
        with open(f"/proc/{pid}/status") as f:
            for line in f:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def read_memory(status):
    """(peak RSS, RSS) by an open /proc/PID/status; zeros when the process has ended."""
    fields = dict(re.findall(rb"^(VmHWM|VmRSS):\s*(\d+)", os.pread(status, 4096, 0), re.M))
    return tuple(int(fields.get(key, 0)) * 1024 for key in (b"VmHWM", b"VmRSS"))


def run_watched(*args, every=0.004):
    """Run the program and read its memory from outside: (events, peak RSS, [(seconds, RSS)], exit code, stderr)."""
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as log:
        process = subprocess.Popen([PLIMSOLL, *map(str, args), "--log", log.name, "-q"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        peak, samples, start = 0, [], time.monotonic()
        status = os.open(f"/proc/{process.pid}/status", os.O_RDONLY)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            highest, rss = read_memory(status)
            peak = max(peak, highest)
            if rss:
                samples.append((time.monotonic() - start, rss))
            time.sleep(every)
        os.close(status)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        # A busy machine may have kept this script from looking at the end. The system's word on the ended process is
        # its peak, or this script's, of which it was a copy.
        if (most := ended[2].ru_maxrss * 1024) > read_status(os.getpid(), "VmHWM"): peak = max(peak, most)
        text = open(log.name).read()
        return events(text), peak, samples, process.returncode, process.stderr.read()
