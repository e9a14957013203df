"""What the tools that make packages share: version, time stamp, and the libraries that a build uses with their Debian packages."""
import functools
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ("plimsoll", "libplimsoll.so.0", "libplimsoll_torch.so", "plimsoll-mpi.so", "plimsoll-mpich.so")


def output(*command, **options) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True, **options).stdout


def version() -> str:
    return output(ROOT / "tools" / "version").strip()


def epoch() -> int:
    return int(output(ROOT / "tools" / "version", "--epoch"))


def linked(path) -> dict:
    """Libraries that a file links, by name, with those that they link."""
    return dict(re.findall(r"(\S+) => (/\S+)", output("ldd", path)))


def needed(path) -> list:
    """Names of the libraries that a file itself links."""
    return re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", path))


def cached(build, name) -> str:
    """A setting of a build; "" without it."""
    found = re.search(rf"^{name}:\w+=(.*)$", (pathlib.Path(build) / "CMakeCache.txt").read_text(), re.M)
    return found[1] if found and not found[1].endswith("NOTFOUND") else ""


def opened(build) -> list:
    """Libraries that the program opens at run time, as the loader finds them."""
    paths = [cached(build, f"PLIMSOLL_{name}_LIBRARY") for name in ("http", "curl") if cached(build, f"PLIMSOLL_{name.upper()}") == "ON"]
    return [os.path.realpath(p) for p in paths if p]


@functools.lru_cache(None)
def debian_package(path) -> dict:
    """name, version and source of the Debian package that a file is from; {} elsewhere than on Debian."""
    real = os.path.realpath(path)
    for name in (str(path), real, real.removeprefix("/usr")):
        if not shutil.which("dpkg-query"): break
        found = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if found.returncode: continue
        package = found.stdout.split(": ")[0].split(",")[0]
        fields = output("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${source:Package}", package).split("\t")
        return dict(zip(("name", "version", "source"), fields))
    return {}
