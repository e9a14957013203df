#!/usr/bin/env python3
# run-tests: not=tsan
"""two runs into one output.dir: the second is refused and names the first one's process.
An output.dir that cannot be written is noticed before step 1."""
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim


def wait_for(process, log, text):
    while process.poll() is None and not (os.path.exists(log) and text in open(log).read()): time.sleep(0.002)


def lock_tests(folder, path):
    out, log = f"{folder}/run", f"{folder}/first.jsonl"
    alone = plim.run("train", path, "-q", "--steps", 2, "--set", f"output.dir={folder}/alone")
    first = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", "--steps", "1000000", "--log", log], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(first, log, '"step":1,')
    for more in ([], ["--resume"], ["--overwrite"]):
        second = plim.run("train", path, "-q", "--steps", 2, *more)
        plim.ok(second.returncode == 2 and second.stderr.count("\n") == 1 and str(first.pid) in second.stderr and "output.dir" in second.stderr,
                f"a second run {' '.join(more)}: {second.stderr.strip()}")
    other = plim.run("train", path, "-q", "--steps", 2, "--set", f"output.dir={folder}/other")
    plim.ok(other.returncode == 0 and plim.losses(other.stdout) == plim.losses(alone.stdout), "another folder is free")
    first.terminate()
    first.communicate()
    steps = len(plim.losses(open(log).read()))
    names = plim.left(out)
    plim.ok(first.returncode == 130 and names == [f"checkpoint-{steps:08d}"], f"the first run ends as ever and leaves no lock: {names}")
    after = plim.run("train", path, "-q", "--steps", steps + 2, "--resume")
    plim.ok(after.returncode == 0 and len(plim.losses(after.stdout)) == 2, f"then the folder is free {after.stderr.strip()}")

    killed = subprocess.Popen([plim.PLIMSOLL, "train", path, "-q", "--steps", "1000000", "--resume", "--log", log + "2"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(killed, log + "2", '"event":"step"')
    killed.kill()
    killed.wait()
    after = plim.run("train", path, "-q", "--steps", steps + 3, "--resume")
    plim.ok(after.returncode == 0 and len(plim.losses(after.stdout)) == 1, f"kill -9 leaves nothing that is in the way {after.stderr.strip()}")


def unusable_tests(folder, path):
    plain = f"{folder}/plain"
    open(plain, "w").write("mine")
    places = {"a file": plain, "below a file": f"{plain}/run", "/proc": "/proc/plimsoll-run", "/sys": "/sys/plimsoll-run"}
    locked = f"{folder}/locked"
    os.mkdir(locked)
    os.chmod(locked, 0o500)
    if os.geteuid(): places["a read-only folder"] = locked
    mount = f"{folder}/mount"
    os.mkdir(mount)
    mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", mount], capture_output=True).returncode == 0
    if mounted: places["a read-only disk"] = mount
    for name, place in places.items():
        result = plim.run("train", path, "--json", "--steps", 2, "--set", f"output.dir={place}")
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and "output.dir" in result.stderr and not plim.losses(result.stdout),
                f"{name}: {result.stderr.strip()}")
    if mounted: subprocess.run(["umount", mount])
    plim.ok(open(plain).read() == "mine", "and what was there is untouched")
    trial = plim.run("train", path, "-q", "--steps", 1, "--no-checkpoint", "--set", "output.dir=/proc/plimsoll-run")
    plim.ok(trial.returncode == 0, f"a run that saves nothing needs no folder {trial.stderr.strip()}")
    small = plim.run("train", path, "-q", "--budget", "6MiB", "--set", f"output.dir={folder}/never/run")
    plim.ok(small.returncode in (2, 3) and not os.path.exists(f"{folder}/never/run"), "a run that cannot begin leaves no folder")


with tempfile.TemporaryDirectory() as folder_:
    path_ = plim.job(folder_)
    lock_tests(folder_, path_)
    unusable_tests(folder_, path_)
plim.done()
