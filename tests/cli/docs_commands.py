#!/usr/bin/env python3
"""Every command in README.md and docs/ is run, in one scratch folder and in the order of the text, and every option
that they mention exists.

A command is a line of a ```sh block, or an indented line that begins with one of the words of COMMANDS or with "$ ".
Files it names are small ones that stand in (make_files). What is run otherwise than written is in INSTEAD, what cannot
be run by a test is in ELSEWHERE with its reason, and what does not end with 0 is in EXITS; a command that cannot be run
and is in no table fails, and so does a row of a table that no document needs any more.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

# Not from this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import llama_folder
import plim
import torch_snapshot

ROOT = pathlib.Path(plim.SRC_DIR).resolve()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = re.compile(r"([A-Z_]+=\S+ )*(plimsoll|make|cmake|python3|sed|tools/\S+|build/\S+|bench/\S+)(\s|$)")
SYNOPSIS = re.compile(r"^plimsoll [A-Za-z]+ .*\[|^plimsoll COMMAND\b|^plimsoll version \[")

# What is too long as it is written: a few rows and steps prove as much.
FEW = "--set training.batch_size=2 --set training.gradient_accumulation_steps=1"
INSTEAD = {
    "plimsoll train small.yaml --log run.jsonl": f"plimsoll train small.yaml --log run.jsonl --steps 2 {FEW}",
    "plimsoll train small.yaml --overwrite --budget-at 50=40MiB": f"plimsoll train small.yaml --overwrite --budget-at 2=40MiB --steps 3 {FEW}",
    "plimsoll train small.yaml --resume --set training.seed=2 --change training.seed":
        f"plimsoll train small.yaml --resume --set training.seed=2 --change training.seed --steps 5 {FEW}",
    "plimsoll train small.yaml --resume": f"plimsoll train small.yaml --resume --steps 4 {FEW}",
    "plimsoll train small.yaml --overwrite --trace step.trace.json":
        f"plimsoll train small.yaml --overwrite --trace step.trace.json --steps 2 {FEW}",
    "plimsoll eval demo/small.yaml --rows 200": "plimsoll eval demo/small.yaml --rows 8",
    "make demo": "make -n demo", "make test": "make -n test",
    "tools/run-tests build/release gpu": "tools/run-tests --list build/release gpu",
    "GPU_SANITIZER=memcheck tools/run-tests build/release gpu -k ops": "tools/run-tests --list build/release gpu -k ops",
    "python3 bench/gpu/compare.py --plimsoll build/release/plimsoll": "python3 bench/gpu/compare.py --list",
    "python3 bench/gpu/compare.py --plimsoll build/release/plimsoll --out bench/gpu/CARD-DATE.json":
        "python3 bench/gpu/compare.py --list --cases budgets",
}
ELSEWHERE = {  # what no test can run on every machine, and why
    "plimsoll serve runs/small --budget 256MiB": "serves until it is stopped; tests/cli/serve.py",
    "plimsoll serve ./llama --adapter ./adapter": "likewise",
    "plimsoll serve ./llama --adapter poet=./poet --adapter legal=./legal": "likewise; tests/fault/serve_adapters.py",
    "plimsoll watch runs/small --web": "serves until it is stopped; tests/cli/watch_web.py",
    "make PLIMSOLL_CUDA=ON": "compiles the whole program; needs nvcc",
    "plimsoll plan llama.yaml --set training.device=cuda --budget 20GiB": "needs a GPU; tests/gpu plans on one",
    "plimsoll train llama.yaml --set training.device=cuda --budget 20GiB": "needs a GPU; tests/gpu trains on one",
    'plimsoll generate runs/llama -p "The ship" --device cuda --budget 4GiB': "needs a GPU; tests/gpu/decode.py",
    "plimsoll serve llama --device neuron --budget 12GiB": "needs a Neuron device; tests/fault/serve_pjrt.py has a plug-in of its own",
    "plimsoll serve llama --device pjrt:cpu": "likewise",
    'plimsoll generate llama -p "The ship" --device pjrt:/opt/vendor/plugin.so:1': "likewise",
    "plimsoll embed MODEL_FOLDER lines.txt -o vectors.npy": "needs an encoder's weights; tests/cli/embed.py makes some",
    'plimsoll generate model.gguf --prompt "The ship"': "needs a GGUF file; tests/cli/gguf.py makes some",
    "plimsoll embed all-MiniLM-L6-v2/ sentences.txt -o vectors.npy -v": "likewise",
    "plimsoll classify MODEL_FOLDER lines.txt": "needs a model with labels; tests/cli/classify.py makes some",
    'echo "Ada Lovelace lived in London" | plimsoll classify ner/ --aggregation simple -q': "likewise",
    'echo "a fine film" | plimsoll classify sentiment/ -q': "likewise",
    'echo "a fine film" | plimsoll classify sentiment/ -q --top-k 2': "likewise",
}
EXITS = {"plimsoll doctor small.yaml": 1,  # it has been trained before in these pages
         "plimsoll plan demo/small.yaml --budget 8MiB": 3, "plimsoll pack problem.csv --capacity 11": 3}

# Options in these pages that are other programs'.
FOREIGN = {"--preset", "--build", "--cases", "--append", "--folder", "--llama", "--missing", "--list", "--out", "--merge", "--compile", "--clock", "--plimsoll", "--attention",
           "--cudnn-probe", "--long", "--speed", "--torch", "--ultra", "--precision", "--name", "--no",
           "--minutes", "--prompts", "--draws", "--bind-to", "--nproc", "--python", "--read-only", "--tmpfs", "--build-arg",
           "--auto-cast", "--enable-saturate-infinity", "--model-type", "--optlevel", "--target"}


def commands(text):
    """The commands of a page, in order, without remarks."""
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = line == "```sh"
            continue
        if not fenced and not line.startswith("    "): continue
        line = re.sub(r"\s+# .*", "", line).strip()
        shown = line.startswith("$ ")
        line = re.sub(r"\s+", " ", line.removeprefix("$ "))
        if (fenced and line) or shown or COMMANDS.match(line) and not line.startswith("plimsoll: ") \
                and not re.match(r"plimsoll \d", line):
            yield line


def make_files(folder):
    """What the pages' commands read, small."""
    readme = (ROOT / "README.md").read_text()
    job = re.search(r"^```yaml\n(# small\.yaml.*?)^```", readme, re.M | re.S)
    pathlib.Path(folder, "small.yaml").write_text(job.group(1))
    shutil.copytree(ROOT / "demo", f"{folder}/demo")
    shutil.copy(ROOT / "demo" / "corpus.txt", folder)
    tiny = plim.job(folder, training__device="auto", training__steps=1, output__dir="runs/llama",
                    training__batch_size="null", training__gradient_accumulation_steps="null",
                    training__mixed_precision="null")
    os.rename(tiny, f"{folder}/llama.yaml")
    llama_folder.make(f"{folder}/llama")
    pathlib.Path(folder, "lora.yaml").write_text("{model: {path: llama}, data: {train: corpus.txt, max_length: 64}, training: {steps: 1}, output: {dir: runs/lora}}")
    shutil.copy(ROOT / "demo" / "corpus.txt", folder)  # job() has written its own
    shutil.copy(ROOT / "tests" / "golden" / "tokenizer" / "gpt2.json", f"{folder}/tokenizer.json")
    pathlib.Path(folder, "docs.jsonl").write_text('{"text": "A load line is a mark."}\n' * 20)
    pathlib.Path(folder, "training_args.json").write_text('{"output_dir": "out", "per_device_train_batch_size": 4}')
    pathlib.Path(folder, "problem.csv").write_text("id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n")
    pathlib.Path(folder, "trace.csv").write_text("action,id,size,stream\nalloc,1,4096,0\nalloc,2,1048576,0\nfree,1,,\n")
    for name in ("snapshot.pickle", "steady.pickle"):
        allocator = torch_snapshot.Allocator()
        torch_snapshot.train(allocator, layers=2, hidden=64, vocab=500, length=32, steps=4)
        torch_snapshot.write(allocator.snapshot(), f"{folder}/{name}")


