#!/usr/bin/env python3
"""What is said when a GPU is not there or cannot be used, with a CUDA runtime that fails to order
(tests/support/fake_cuda.c). Skips itself in a build without CUDA."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

PROGRAM = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "fake_cuda", "plimsoll")
if not os.path.exists(PROGRAM):
    print("this build has no CUDA")
    sys.exit(77)
plim.PLIMSOLL = PROGRAM

# What is wrong, exit code of training.device: cuda, words of its line, whether auto tells them too.
FAULTS = [
    ("none", 2, ["no NVIDIA driver"], False),
    ("no-card", 2, ["no NVIDIA GPU"], False),
    ("old", 2, ["for CUDA 11.4", "install it"], True),
    ("volta", 2, ["GPU 0 (Fake card)", "compute capability 7.0", "8.0 or newer"], True),
    ("full", 4, ["GPU 0", "too little free memory", "nvidia-smi"], True),
    ("no-map", 2, ["driver is too old", "cuMem"], True),
    ("no-cublaslt", 2, ["cuBLASLt is missing", "LD_LIBRARY_PATH"], True),
]


def train(device, fault):
    return plim.run("train", path, "-q", "--json", "--no-checkpoint", "--set", f"training.device={device}",
                    env={"FAKE_CUDA": fault})


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__steps=2)
    cpu = train("cpu", "none")
    device = [e["device"] for e in plim.events(cpu.stdout) if e["event"] == "plan"]
    plim.ok(cpu.returncode == 0 and len(plim.losses(cpu.stdout)) == 2 and len(device) == 1, f"the CPU alone: {device}")
    for fault, code, words, told in FAULTS:
        refused = train("cuda", fault)
        plim.ok(refused.returncode == code and refused.stderr.count("\n") == 1 and not refused.stdout
                and refused.stderr.startswith(f"plimsoll: {path}: ") and all(w in refused.stderr for w in [*words, "training.device: cpu"]),
                f"{fault}: {refused.returncode}, {refused.stderr.strip()}")
        auto = train("auto", fault)
        line = auto.stderr.startswith("plimsoll: using the CPU: ") and auto.stderr.count("\n") == 1 \
            and all(w in auto.stderr for w in words)
        plim.ok(line if told else not auto.stderr, f"{fault}: auto says {auto.stderr.strip() or 'nothing'}")
        plim.ok(auto.returncode == 0 and plim.losses(auto.stdout) == plim.losses(cpu.stdout)
                and [e["device"] for e in plim.events(auto.stdout) if e["event"] == "plan"] == device,
                f"{fault}: auto trains on the CPU")

    # A budget below what the card's context takes is refused before the card is opened, by what is known of it: its
    # preset, or what it took when it was last open.
    tight = lambda device, budget, **env: plim.run("train", path, "-q", "--json", "--no-checkpoint", "--set", f"training.device={device}",
                                                   "-b", budget, env={"FAKE_CUDA": "h200", **env})
    refused = tight("cuda", "500MiB")
    plim.ok(refused.returncode == 3 and "OPENED" not in refused.stderr and "566 MiB of the budget of 500 MiB" in refused.stderr and refused.stderr.count("\n") == 1,
            f"refused unopened: {refused.stderr.strip()}")
    opened = tight("cuda", "600MiB")
    plim.ok("OPENED" in opened.stderr, "one above the preset's overhead is tried")
    key = 0xcbf29ce484222325
    for byte in b"NVIDIA H200, context": key = (key ^ byte) * 0x100000001b3 % 2 ** 64
    os.makedirs(f"{folder}/cache/plimsoll")
    with open(f"{folder}/cache/plimsoll/cuda-{key:016x}.json", "w") as f: f.write('{"card": "NVIDIA H200", "context_bytes": 720371712}')
    refused = tight("cuda", "600MiB", XDG_CACHE_HOME=f"{folder}/cache")
    plim.ok(refused.returncode == 3 and "OPENED" not in refused.stderr and "687 MiB" in refused.stderr, f"what it took before is remembered: {refused.stderr.strip()}")
    auto = tight("auto", "64MiB")
    plim.ok(auto.returncode == 0 and "OPENED" not in auto.stderr and auto.stderr.startswith("plimsoll: using the CPU: ") and plim.losses(auto.stdout),
            f"auto takes the CPU and says why: {auto.stderr.strip()}")
plim.done()
