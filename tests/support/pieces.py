"""Weights of a folder as a checkpoint has them: one safetensors file, or pieces that several ranks wrote."""
import json
import os
import struct


def read_file(path):
    """name -> (dtype, shape, bytes), in the order of the data."""
    with open(path, "rb") as f: raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    head, data = json.loads(raw[8:8 + n]), raw[8 + n:]
    head.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for name, t in head.items()}


def read(folder):
    """The same of a folder, its pieces joined."""
    whole = os.path.join(folder, "model.safetensors")
    if os.path.exists(whole): return read_file(whole)
    with open(os.path.join(folder, "model.pieces.json")) as f: index = json.load(f)
    parts, out = [read_file(os.path.join(folder, name)) for name in index["files"]], {}
    for name, shape in index["tensors"].items():
        have = [p[name] for p in parts if name in p]
        out[name] = (have[0][0], shape, b"".join(h[2] for h in have))
    return out


def checkpoint(path):
    """Parameters, masters and moments."""
    return {**read(path), **{"state " + k: v for k, v in read(os.path.join(path, "state")).items()}}
