"""Trains a job inside a budget: python train.py job.yaml 64MiB"""
import sys

import plimsoll

with plimsoll.Trainer(sys.argv[1], budget=sys.argv[2], overwrite=True) as trainer:
    for step in trainer:
        print(f"step {step['step']} of {step['steps']}: loss {step['loss']:.4f}, {step['tokens_per_second']:.0f} tokens/s")
    print("saved", trainer.checkpoint)
