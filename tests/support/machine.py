"""A machine for tests: /proc and /sys/fs/cgroup in a folder (PLIMSOLL_MACHINE), kept true to one real process.

The machine has `total` bytes, others take `others`, and what the process named by follow() has resident is taken besides: the
numbers move as those of a real machine of that size would. invite() brings a real process that takes the rest. The folder lies
in memory: on a disk, a rename may wait for a journal that others keep busy, and the numbers would be late.
"""
import os
import subprocess
import sys
import tempfile
import threading
import time

KIB = 1 << 10


class Machine:
    def __init__(self, total, others=0):
        self.folder = tempfile.TemporaryDirectory(prefix="plimsoll-machine-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.root, self.total, self.others, self.limit = self.folder.name, total, others, None
        self.pid, self.neighbour, self.ending, self.writing = None, None, False, threading.Lock()
        os.makedirs(os.path.join(self.root, "proc/self"))
        os.makedirs(os.path.join(self.root, "sys/fs/cgroup"))
        with open(os.path.join(self.root, "proc/self/cgroup"), "w") as f:
            f.write("0::/\n")
        self.write()
        self.thread = threading.Thread(target=self.keep, daemon=True)
        self.thread.start()

    def put(self, name, text):
        """A reader sees the old file or the new one, never half of it."""
        path = os.path.join(self.root, name)
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)

    def ours(self, pid=None):
        try:
            with open(f"/proc/{pid or self.pid}/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        except (OSError, IndexError):
            return 0

    def write(self):
        """The numbers as they are now; a test may ask for it while the thread does the same."""
        with self.writing:
            neighbour = self.neighbour
            used = self.others + (self.ours() if self.pid else 0) + (self.ours(neighbour.pid) if neighbour else 0)
            self.put("proc/meminfo", f"MemTotal: {self.total // KIB} kB\nMemAvailable: {max(0, self.total - used) // KIB} kB\n")
            if self.limit is not None:
                self.put("sys/fs/cgroup/memory.current", f"{used}\n")
                self.put("sys/fs/cgroup/memory.stat", "inactive_file 0\n")
                self.put("sys/fs/cgroup/memory.max", f"{self.limit}\n")

    def keep(self):
        while not self.ending:
            self.write()
            time.sleep(0.005)

    def follow(self, pid):
        self.pid = pid

    def invite(self, share):
        """A real process that takes memory until so much of the machine is in use."""
        code = "import os,sys,time\nheld = []\npage = os.sysconf('SC_PAGESIZE')\n" \
               "while int(open('/proc/self/statm').read().split()[1]) * page < int(sys.argv[1]): held.append(b'x' * 200000)\n" \
               "print('full', flush=True)\ntime.sleep(600)"
        want = int(self.total * share) - self.others - self.ours()
        self.neighbour = subprocess.Popen([sys.executable, "-c", code, str(want)], stdout=subprocess.PIPE)
        self.neighbour.stdout.readline()

    def dismiss(self):
        neighbour, self.neighbour = self.neighbour, None
        neighbour.kill()
        neighbour.wait()

    def close(self):
        self.ending = True
        self.thread.join()
        self.folder.cleanup()
