"""Runs of several ranks on this machine: mpirun over loopback and shared memory."""
import json
import os
import shutil
import subprocess
import sys

import plim

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def need_mpi():
    """Ends the test as skipped where there is no launcher or the program has no MPI module."""
    why = ""
    if not shutil.which("mpirun"): why = "no mpirun"
    elif not json.loads(plim.run("version", "--json").stdout)["features"]["mpi"]: why = "this plimsoll was built without MPI"
    if why:
        print(why)
        sys.exit(77)


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


def children(pid):
    """Ids of a launcher's ranks."""
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f: out += map(int, f.read().split())
    return out


def rank_of(pid):
    """Which rank a process is, as its launcher told it."""
    with open(f"/proc/{pid}/environ") as f: told = dict(v.partition("=")[::2] for v in f.read().split("\0"))
    return next(int(told[k]) for k in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK") if k in told)
