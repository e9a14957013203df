#!/bin/sh
# bench/disk_gpu.sh [FOLDER] - LLaMA-8B's shape, every parameter trained with 8-bit AdamW, in 16 GiB of a card and 16 GiB of its
# host; what does not fit lies on the disk under FOLDER (., 64 GiB free). Prints tokens a second and the share of the disk's rate:
# bytes of the disk tier read and written in a step, over the step's time, against bench_disk on the same disk.
#
# CARD, HOST (bytes with unit), STEPS and LENGTH change the case; SHARE=plan prints the plan alone.
set -eu
folder=${1:-.}
build=${BUILD_DIR:-build/release}
card=${CARD:-16GiB} host=${HOST:-16GiB} steps=${STEPS:-4} length=${LENGTH:-1024}
work=$(mktemp -d "$folder/disk-gpu-XXXXXX")
trap 'rm -rf "$work"' EXIT
yes 'the ships of the line went down to the sea again, and again they came home with the tide' | head -40000 >"$work/corpus.txt"
cat >"$work/job.yaml" <<YAML
model: {architecture: llama, vocab_size: 128256, hidden_size: 4096, intermediate_size: 14336, num_layers: 32,
  num_attention_heads: 32, num_key_value_heads: 8, tie_word_embeddings: false}
data: {train: $work/corpus.txt, max_length: $length}
training: {device: cuda, batch_size: 4, gradient_accumulation_steps: 1, steps: $steps, mixed_precision: bf16,
  optimizer: adamw8bit, max_grad_norm: 0, grad_dtype: bf16, learning_rate: 1.0e-5}
budget: $card
host_budget: $host
output: {dir: $work/run}
YAML
"$build/plimsoll" plan "$work/job.yaml" --no-checkpoint
[ "${SHARE:-run}" = run ] || exit 0
"$build/plimsoll" calibrate --device cpu --force --json --disk "$work" >"$work/disk.json"
depth=$(python3 -c "import json; print(json.load(open('$work/disk.json'))['now']['disk']['depth'])")
piece=$(python3 -c "import json; print(json.load(open('$work/disk.json'))['now']['disk']['piece'])")
"$build/bench_disk" "$work" 4294967296 "$depth" "$piece" 2 >"$work/before.json"
"$build/plimsoll" train "$work/job.yaml" -q --no-checkpoint --log "$work/log.jsonl"
"$build/bench_disk" "$work" 4294967296 "$depth" "$piece" 2 >"$work/after.json"
python3 - "$work" <<'PY'
import json, statistics, sys
work = sys.argv[1]
events = [json.loads(line) for line in open(f"{work}/log.jsonl")]
disk = sum(json.load(open(f"{work}/{when}.json"))["mixed"] for when in ("before", "after")) / 2
plan = next(e for e in events if e["event"] == "plan")
steps = [e for e in events if e["event"] == "step"][1:]
seconds = statistics.median(e["step_ms"] for e in steps) / 1e3
tokens = statistics.median(e["tokens_per_s"] for e in steps)
rate = 2 * plan["disk_bytes"] / seconds / 1e9  # state comes and goes once a step
print(f"{tokens:.1f} tok/s, {seconds:.1f} s a step; {plan['disk_bytes'] / 2**30:.1f} GiB on disk, {plan['host_bytes'] / 2**30:.1f} GiB on the host")
print(f"{rate:.2f} GB/s of the disk's {disk:.2f}: {rate / disk:.2f}")
PY
