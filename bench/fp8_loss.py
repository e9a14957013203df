#!/usr/bin/env python3
"""What fp8 does to learning: the same LLaMA of 92 M parameters from scratch on the same text, in bf16 and in fp8; losses side by side.

    python bench/fp8_loss.py [--plimsoll build/release/plimsoll] [--device cuda] [--text FOLDER] [--steps 2000] [--out FILE.json]

The text is every .py, .md, .rst and .txt file under --text (default: this Python's library), bytes as tokens. The second run starts from the same
weights and sees the same rows. What is compared are means of a tenth of the steps: single steps differ by more than the types do.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

SHAPE = "architecture: llama, vocab_size: 256, hidden_size: 768, intermediate_size: 2304, num_layers: 12, num_attention_heads: 12, num_key_value_heads: 12"
TINY = "architecture: llama, vocab_size: 256, hidden_size: 64, intermediate_size: 192, num_layers: 2, num_attention_heads: 4, num_key_value_heads: 4"
ENDS = (".py", ".md", ".rst", ".txt")


def gather(root, path, most):
    """Text of a folder's files in order of name, at most so many bytes; how many there are."""
    size = 0
    with open(path, "wb") as out:
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(d for d in folders if d not in ("__pycache__", "site-packages", "dist-packages"))
            for name in sorted(f for f in files if f.endswith(ENDS)):
                with open(os.path.join(folder, name), "rb") as f: text = f.read(most - size)
                size += out.write(text)
                if size >= most: return size
    return size


def run(a, folder, kind, corpus):
    job = f"{folder}/{kind}.yaml"
    with open(job, "w") as f:
        f.write(f"""model: {{{TINY if a.tiny else SHAPE}, tie_word_embeddings: false}}
data: {{train: [{corpus}], max_length: {a.time}}}
training: {{batch_size: {a.batch}, steps: {a.steps}, learning_rate: 5e-4, warmup_steps: 100, max_grad_norm: 1.0, seed: 1, mixed_precision: {kind}, device: {a.device}}}
output: {{dir: {folder}/{kind}}}
""")
    start = time.monotonic()
    done = subprocess.run([a.plimsoll, "train", job, "--json", "-q", "--no-checkpoint"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode: sys.exit(f"{kind}: {done.stderr.strip()[-300:]}")
    losses = [e["loss"] for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "step"]
    return losses, time.monotonic() - start


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--plimsoll", default="build/release/plimsoll")
    p.add_argument("--device", default="cuda")
    p.add_argument("--text", help="folder of text (default: this Python's library)")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--time", type=int, default=256)
    p.add_argument("--tiny", action="store_true", help="a model that a CPU trains in minutes")
    p.add_argument("--out")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = gather(a.text or sysconfig.get_path("stdlib"), f"{folder}/corpus.txt", a.steps * a.batch * a.time + 1)
        results = {kind: run(a, folder, kind, f"{folder}/corpus.txt") for kind in ("bf16", "fp8")}
    part = max(1, a.steps // 10)
    text = a.text or f"the library of Python {sys.version.split()[0]}"
    print(f"{text}: {size} bytes of text, {a.steps} steps of {a.batch} x {a.time}; means of {part} steps")
    means = {kind: [statistics.fmean(losses[i:i + part]) for i in range(0, a.steps - part + 1, part)] for kind, (losses, _) in results.items()}
    for i, (b, f) in enumerate(zip(means["bf16"], means["fp8"])):
        print(f"to step {(i + 1) * part}: bf16 {b:.4f}, fp8 {f:.4f}, {100 * (f / b - 1):+.2f} %")
    print(", ".join(f"{kind} {seconds:.1f} s" for kind, (_, seconds) in results.items()))
    if a.out:
        with open(a.out, "w") as f:
            json.dump(dict(text=text, bytes=size, steps=a.steps, batch=a.batch, time=a.time, device=a.device, means=means,
                           last_losses={kind: losses[-1] for kind, (losses, _) in results.items()},
                           seconds={kind: round(s, 1) for kind, (_, s) in results.items()}), f, indent=1)
            f.write("\n")


if __name__ == "__main__": main()
