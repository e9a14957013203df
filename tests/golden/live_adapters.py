#!/usr/bin/env python3
"""Live parity of adapters: folders that we wrote, read by the PEFT that is installed; then every case of make_adapters.py, each family with
each kind of adapter, compared with PEFT in float64 as the committed ones are. Numbers that are wrong by twice the tolerance must be noticed.
Skips itself where PEFT is not installed; PYTHON_WITH_TORCH names another interpreter."""
# run-tests: not=asan, not=tsan, slow, timeout=1800
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama_folder

python = os.environ.get("PYTHON_WITH_TORCH", sys.executable)
if subprocess.run([python, "-c", "import torch, transformers, safetensors, peft"], capture_output=True).returncode:
    print("torch, transformers or peft is not installed for", python)
    sys.exit(77)
here = os.path.dirname(os.path.abspath(__file__))
program = os.path.join(os.environ["BUILD_DIR"], "tests", "golden", "test_adapters")

# The base and our adapter under PEFT, which must know every name, against the model that we merged.
READ = """
import sys, warnings, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
ids = torch.arange(3, 67).reshape(2, 32)
with torch.no_grad(), warnings.catch_warnings():
    plain = load(sys.argv[1])(input_ids=ids).logits
    warnings.filterwarnings("error", message=".*(missing|unexpected).*")
    ours = PeftModel.from_pretrained(load(sys.argv[1]), sys.argv[2])(input_ids=ids).logits
    merged = load(sys.argv[3])(input_ids=ids).logits
print(float((ours - merged).abs().max() / merged.abs().max()), float((ours - plain).abs().max() / merged.abs().max()))
"""


def plimsoll(*args):
    done = subprocess.run([os.environ["PLIMSOLL"], *args], capture_output=True, text=True)
    if done.returncode: sys.exit(f"plimsoll {' '.join(args)}: {done.stderr.strip()}")


def written(folder, kind):
    """Trains an adapter and compares what PEFT computes with it; False: they differ, or it changes nothing."""
    base, run, job, text = llama_folder.make(os.path.join(folder, "base")), os.path.join(folder, kind), os.path.join(folder, f"{kind}.yaml"), os.path.join(folder, "text.txt")
    with open(text, "w") as f: f.write("The ship sails at dawn. " * 200)
    with open(job, "w") as f:
        f.write(f"model: {{path: {base}}}\ndata: {{train: [{text}], tokenizer: bytes, max_length: 32}}\nadapter: {{type: {kind}, r: 4}}\n"
                f"training: {{batch_size: 4, steps: 5, learning_rate: 0.05}}\noutput: {{dir: {run}}}\n")
    plimsoll("train", job, "-q", "--set", "training.device=cpu")
    plimsoll("export", run, "-o", f"{run}-merged", "--merge", "--dtype", "f32", "-q")
    told = subprocess.run([python, "-c", READ, base, os.path.join(run, "checkpoint-00000005"), f"{run}-merged"], capture_output=True, text=True)
    error, change = map(float, told.stdout.split()) if told.returncode == 0 else (1, 0)
    print(f"# {kind}: PEFT reads our folder: {error:.1e} from the merged model, {change:.1e} from the base {told.stderr.strip()[-300:] if told.returncode else ''}", flush=True)
    return error < 5e-5 and change > 1e-3


# One number of a case, made larger by twice the tolerance.
SPOIL = """
import sys
from safetensors.torch import load_file, save_file
path, of = sys.argv[1:]
numbers = load_file(path)
name = next(n for n in sorted(numbers) if n.startswith(of))
numbers[name] *= 1 + 2e-5
save_file(numbers, path)
"""


def holds(case, folder, quiet=False):
    done = subprocess.run([program, case], env={**os.environ, "GOLDEN_DIR": folder, "CMOCKA_MESSAGE_OUTPUT": "stdout"}, capture_output=True, text=True)
    numbers = [line for line in done.stdout.splitlines() if line.startswith("#")]
    if not quiet: print("\n".join(numbers) if done.returncode == 0 else done.stdout + done.stderr, flush=True)
    return done.returncode == 0


def notices(case, folder):
    """True: the comparison fails for wrong logits, a wrong gradient, wrong losses."""
    spoilt, path = f"{case}-spoilt", os.path.join(folder, f"{case}-spoilt", "expected.safetensors")
    for of in ("logits", "grad:", "losses"):
        shutil.copytree(os.path.join(folder, case), os.path.join(folder, spoilt), dirs_exist_ok=True)
        if not holds(spoilt, folder, quiet=True): return False
        subprocess.run([python, "-c", SPOIL, path, of], check=True)
        if holds(spoilt, folder, quiet=True):
            print(f"{case}: {of} was made wrong by 2e-5, and the comparison did not notice", flush=True)
            return False
    return True


with tempfile.TemporaryDirectory() as folder:
    if not all([written(folder, kind) for kind in ("lora", "rslora", "dora")]): sys.exit(1)
    for name in os.listdir(here):
        if os.path.isdir(os.path.join(here, name)) and not name.startswith("adapter-"): os.symlink(os.path.join(here, name), os.path.join(folder, name))
    made = subprocess.run([python, os.path.join(here, "make_adapters.py"), "--out", folder], stderr=subprocess.PIPE, text=True)
    if made.returncode: sys.exit(f"make_adapters.py: {made.stderr[-2000:]}")
    cases = sorted(name for name in os.listdir(folder) if name.startswith("adapter-"))
    failed = [case for case in cases if not holds(case, folder)]
    print(f"# {len(cases) - len(failed)} of {len(cases)} cases hold", *failed, flush=True)
    sys.exit(bool(failed) or not cases or not notices(cases[0], folder))
