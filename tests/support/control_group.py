"""A real control group with memory limits, version 1 or 2, inside the group that the test is in: no limit of its own is left.

with Group() as g: a process that calls g.enter is in a group inside g; g.limit(bytes) sets the outer one's limit. Where no group can be
made the test ends as skipped and says why. The groups are gone afterwards, whatever happens but SIGKILL; what such a test has
left is removed by the next one.
"""
import os
import signal
import sys
import time

NAME = "plimsoll-test-"
FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
         2: ("memory.max", "memory.current", "inactive_file", "memory.events")}


def skip(why):
    print(f"no control group can be made: {why}")
    sys.exit(77)


def read(path):
    with open(path) as f: return f.read()


def write(path, text):
    with open(path, "w") as f: f.write(str(text))


def trees():
    """(version, folder of this process's group) of each hierarchy that may count memory."""
    mounts = {}
    for line in read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        top, at = left.split()[3:5]
        kind, _, options = right.split(maxsplit=2)
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "memory" in options.split(",") else 0
        if version: mounts.setdefault(version, (at, top.rstrip("/")))
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1 if "memory" in controllers.split(",") else 0
        if version not in mounts or not path.startswith(mounts[version][1]): continue
        yield version, (mounts[version][0] + path[len(mounts[version][1]):]).rstrip("/")


def remove(folder):
    """A group, those inside it first; it may take a moment until its last process is gone."""
    for name in os.listdir(folder):
        if os.path.isdir(os.path.join(folder, name)): remove(os.path.join(folder, name))
    for _ in range(500):
        try: return os.rmdir(folder)
        except OSError: time.sleep(0.01)


class Group:
    def __init__(self):
        why = "no hierarchy with a memory controller is mounted"
        self.folder = None
        for version, own in trees():
            # Version 2 has no processes in a group whose children have controllers: there it is a sibling.
            for parent in [own] if version == 1 else [own, os.path.dirname(own)]:
                why = self.make(version, parent)
                if not why: return
        skip(why)

    def make(self, version, parent):
        folder = os.path.join(parent, f"{NAME}{os.getpid()}")
        try:
            for name in os.listdir(parent):
                if name.startswith(NAME) and not os.path.exists(f"/proc/{name[len(NAME):]}"): remove(os.path.join(parent, name))
            os.mkdir(folder)
        except OSError as e: return f"{parent}: {e.strerror}"
        self.version, self.folder, self.inner = version, folder, os.path.join(folder, "inner")
        self.limit_file, self.use_file, self.droppable, self.kills_file = FILES[version]
        try:
            if version == 2: write(f"{folder}/cgroup.subtree_control", "+memory")
            os.mkdir(self.inner)
            read(f"{self.inner}/{self.limit_file}")
            return None
        except OSError as e:
            self.close()
            return f"{folder}: {e.strerror}"

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, lambda n, _: sys.exit(128 + n))
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.folder and os.path.exists(self.inner):
            for pid in read(f"{self.inner}/cgroup.procs").split(): os.kill(int(pid), signal.SIGKILL)
        if self.folder: remove(self.folder)
        self.folder = None

    def enter(self):
        """For preexec_fn: the process that is being started."""
        write(f"{self.inner}/cgroup.procs", os.getpid())

    def limit(self, amount):
        write(f"{self.folder}/{self.limit_file}", amount)

    def used(self):
        """Bytes that cannot simply be dropped."""
        stat = dict(line.split() for line in read(f"{self.folder}/memory.stat").splitlines())
        return int(read(f"{self.folder}/{self.use_file}")) - int(stat[self.droppable])

    def kills(self):
        """Processes that the system has ended for want of memory."""
        found = dict(line.split() for line in read(f"{self.inner}/{self.kills_file}").splitlines())
        return int(found.get("oom_kill", 0))
