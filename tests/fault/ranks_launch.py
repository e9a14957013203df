#!/usr/bin/env python3
# run-tests: not=asan, not=tsan
"""Who starts ranks, and what is refused: MPICH's launcher beside Open MPI's, torchrun without either, and ranks that do not belong together.
However they were started they compute the same bits, and whatever is wrong is one line and the end of all.
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim
import ranks

ranks.need_mpi()
MPICH = ranks.feature("mpich")
STEPS = 3


def job(folder, **changes):
    keys = dict(training__gradient_accumulation_steps=2, training__threads=1, training__batch_size=2, training__max_grad_norm=0.5, model__num_layers=2)
    return plim.job(folder, **{**keys, **changes})


def losses(text):
    return list(plim.losses(text or "").values())


def lines(*texts):
    return [l for t in texts for l in (t or "").splitlines() if l.startswith("plimsoll:")]


def mpich(folder):
    if not MPICH or not shutil.which("mpiexec.mpich"):
        plim.skip("MPICH is not installed")
        return
    path = job(folder)
    for count, stage in ((3, 0), (2, 3)):
        args = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", STEPS, "--set", f"training.zero_stage={stage}"]
        want, got = ranks.run(count, *args), ranks.by_mpich(count, *args)
        plim.ok(len(losses(want.stdout)) == STEPS and losses(want.stdout) == losses(got.stdout), f"MPICH, {count} ranks, stage {stage}: Open MPI's bits {got.stderr.strip()[:300]}")
    bad = ranks.by_mpich(2, "train", path, "-q", "--set", "training.zero_stage=9")
    plim.ok(bad.returncode == 2 and len(lines(bad.stderr)) == 1, f"MPICH: an error of all is told once: {bad.stderr.strip()[:200]}")


def torch(folder):
    if not MPICH:
        plim.skip("MPICH is not installed")
        return
    path = job(folder)
    for count, stage in ((3, 1), (2, 3)):
        args = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", STEPS, "--set", f"training.zero_stage={stage}"]
        want = losses(ranks.run(count, *args).stdout)
        got = ranks.finish(ranks.start_by_torch(count, *args))
        plim.ok(len(want) == STEPS and losses(got[0][1]) == want and all(g[0] == 0 for g in got), f"torchrun's environment, {count} ranks, stage {stage}: mpirun's bits {[g[2].strip()[:200] for g in got]}")
    bad = ranks.finish(ranks.start_by_torch(2, "train", path, "-q", "--set", "training.zero_stage=9"))
    plim.ok([b[0] for b in bad] == [2, 2] and len(lines(*(b[2] for b in bad))) == 1, f"an error of all is told once: {[b[2].strip()[:200] for b in bad]}")
    real = shutil.which("torchrun")
    if not real:
        plim.skip("torchrun is not installed")
        return
    args = ["train", path, "-q", "--json", "--no-checkpoint", "--steps", str(STEPS), "--set", "training.zero_stage=2"]
    result = subprocess.run([real, "--nproc_per_node", "2", "--master_port", str(ranks.free_port()), "--no-python", plim.PLIMSOLL, *args], capture_output=True, text=True, timeout=300)
    plim.ok(result.returncode == 0 and losses(result.stdout) == losses(ranks.run(2, *args).stdout), f"torchrun itself: {result.stderr.strip()[-300:]}")


def torch_meeting(folder):
    """A rank that does not come, a port that is taken, two of a kind, and no address."""
    if not MPICH: return
    args = ["train", job(folder), "-q", "--json", "--no-checkpoint", "--steps", STEPS]
    short = {"PLIMSOLL_PATIENCE": "2"}

    def ends(name, processes, said, codes=(2,)):
        got = ranks.finish(processes, 60)
        told = lines(*(g[2] for g in got))
        plim.ok(all(g[0] in codes for g in got) and len(told) == 1 and said in told[0], f"{name}: {[g[0] for g in got]} {told}")

    ends("rank 2 does not come", ranks.start_by_torch(3, *args, env=short, which=(0, 1)), "rank 2 of 3 did not come to 127.0.0.1:")
    ends("rank 0 does not come", ranks.start_by_torch(3, *args, env=short, which=(1, 2)), "rank 0 of 3 did not come within 2 s")
    port = ranks.free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 100))
        taken.listen()
        ends("the port is taken", ranks.start_by_torch(2, *args, env=short, port=port), f"127.0.0.1:{port + 100}: ranks cannot meet here: Address already in use")
        other = str(ranks.free_port())
        got = ranks.finish(ranks.start_by_torch(2, *args, env={"PLIMSOLL_PORT": other}, port=port))
        plim.ok(all(g[0] == 0 for g in got) and len(losses(got[0][1])) == STEPS, f"PLIMSOLL_PORT names another: {[g[2].strip()[:200] for g in got]}")
    port = ranks.free_port()
    ends("two are rank 1", ranks.start_by_torch(3, *args, env=short, port=port, which=(0, 1, 1)), "two processes are rank 1")
    alone = plim.run("train", *args[1:], env={"WORLD_SIZE": "2", "MASTER_ADDR": "", "RANK": ""})
    plim.ok(alone.returncode == 2 and "MASTER_ADDR" in alone.stderr and "mpirun -n 2" in alone.stderr, f"no address: {alone.stderr.strip()[:200]}")


def another_command(folder):
    """A rank that runs something else keeps the library waiting for ever: the others name it, and end."""
    args = [plim.PLIMSOLL, "train", job(folder), "-q", "--json", "--no-checkpoint"]
    for other, said in (("sleep 60", "rank 2 runs 'sleep 60'"), ("true", "2 of this machine's 3 ranks are running")):
        for _ in range(10):
            got = ranks.ended(ranks.unlike([(2, args, None), (1, other.split(), None)], {"PLIMSOLL_PATIENCE": "2"}))
            if "exiting improperly" not in got.stderr: break  # of a rank that ends after another has begun to meet, mpirun itself may tell first
        told = [line for line in got.stderr.splitlines() if line.startswith("plimsoll: ")]
        plim.ok(got.returncode not in (0, None) and told and said in told[0], f"{other}: {got.returncode} {told}")


def torch_failure(folder):
    """Nobody watches over such ranks: they do it themselves."""
    if not MPICH: return
    path = job(folder, training__steps=100000, training__zero_stage=3)
    args = ["train", path, "-q", "--json", "--no-checkpoint"]
    for victim, sign, said in ((2, signal.SIGKILL, "rank 2 has ended"), (0, signal.SIGKILL, "rank 0 has ended"), (1, signal.SIGSTOP, "rank 1 did not answer within 8 s")):
        # A quarter of it is for the others to say that they are there. Only the rank that stops is waited for so long.
        processes = ranks.start_by_torch(3, *args, env={"PLIMSOLL_PATIENCE": "8" if sign == signal.SIGSTOP else "40"})
        processes[0].stdout.readline(), processes[0].stdout.readline()
        os.kill(processes[victim].pid, sign)
        began = time.monotonic()
        got = ranks.finish([p for r, p in enumerate(processes) if r != victim], 60)
        took = time.monotonic() - began
        if sign == signal.SIGSTOP: processes[victim].kill()
        ranks.finish([processes[victim]])
        told = lines(*(g[2] for g in got))
        once = len(told) == 1 and said in told[0]
        # The library was copying from the dead one's memory: it speaks first, or ends a second rank, which the third then names.
        spoke = sign == signal.SIGKILL and any(g[2].strip() and not lines(g[2]) for g in got)
        library = spoke and (not told or (len(told) == 1 and "has ended" in told[0]))
        plim.ok(all(g[0] not in (0, None) for g in got) and (once or library), f"rank {victim} gets {sign.name}: all end after {took:.1f} s, told once: {told or got}")
    processes = ranks.start_by_torch(2, *args)
    processes[0].stdout.readline(), processes[0].stdout.readline()
    processes[1].send_signal(signal.SIGTERM)
    got = ranks.finish(processes)
    plim.ok([g[0] for g in got] == [130, 130], f"SIGTERM to one ends all: {[g[0] for g in got]} {[g[2].strip()[:200] for g in got]}")


def alone(folder, *modules):
    """The program in a folder of its own, with these modules beside it."""
    os.makedirs(folder)
    build = os.path.dirname(os.path.abspath(plim.PLIMSOLL))
    for name in ("plimsoll", *modules): shutil.copy(os.path.join(build, name), folder)
    return os.path.join(folder, "plimsoll")


def modules(folder):
    """The module of the launcher's MPI is missing: told by one rank, with what is here."""
    path, own = job(folder), plim.PLIMSOLL
    args = ["train", path, "-q", "--no-checkpoint", "--steps", 1]
    cases = [("mpirun without a module", (), ranks.run, "the module for Open MPI is not usable (plimsoll-mpi.so is not beside the program)", None)]
    if MPICH and shutil.which("mpiexec.mpich"):
        cases += [("mpiexec of MPICH with the other module", ("plimsoll-mpi.so",), ranks.by_mpich, "the module for MPICH is not usable", "start them by the mpirun of Open MPI, whose module is here"),
                  ("mpirun with the other module", ("plimsoll-mpich.so",), ranks.run, "the module for Open MPI is not usable", "start them by the mpirun of MPICH, whose module is here")]
    for i, (name, here, run, said, rather) in enumerate(cases):
        plim.PLIMSOLL = alone(f"{folder}/alone{i}", *here)
        result = run(2, *args)
        plim.PLIMSOLL = own
        told = lines(result.stderr)
        plim.ok(result.returncode not in (0, None) and len(told) == 1 and said in told[0] and (not rather or rather in told[0]), f"{name}: {result.returncode} {told or result.stderr.strip()[:300]}")
    broken = f"{folder}/broken.so"
    with open(broken, "w") as f: f.write("no library")
    result = ranks.run(2, *args, env={"PLIMSOLL_MPI": broken})
    plim.ok(result.returncode not in (0, None) and len(lines(result.stderr)) == 1 and "broken.so: file too short" in result.stderr, f"a module that cannot be loaded: {lines(result.stderr)}")


