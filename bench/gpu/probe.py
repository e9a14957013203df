"""Builds and runs cudnn_probe.c: cuDNN's attention checked against the host and timed, without the rest of the program."""
import glob
import os
import subprocess

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TOOLKIT = "/usr/local/cuda/include"  # cudnn_graph.h may be here; then the numbers of cudnn_api.h are compared with it


def build(folder, *flags):
    """The program's path; CalledProcessError when it does not compile."""
    program = os.path.join(folder, "cudnn_probe")
    sources = [f"{ROOT}/bench/gpu/cudnn_probe.c", *sorted(glob.glob(f"{ROOT}/src/device/cuda/cudnn_*.c")),
               f"{ROOT}/src/base/status.c", f"{ROOT}/src/tensor/dtype.c"]
    more = [f"-I{TOOLKIT}"] if os.path.isdir(TOOLKIT) else []
    subprocess.run([os.environ.get("CC", "cc"), "-O3", "-std=gnu11", f"-I{ROOT}/src", f"-I{ROOT}/include", *more, *flags, *sources, "-ldl", "-lm",
                    "-lpthread", "-o", program], check=True)
    return program


def run(folder):
    """Its exit code; 77: no driver or no cuDNN."""
    return subprocess.run([build(folder)]).returncode
