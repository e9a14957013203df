"""Generates text inside a budget, piece by piece: python serve.py runs/demo 256MiB "Once upon a time" """
import sys

import plimsoll

with plimsoll.Engine(sys.argv[1], budget=sys.argv[2]) as engine:
    for piece in engine.stream(sys.argv[3], max_tokens=64):
        print(piece, end="", flush=True)
    print()
