"""What a measurement was made on: card, driver, libraries, processor, commit. None where it cannot be had."""
import ctypes
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def told(*command):
    """What a command prints, or None."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=HERE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 and result.stdout.strip() else None


def library(function, *names):
    """The number a library's function without arguments gives: cuBLASLt and cuDNN tell their versions so."""
    for name in names:
        try:
            ask = getattr(ctypes.CDLL(name), function)
        except (OSError, AttributeError):
            continue
        ask.restype, ask.argtypes = ctypes.c_size_t, []
        return ask()
    return None


def driver_cuda():
    """The newest CUDA the driver runs, as in 13.0."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def card():
    row = told("nvidia-smi", "-i", (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0],
               "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits")
    name, driver, mib = [cell.strip() for cell in row.splitlines()[0].split(",")] if row else (None, None, None)
    return dict(gpu=name, driver=driver, gpu_mib=int(mib) if mib and mib.isdigit() else None)


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), None)
    except OSError:
        model = None
    if not model:
        rows = (told("lscpu") or "").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in rows if line.startswith("Model name")), None)
    return f"{model or platform.machine()}, {len(os.sched_getaffinity(0))} threads"


def header(program, commit):
    """One run of compare.py. commit: what to say where there is no repository."""
    blas = ("libcublasLt.so.13", "libcublasLt.so.12")  # looked for where the program looks
    version = told(os.path.abspath(program), "version", "--json")
    return dict(date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"), **card(), cuda=driver_cuda(),
                cublaslt=library("cublasLtGetVersion", *blas, *(f"/usr/local/cuda/lib64/{name}" for name in blas)),
                cudnn=library("cudnnGetVersion", "libcudnn.so.9"), cpu=processor(),
                memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
                system=platform.platform(), commit=commit or told("git", "describe", "--always", "--tags", "--dirty"),
                plimsoll=json.loads(version)["version"] if version else None,
                command=shlex.join([os.path.basename(sys.executable)] + sys.argv))
