"""Runs of several ranks on this machine: mpirun over loopback and shared memory, or processes that torchrun would have started."""
import json
import os
import random
import shutil
import socket
import subprocess
import sys

import plim

MPIRUN = [shutil.which("mpirun.openmpi") or "mpirun", "--oversubscribe", "--bind-to", "none"]
ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def need_mpi():
    """Ends the test as skipped where there is no launcher or the program has no MPI module."""
    why = ""
    if not shutil.which("mpirun"): why = "no mpirun"
    elif not feature("mpi"): why = "this plimsoll was built without MPI"
    if why:
        print(why)
        sys.exit(77)


def feature(name):
    return json.loads(plim.run("version", "--json").stdout)["features"][name]


def command(ranks, *args):
    return [*MPIRUN, "-n", str(ranks), plim.PLIMSOLL, *map(str, args)]


def apart(parts):
    """Ranks with something of their own: of [(how many, environment, arguments, folder to be in or None)]."""
    out = [*MPIRUN]
    for i, (count, env, args, folder) in enumerate(parts):
        out += [":"] * (i > 0) + ["-n", str(count)] + (["-wdir", folder] if folder else [])
        out += ["env", *(f"{k}={v}" for k, v in env.items()), plim.PLIMSOLL, *map(str, args)]
    return subprocess.Popen(out, stdin=subprocess.DEVNULL, text=True, env={**os.environ, **ENV}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def one_apart(ranks, which, env, *args):
    """All ranks alike, but for the environment of one of them."""
    parts = [(which, {}, args, None), (1, env, args, None), (ranks - 1 - which, {}, args, None)]
    return apart([p for p in parts if p[0]])


def start(ranks, *args, env=None, **more):
    return subprocess.Popen(command(ranks, *args), stdin=subprocess.DEVNULL, text=True, env={**os.environ, **ENV, **(env or {})}, **more)


def run(ranks, *args, env=None, limit=300):
    """To its end; a run that does not come to one is killed and has a return code of None."""
    process = start(ranks, *args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return subprocess.CompletedProcess(args, None, out, err)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def by_mpich(ranks, *args, env=None, limit=300):
    """To its end under MPICH's launcher."""
    return subprocess.run(["mpiexec.mpich", "-n", str(ranks), plim.PLIMSOLL, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, timeout=limit)


def free_port():
    """A port that is free, as is the one where ranks meet. Both are below those that the system gives to whoever asks for any, for it
    is a moment until they are taken, and tests beside this one ask for many."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f: first = int(f.read().split()[0])
    low, high = (10000, first - 100) if first > 12000 else (50000, 65000)
    while True:
        port = random.SystemRandom().randrange(low, high)
        with socket.socket() as a, socket.socket() as b:
            try:
                a.bind(("127.0.0.1", port))
                b.bind(("127.0.0.1", port + 100))
                return port
            except OSError:
                continue


def torch_env(rank, ranks, port):
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"}


def start_by_torch(ranks, *args, env=None, port=None, which=None):
    """Processes with the environment that torchrun gives them; `which` of them, else all."""
    port = port or free_port()
    return [subprocess.Popen([plim.PLIMSOLL, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, **torch_env(r, ranks, port), **(env or {})}) for r in which or range(ranks)]


def finish(processes, limit=120):
    """(exit code, output, errors) of each; a process that does not end is killed and has None."""
    out = []
    for process in processes:
        try:
            text, told = process.communicate(timeout=limit)
            out.append((process.returncode, text, told))
        except subprocess.TimeoutExpired:
            process.kill()
            text, told = process.communicate()
            out.append((None, text, told))
    return out


def children(pid):
    """Ids of a launcher's ranks."""
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as f: out += map(int, f.read().split())
        except OSError:
            pass  # a thread that has just ended
    return out


def rank_of(pid):
    """Which rank a process is, as its launcher told it."""
    with open(f"/proc/{pid}/environ") as f: told = dict(v.partition("=")[::2] for v in f.read().split("\0"))
    return next(int(told[k]) for k in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK") if k in told)
