#!/usr/bin/env python3
# run-tests: serial, slow, not=asan, not=tsan
"""200 steps of real training beside PyTorch's: the same weights, the same rows in the same order, the same curve.

A LLaMA of 4 layers made by transformers reads this project's own texts as bytes. fp32: every loss within 2e-3 of
PyTorch's. bf16: within 1 % of PyTorch's bf16 autocast; and for a few steps with the heads that cuDNN's attention
computes: 64 without shared keys, 128 with. Skips itself where torch is not installed; PYTHON_WITH_TORCH
names another interpreter that has it. CURVE_DEVICE=cpu CURVE_STEPS=20 tries the test itself where there is no GPU.
"""
import os
import sys

other = os.environ.pop("PYTHON_WITH_TORCH", None)
if other: os.execv(other, [other, *sys.argv])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gpu
import plim

DEVICE = os.environ.get("CURVE_DEVICE", "cuda")
if DEVICE == "cuda": plim.need_gpu()
try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as e:
    print(f"no torch here: {e}")
    sys.exit(77)
if DEVICE == "cuda" and not torch.cuda.is_available():
    print("the torch that is installed has no GPU")
    sys.exit(77)

import pathlib
import tempfile

STEPS, ROWS, TIME, RATE, SEED = int(os.environ.get("CURVE_STEPS", "200")), 16, 256, 3e-4, 5
LIMITS = {"fp32": 2e-3, "bf16": 1e-2}
FEW = min(STEPS, 40)
RUNS = [("fp32", 4, 2, STEPS), ("bf16", 4, 2, STEPS), ("bf16", 4, 4, FEW), ("bf16", 2, 1, FEW)]  # heads, key heads, steps
MASK = (1 << 32) - 1


def random64(seed, stream, index):
    """rng_u64 of src/base/rng.c: Philox-4x32, ten rounds."""
    a, b, c, d = index & MASK, index >> 32, stream & MASK, stream >> 32
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (p1 >> 32) ^ b ^ k0, p1 & MASK, (p0 >> 32) ^ d ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return b << 32 | a


def order(seed, epoch, position, n):
    """order_sample of src/data/order.c: which row comes at a position."""
    half = next(h for h in range(1, 33) if 1 << 2 * h >= n)
    mask, x = (1 << half) - 1, position
    while True:
        left, right = x >> half, x & mask
        for step in range(4):
            left, right = right, left ^ (random64(seed, epoch * 4 + step, right) & mask)
        x = left << half | right
        if x < n: return x


def read_text():
    root = pathlib.Path(plim.SRC_DIR)
    files = sorted(root.glob("docs/**/*.md")) + sorted(root.glob("src/**/*.[ch]")) + sorted(root.glob("tests/**/*.[ch]"))
    text = b"".join(f.read_bytes() for f in files)
    while len(text) <= STEPS * ROWS * TIME: text += text
    return text[:STEPS * ROWS * TIME + 1]


def batches(text, steps):
    """Ids and targets of each step, [ROWS, TIME + 1] bytes, in the order the loader has them."""
    n = STEPS * ROWS
    for step in range(steps):
        rows = [order(SEED, 0, step * ROWS + r, n) for r in range(ROWS)]
        yield torch.tensor([list(text[r * TIME:r * TIME + TIME + 1]) for r in rows], device=DEVICE)


def their_losses(folder, text, precision, steps):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = {}
    for step, rows in enumerate(batches(text, steps), 1):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[step] = loss.item()
    return losses


with tempfile.TemporaryDirectory() as folder_:
    text_ = read_text()
    for kind, heads, keys, last in RUNS:
        torch.manual_seed(1)
        config = LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=704, num_hidden_layers=4,
                             num_attention_heads=heads, num_key_value_heads=keys, max_position_embeddings=TIME,
                             rms_norm_eps=1e-5, tie_word_embeddings=False)
        LlamaForCausalLM(config).save_pretrained(f"{folder_}/model")
        limit, what = LIMITS[kind], f"{kind}, {heads} heads of {256 // heads}, {keys} of keys"
        path = plim.job(folder_, training__batch_size=ROWS, training__gradient_accumulation_steps=1,
                        training__steps=last, training__learning_rate=RATE, training__mixed_precision=kind,
                        training__seed=SEED, data__max_length=TIME)
        # From the folder, not from scratch: the keys of the model are its own.
        lines = open(path).read().split("data:\n")
        with open(path, "w") as f: f.write(f"model:\n  path: {folder_}/model\ndata:\n{lines[1]}")
        with open(f"{folder_}/corpus.txt", "wb") as f: f.write(text_)
        ours = gpu.train(path, "--set", f"training.device={DEVICE}").losses()
        theirs = their_losses(f"{folder_}/model", text_, kind, last)
        for step in sorted({1, 2, 3, 5, 10, 20, 50, 100, 150, last} & theirs.keys()):
            print(f"# {what} step {step:4}: ours {ours.get(step, 0):.6f}  PyTorch {theirs[step]:.6f}")
        plim.ok(theirs[last] < 0.8 * theirs[1], f"{what}: it learns, {theirs[1]:.3f} -> {theirs[last]:.3f}")
        difference = gpu.worst(theirs, ours)
        plim.ok(difference <= limit, f"{what}: {last} losses within {difference:.1e} of PyTorch's (limit {limit:.0e})")
plim.done()
