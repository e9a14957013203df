#!/usr/bin/env python3
"""Golden numbers of optimizers: what torch and transformers make of ten gradients.

    python tests/golden/make_optimizers.py            # rewrites optimizers/expected.safetensors beside this file
    python tests/golden/make_optimizers.py --out DIR  # writes it elsewhere, for a comparison

Names: start:<shape>, grad:<shape>:<step> (in bfloat16, so that they are exact in every type), and
<case>:<shape>:<step>, the parameter after that step, for the shapes matrix [19,23] and vector [40].
"""

import argparse
import os

import torch
from safetensors.torch import save_file
from transformers.optimization import Adafactor

STEPS = 10
SHAPES = {"matrix": (19, 23), "vector": (40,)}
FACTOR = dict(lr=1e-2, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, relative_step=False, scale_parameter=False)
CASES = {
    "adafactor": lambda p: Adafactor([p], beta1=None, weight_decay=0.0, **FACTOR),
    "adafactor_beta1": lambda p: Adafactor([p], beta1=0.9, weight_decay=0.1, **FACTOR),
    "adamw": lambda p: torch.optim.AdamW([p], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers"))
    folder = parser.parse_args().out
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(20)
    out = {}
    for shape, size in SHAPES.items():
        start = torch.randn(size, generator=random).bfloat16().float()
        out[f"start:{shape}"] = start
        grads = [(torch.randn(size, generator=random) * 10 ** (step % 4 - 2)).bfloat16() for step in range(STEPS)]
        for step, grad in enumerate(grads):
            out[f"grad:{shape}:{step}"] = grad
        for case, make in CASES.items():
            p = torch.nn.Parameter(start.clone())
            optimizer = make(p)
            for step, grad in enumerate(grads):
                p.grad = grad.float()
                optimizer.step()
                out[f"{case}:{shape}:{step}"] = p.detach().clone()
    os.makedirs(folder, exist_ok=True)
    save_file(out, os.path.join(folder, "expected.safetensors"))


main()
