"""Two machines on one: network namespaces with host names of their own, a wire between them, and mpirun over it.

    with two_hosts.Hosts("1gbit") as hosts:
        hosts.shaped, hosts.run(1, "train", job, ...)          # so many ranks on each host

The wire is a pair of veth devices; where the kernel can shape it has that rate, and where it has netem 1 ms each way. Without a rate
it is as fast as the machine copies.
"""
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import plim
import ranks

NET = "10.77.31"


def _ok(*command):
    return subprocess.run(command, capture_output=True).returncode == 0


def _ip(*args):
    return _ok("ip", *args)


class Hosts:
    def __init__(self, rate="1gbit"):
        self.rate = rate
        self.names = [f"plim{os.getpid()}{side}" for side in "ab"]
        self.shaped = self.delayed = False

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        good = all(_ip("netns", "add", name) for name in self.names)
        a, b = self.names
        good = good and _ip("link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b)
        for i, name in enumerate(self.names, 1):
            good = good and _ip("-n", name, "addr", "add", f"{NET}.{i}/24", "dev", "wire")
            good = good and _ip("-n", name, "link", "set", "wire", "up") and _ip("-n", name, "link", "set", "lo", "up")
        if not good:
            self.__exit__()
            return None
        tc = [["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "wire"] for name in self.names]
        self.shaped = bool(self.rate) and all(_ok(*t, "root", "handle", "1:", "tbf", "rate", self.rate, "burst", "256kb", "latency", "100ms") for t in tc)
        self.delayed = bool(self.rate) and all(_ok(*t, "parent" if self.shaped else "root", *(["1:"] if self.shaped else []), "netem", "delay", "1ms") for t in tc)
        agent = os.path.join(self.folder.name, "agent")
        with open(agent, "w") as f:
            f.write(f'#!/bin/sh\nshift\nexec ip netns exec {b} unshare --uts sh -c "hostname {b}; $*"\n')
        os.chmod(agent, stat.S_IRWXU)
        self.agent = agent
        return self

    def __exit__(self, *_):
        for name in self.names: _ip("netns", "delete", name)
        self.folder.cleanup()

    def command(self, each, *args):
        net = f"{NET}.0/24"
        mpirun = [*ranks.MPIRUN, "--leave-session-attached", "--mca", "plm_rsh_agent", self.agent, "--mca", "oob_tcp_if_include", net, "--mca", "btl_tcp_if_include", net,
                  "--mca", "btl", "tcp,vader,self", "--host", f"{NET}.1:{each},{NET}.2:{each}", "-n", str(2 * each),
                  "-x", "PLIMSOLL_LANE", "-x", "PLIMSOLL_CALIBRATE"]
        return ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", f'hostname {self.names[0]}; exec "$@"', "sh",
                *mpirun, os.path.abspath(plim.PLIMSOLL), *map(str, args)]

    def run(self, each, *args, env=None, limit=300):
        return ranks.ended(ranks.Launcher(self.command(each, *args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          env={**os.environ, **ranks.ENV, "PLIMSOLL_LANE": "1", **(env or {})}), limit)


def need():
    """Ends the test as skipped where two hosts cannot be made."""
    ranks.need_mpi()
    why = next((f"no {tool}" for tool in ("ip", "tc", "unshare") if not shutil.which(tool)), "")
    if not why and os.geteuid(): why = "network namespaces need root"
    if not why:
        with Hosts() as hosts: why = "" if hosts else "the kernel makes no network namespaces"
    if why:
        print(why)
        sys.exit(77)
