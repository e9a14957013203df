"""PEFT folders with numbers that mean nothing, made without training, for the models of llama_folder."""
import array
import json
import os
import random
import struct

import llama_folder

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make(folder, r=8, alpha=16, targets=TARGETS, seed=1, size=0.05, **sizes):
    """adapter_config.json and adapter_model.safetensors for a model of these sizes; returns the folder."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": r, "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none", "target_modules": list(targets)}, f)
    draw = random.Random(seed)
    noise = array.array("f", (draw.gauss(0, size) for _ in range(1 << 14)))
    header, parts, at = {}, [], 0
    for name, shape in llama_folder.shapes({**llama_folder.SIZES, **sizes}):
        module = name[:-len(".weight")]
        if module.split(".")[-1] not in targets: continue
        for end, dims in (("A", [r, shape[1]]), ("B", [shape[0], r])):
            count = dims[0] * dims[1]
            begin = len(parts) * 41 % (1 << 13)
            data = (noise[begin:] * (count // (len(noise) - begin) + 1))[:count].tobytes()
            header[f"base_model.model.{module}.lora_{end}.weight"] = {"dtype": "F32", "shape": dims, "data_offsets": [at, at + len(data)]}
            parts.append(data)
            at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f: f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return folder