def run(command, folder):
    """The command in the scratch folder, or at the root where it is a tool of the source tree."""
    words = shlex.split(command)
    place = ROOT if re.match(r"make|python3|tools/", words[0]) else folder
    if words[0] == "plimsoll": words[0] = os.path.abspath(plim.PLIMSOLL)
    return subprocess.run(words, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})


def check_commands(folder):
    met = set()
    for page in PAGES:
        for command in commands(page.read_text()):
            if SYNOPSIS.match(command) or command in met: continue
            met.add(command)
            name = f"{page.relative_to(ROOT)}: {command}"
            if command in ELSEWHERE:
                plim.skip(f"{name}: {ELSEWHERE[command]}")
                continue
            done = run(INSTEAD.get(command, command), folder)
            why = " ".join(done.stderr.split())[-200:] if done.returncode else ""
            plim.ok(done.returncode == EXITS.get(command, 0), f"{name}: exit {done.returncode} {why}")
    plim.ok(len(met) > 25, f"{len(met)} commands")
    for table in (INSTEAD, ELSEWHERE, EXITS):
        plim.ok(not set(table) - met, f"no row without a document {sorted(set(table) - met)}")


def check_options():
    """Options and commands in the text exist. help.py compares cli.md with the tables of options."""
    names = re.findall(r"^  ([a-z]+)  ", plim.run("--help").stdout, re.M)
    listed = lambda text: {"--" + o for o in re.findall(r"(?<![\w-])--(?:\[no-\]|no-)?([a-z][a-z0-9-]*[a-z])", text)}
    helps = {name: listed(plim.run(name, "--help").stdout) for name in names}  # --[no-]quiet, --no-quiet: --quiet
    known = set().union(*helps.values()) | {"--version"}
    for page in PAGES:
        none = listed(page.read_text()) - known - FOREIGN
        plim.ok(not none, f"{page.relative_to(ROOT)}: its options exist {sorted(none)}")
        for name in re.findall(r"`plimsoll ([a-z]+)", page.read_text()):
            plim.ok(name in helps or name == "docs", f"{page.relative_to(ROOT)}: plimsoll {name} is a command")


def check_fields(folder):
    """output.md's table of plan --json has the fields that plans have, no more and no fewer; of objects their members, too."""
    part = (ROOT / "docs" / "output.md").read_text().split("\n## plan\n")[1].split("\n## ")[0].split("`--json` prints one object")[1]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", part, re.M)
    told = {name: text for names, text in rows for name in re.findall(r"`([a-z_]+)(?:\[\])?`", names)}
    has = {}
    for flags in ("", "--budget 8MiB", "--device t4", "--ranks 2"):  # it fits, does not, has no kernels, is shared
        has.update(json.loads(run(f"plimsoll plan demo/small.yaml --json --quiet {flags}", folder).stdout))
    plim.ok(set(told) == set(has), f"output.md has the fields of plan --json {sorted(set(told) ^ set(has))}")
    for name, value in has.items():
        first = value[0] if isinstance(value, list) and value else value
        if name == "settings" or not isinstance(first, dict): continue
        none = [m for m in first if f"`{m}`" not in told[name]]
        plim.ok(not none, f"output.md has the members of {name} {none}")


with tempfile.TemporaryDirectory() as folder_:
    make_files(folder_)
    check_commands(folder_)
    check_fields(folder_)
check_options()
plim.done()