def strangers(folder):
    """Ranks of another program, with other keys, with other data."""
    path = job(folder)
    args = ["train", path, "-q", "--no-checkpoint", "--steps", 2]

    def refused(name, process, said):
        out, told = process.communicate(timeout=120)
        plim.ok(process.returncode not in (0, None) and len(lines(told)) == 1 and said in lines(told)[0], f"{name}: {process.returncode} {lines(told) or told.strip()[:300]}")

    other = alone(f"{folder}/other", "plimsoll-mpi.so")
    with open(other, "r+b") as f:
        text = f.read()
        at = text.find(b"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0") + 16
        f.seek(at), f.write(bytes(255 - b for b in text[at:at + 20]))
    refused("another program", ranks.unlike([(1, [plim.PLIMSOLL, *args], None), (1, [other, *args], None)]), "rank 1: the program is not that of rank 0")
    for key, value in (("training.learning_rate", 0.5), ("training.steps", 3), ("training.seed", 8), ("training.save_every", 1)):
        apart = [(1, {}, args, None), (1, {}, [*args[:4], *args[6:], "--steps", 3] if key == "training.steps" else [*args, "--set", f"{key}={value}"], None)]
        refused(f"another {key}", ranks.apart(apart), f"rank 1: {key} is not that of rank 0")
    with tempfile.TemporaryDirectory() as there:
        elsewhere = job(there)
        with open(f"{there}/corpus.txt", "a") as f: f.write("One line more.\n")
        refused("other data", ranks.apart([(1, {}, args, None), (1, {}, ["train", elsewhere, *args[2:]], None)]), "rank 1: data.train is not that of rank 0")


for part in (mpich, torch, another_command, torch_meeting, torch_failure, modules, strangers):
    with tempfile.TemporaryDirectory() as folder: part(folder)
plim.done()
