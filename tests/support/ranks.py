"""Runs of several ranks on this machine: mpirun over loopback and shared memory, or processes that torchrun would have started."""
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time

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


class Launcher(subprocess.Popen):
    """Open MPI's mpirun. On a busy machine it sometimes never ends after its ranks have (4.1's PMIx_server_finalize waits for a thread that waits
    for a lock, once in some hundred runs that were aborted): ranks that have all ended for a while are the end of the run."""
    PATIENCE = 10

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.code = None
        self.watch = threading.Thread(target=self.end_with_ranks, daemon=True)
        self.watch.start()

    def end_with_ranks(self):
        since = None
        while self.poll() is None:
            codes = [exit_code(pid) for pid in children(self.pid)]
            since = (since or time.monotonic()) if codes and None not in codes else None
            if since and time.monotonic() > since + self.PATIENCE:
                self.code = max(codes)
                self.kill()
                return
            time.sleep(0.1)

    def wait(self, timeout=None):
        super().wait(timeout)
        self.watch.join()
        if self.code is not None: self.returncode = self.code
        return self.returncode

    def communicate(self, *args, **kwargs):
        out = super().communicate(*args, **kwargs)
        self.wait()
        return out


def exit_code(pid):
    """Of a process that has ended and that nobody has waited for; None: it runs."""
    try:
        with open(f"/proc/{pid}/stat") as f: state, *fields = f.read().rpartition(")")[2].split()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[-1])) if state == "Z" else None


def unlike(parts, env=None):
    """Ranks with commands of their own: of [(how many, command, folder to be in or None)]."""
    out = [*MPIRUN]
    for i, (count, words, folder) in enumerate(parts):
        out += [":"] * (i > 0) + ["-n", str(count)] + (["-wdir", folder] if folder else []) + [str(w) for w in words]
    return Launcher(out, stdin=subprocess.DEVNULL, text=True, env={**os.environ, **ENV, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def apart(parts):
    """Ranks with something of their own: of [(how many, environment, arguments, folder to be in or None)]."""
    return unlike([(count, ["env", *(f"{k}={v}" for k, v in env.items()), plim.PLIMSOLL, *args], folder) for count, env, args, folder in parts])


def one_apart(ranks, which, env, *args):
    """All ranks alike, but for the environment of one of them."""
    parts = [(which, {}, args, None), (1, env, args, None), (ranks - 1 - which, {}, args, None)]
    return apart([p for p in parts if p[0]])


def start(ranks, *args, env=None, **more):
    return Launcher(command(ranks, *args), stdin=subprocess.DEVNULL, text=True, env={**os.environ, **ENV, **(env or {})}, **more)


def run(ranks, *args, env=None, limit=300):
    """To its end."""
    return ended(start(ranks, *args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE), limit)


def ended(process, limit=120):
    """A process when it has ended; one that does not is killed and has a return code of None."""
    try:
        out, err = process.communicate(timeout=limit)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)
    except subprocess.TimeoutExpired:
        process.kill()
        return subprocess.CompletedProcess(process.args, None, *process.communicate())


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
    """(exit code, output, errors) of each."""
    return [(e.returncode, e.stdout, e.stderr) for e in (ended(process, limit) for process in processes)]


def tasks(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended


def children(pid):
    """Ids of a launcher's ranks."""
    out = []
    for task in tasks(pid):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as f: out += map(int, f.read().split())
        except OSError:
            pass  # a thread that has just ended
    return out


def rank_of(pid):
    """Which rank a process is, as its launcher told it."""
    with open(f"/proc/{pid}/environ") as f: told = dict(v.partition("=")[::2] for v in f.read().split("\0"))
    return next(int(told[k]) for k in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK") if k in told)
