#!/usr/bin/env python3
"""Packages: the version is the same everywhere, Debian packages have the right files and dependencies, and the bill of materials is whole.

PLIMSOLL_LONG_TESTS=1 also builds in two folders and compares every byte, and installs wheel and packages into a fresh Debian (as root, with mmdebstrap
and a network) where README's commands must work.
"""
# run-tests: timeout=3600
import glob
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

ROOT = pathlib.Path(plim.SRC_DIR).resolve()
BUILD = pathlib.Path(plim.PLIMSOLL).resolve().parent
NAMES = ("libplimsoll-dev", "libplimsoll0", "plimsoll", "python3-plimsoll")


def shell(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)


def check_versions():
    number, date = (shell(ROOT / "tools" / "version", *words).stdout.strip() for words in ([], ["--date"]))
    major, minor, patch = map(int, number.split("."))
    header = int(re.search(r"#define PLIM_VERSION (\d+)", (ROOT / "include/plimsoll/status.h").read_text())[1])
    plim.ok(header == 10000 * major + 100 * minor + patch, f"header: {header} is {number}")
    plim.ok(plim.run("version").stdout.startswith(f"plimsoll {number}\n"), f"program: {number}")
    title = plim.run("docs", "man").stdout.splitlines()[0]
    plim.ok(f'"{date}"' in title and f'"plimsoll {number}"' in title, f"man page: {title}")
    plim.ok(re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == number, f"CHANGELOG.md begins with {number}")
    plim.ok(f"    plimsoll {number}\n" in (ROOT / "docs/output.md").read_text(), f"docs/output.md shows {number}")
    return number


def check_paths():
    """A release build does not record where it was made, so that it can be made elsewhere."""
    for name in ("plimsoll", "libplimsoll.so.0", "libplimsoll_torch.so", "archive/libplimsoll.a"):
        plim.ok(str(ROOT).encode() not in (BUILD / name).read_bytes(), f"{name} does not name {ROOT}")


def make(folder):
    if "PLIMSOLL_FAULTS:BOOL=ON" in (BUILD / "CMakeCache.txt").read_text():
        refused = shell(ROOT / "tools/make-deb", BUILD, folder)
        plim.ok(refused.returncode == 1 and "fails on demand" in refused.stderr and refused.stderr.count("\n") == 1, f"a build for tests is refused: {refused.stderr}")
    made = shell(ROOT / "tools/make-deb", BUILD, folder, "--for-tests")
    plim.ok(made.returncode == 0 and not made.stderr, f"make-deb {made.stderr[-300:]}")
    debs = {pathlib.Path(p).name.split("_")[0]: p for p in glob.glob(f"{folder}/*.deb")}
    plim.ok(sorted(debs) == sorted(NAMES), f"four packages: {sorted(debs)}")
    return debs


def check_control(debs, number):
    fields = {name: dict(re.findall(r"^([\w-]+): (.*)$", shell("dpkg-deb", "-f", path).stdout, re.M)) for name, path in debs.items()}
    plim.ok(all(f["Version"] == f"{number}-1" for f in fields.values()), f"version {number}-1")
    for name, words in {"plimsoll": ("libc6", "libyaml", "zlib1g", "libzstd1", "libmicrohttpd"), "libplimsoll0": ("libc6", "libyaml", "zlib1g", "libzstd1"),
                        "libplimsoll-dev": (f"libplimsoll0 (= {number}-1)",), "python3-plimsoll": (f"libplimsoll0 (= {number}-1)", "python3:any")}.items():
        plim.ok(all(w in fields[name]["Depends"] for w in words), f"{name} depends on {fields[name]['Depends']}")
    plim.ok("mpi" not in fields["plimsoll"]["Depends"], "no MPI is needed")


def unpack(debs, folder):
    """All packages in one folder, as apt would; no file is in two of them."""
    seen = {}
    for name, path in debs.items():
        for line in shell("dpkg-deb", "-c", path).stdout.splitlines():
            mode, owner, file = line.split()[0], line.split()[1], line.split()[5]
            if mode[0] == "d": continue
            if owner != "root/root" or file in seen: plim.ok(False, f"{name}: {file} belongs to {owner}; also in {seen.get(file)}")
            seen[file] = name
        shell("dpkg-deb", "-x", path, folder)
    return seen


WHERE = (  # file, package
    (r"\./usr/bin/plimsoll", "plimsoll"), (r"\./usr/share/man/man1/plimsoll\.1\.gz", "plimsoll"), (r"\./usr/share/bash-completion/completions/plimsoll", "plimsoll"),
    (r"\./usr/share/zsh/\S+/_plimsoll", "plimsoll"), (r"\./usr/share/doc/plimsoll/plimsoll\.spdx\.json\.gz", "plimsoll"), (r"\./usr/share/doc/plimsoll/docs/cli\.md", "plimsoll"),
    (r"\./usr/share/doc/plimsoll/examples/demo/corpus\.txt", "plimsoll"), (r"\./usr/libexec/plimsoll/entrypoint", "plimsoll"),
    (r"\./usr/share/doc/plimsoll/examples/systemd/plimsoll-serve@\.service", "plimsoll"), (r"\./usr/lib/(.+/)?libplimsoll\.so\.0", "libplimsoll0"),
    (r"\./usr/lib/(.+/)?libplimsoll\.so", "libplimsoll-dev"), (r"\./usr/lib/(.+/)?libplimsoll\.a", "libplimsoll-dev"), (r"\./usr/include/plimsoll/plimsoll\.h", "libplimsoll-dev"),
    (r"\./usr/lib/(.+/)?pkgconfig/plimsoll\.pc", "libplimsoll-dev"), (r"\./usr/lib/(.+/)?plimsoll-config\.cmake", "libplimsoll-dev"),
    (r"\./usr/lib/python3/dist-packages/plimsoll/__init__\.py", "python3-plimsoll"), (r"\./usr/lib/python3/dist-packages/plimsoll/lib/libplimsoll_torch\.so", "python3-plimsoll"),
)


def check_files(seen, root):
    for pattern, package in WHERE:
        found = [file for file in seen if re.fullmatch(pattern, file)]
        plim.ok(len(found) == 1 and seen[found[0]] == package, f"{package} has {found or pattern}")
    for module in glob.glob(f"{BUILD}/plimsoll-mpi*.so"):
        plim.ok(f"./usr/lib/plimsoll/{os.path.basename(module)}" in seen, f"{os.path.basename(module)} is where the program looks")
    for name in NAMES: plim.ok({f"./usr/share/doc/{name}/{x}" for x in ("copyright", "changelog.Debian.gz")} <= set(seen), f"{name}: copyright and changelog")
    plim.ok(not any("__pycache__" in file for file in seen), "no byte code")
    plim.ok(".debug_" not in shell("objdump", "-h", f"{root}/usr/bin/plimsoll").stdout, "the program is stripped")


def check_use(root, number):
    """What is in the packages works together."""
    ran = shell(f"{root}/usr/bin/plimsoll", "version")
    plim.ok(ran.stdout.startswith(f"plimsoll {number}"), f"the program runs {ran.stderr[-200:]}")
    library = os.path.dirname(glob.glob(f"{root}/usr/lib/**/libplimsoll.so.0", recursive=True)[0])
    script = "import plimsoll, importlib.metadata as m, plimsoll.torch as t; print(plimsoll.__version__, m.version('plimsoll'), t._plugin_path())"
    env = {k: v for k, v in os.environ.items() if k != "PLIMSOLL_LIBRARY"} | {"PYTHONPATH": f"{root}/usr/lib/python3/dist-packages", "LD_LIBRARY_PATH": library}
    told = shell("python3", "-c", script, env=env)
    plim.ok(told.stdout.split() == [number, number, f"{root}/usr/lib/python3/dist-packages/plimsoll/lib/libplimsoll_torch.so"], f"python3-plimsoll: {told.stdout}{told.stderr[-300:]}")
    if not shutil.which("pkg-config"): return
    flags = shell("pkg-config", "--cflags", "plimsoll", env={**os.environ, "PKG_CONFIG_PATH": f"{library}/pkgconfig"}).stdout.split()
    plim.ok(any(os.path.exists(f"{f[2:]}/plimsoll/plimsoll.h") for f in flags), f"pkg-config finds the headers: {flags}")


def check_bill(root, number):
    with gzip.open(f"{root}/usr/share/doc/plimsoll/plimsoll.spdx.json.gz") as f: bill = json.load(f)
    needed = {"spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo", "packages", "files", "relationships"}
    plim.ok(needed <= set(bill) and bill["spdxVersion"] == "SPDX-2.3" and bill["dataLicense"] == "CC0-1.0", "an SPDX 2.3 document")
    packages = {p["name"]: p for p in bill["packages"]}
    fields = {"SPDXID", "versionInfo", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText"}
    plim.ok(all(fields <= set(p) for p in packages.values()) and packages["plimsoll"]["versionInfo"] == number, f"packages {sorted(packages)}")
    plim.ok({"libyaml-0-2", "zlib1g", "libzstd1", "libc6"} <= set(packages), "linked libraries are named")
    unknown = [n for n, p in packages.items() if "NOASSERTION" in (p["versionInfo"], p["licenseDeclared"])]
    plim.ok(not unknown, f"each has a version and a licence {unknown}")
    ids = {"SPDXRef-DOCUMENT"} | {e["SPDXID"] for e in bill["packages"] + bill["files"]}
    ends = {r[k] for r in bill["relationships"] for k in ("spdxElementId", "relatedSpdxElement")}
    plim.ok(len(ids) == 1 + len(bill["packages"]) + len(bill["files"]) and ends <= ids, "every relationship is between elements of the document")
    digests = sorted(f["checksums"][0]["checksumValue"] for f in bill["files"])
    right = [hashlib.sha1((ROOT / f["fileName"]).read_bytes()).hexdigest() == f["checksums"][0]["checksumValue"] for f in bill["files"]]
    code = packages["plimsoll"]["packageVerificationCode"]["packageVerificationCodeValue"]
    plim.ok(all(right) and len(right) > 500 and hashlib.sha1("".join(digests).encode()).hexdigest() == code, f"checksums of {len(right)} files")


# --- by hand and at night

def copy_sources(folder):
    files = shell("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").stdout.split("\n")
    for name in filter(None, files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def build_all(folder):
    """Everything that is delivered, from a copy of the sources; name -> digest."""
    env = {k: v for k, v in os.environ.items() if not k.endswith("COMPILER_LAUNCHER")} | {"CCACHE_DISABLE": "1"}
    for words in (["tools/build", "package", "program"], ["tools/make-deb"], ["tools/make-wheel", "build/package", "build/wheel"]):
        done = shell(*words, cwd=folder, env=env)
        plim.ok(done.returncode == 0, f"{' '.join(words)} in {folder} {done.stderr[-300:]}{done.stdout[-300:] if done.returncode else ''}")
    made = [folder / "build/package" / n for n in ("plimsoll", "libplimsoll.so.0", "libplimsoll_torch.so", "archive/libplimsoll.a", "plimsoll-mpi.so", "plimsoll-mpich.so")]
    made = [p for p in made if p.exists()] + sorted((folder / "build/deb").iterdir()) + sorted((folder / "build/wheel").iterdir())
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in made}


def check_reproducible(folder):
    """Two folders whose names have different lengths; the first's packages are left in it."""
    folders = [folder / "one", folder / "a" / "second" / "folder"]
    for f in folders: copy_sources(f)
    one, two = map(build_all, folders)
    for name in one: plim.ok(one[name] == two.get(name), f"{name}: the same bytes twice")


README = """set -e
cd /root; cp -r /usr/share/doc/plimsoll/examples/demo .; cp demo/corpus.txt .
sed -n '/^# small.yaml/,/^```/p' /usr/share/doc/plimsoll/README.md | grep -v '^```' > small.yaml
plimsoll version; plimsoll plan small.yaml; plimsoll plan small.yaml --json > plan.json; plimsoll plan small.yaml --html plan.html
plimsoll train small.yaml --log run.jsonl --steps 2; plimsoll generate runs/small --prompt "The ship" -n 8
plimsoll watch runs/small; plimsoll train small.yaml --resume --steps 3; plimsoll export runs/small -o hf/
plimsoll train small.yaml --overwrite --budget-at 2=40MiB --steps 3
plimsoll serve runs/small --budget 256MiB --port 18099 > serve.log 2>&1 & server=$!
for i in $(seq 60); do grep -q 18099 serve.log && break; sleep 0.5; done
python3 - <<END
import urllib.request
for path, body in (("/health", None), ("/v1/completions", b'{"prompt": "The ship", "max_tokens": 4}')): print(urllib.request.urlopen("http://127.0.0.1:18099" + path, body).read())
END
kill -TERM $server; wait $server
sed 's/steps: 60/steps: 2/; s,runs/small,runs/python,' small.yaml > python.yaml
sed -n '/^```python/,/^```/p' /usr/share/doc/plimsoll/README.md | grep -v '^```' | sed 's/small.yaml/python.yaml/' | python3 -
python3 /usr/share/doc/python3-plimsoll/examples/python/plan.py small.yaml rtx-4090
pkg-config --cflags --libs plimsoll
cc /usr/share/doc/libplimsoll-dev/examples/c/plan.c -o plan $(pkg-config --cflags --libs plimsoll) && ./plan small.yaml
echo ALL COMMANDS WORK
"""


WHEEL = """set -e
python3 -m venv /root/env; /root/env/bin/pip install --no-index /root/*.whl
cd /root; seq 999 > a.txt
echo 'model: {architecture: llama, vocab_size: 256, hidden_size: 32, intermediate_size: 64, num_layers: 1, num_attention_heads: 2}' > a.yaml
echo 'data: {train: [a.txt], tokenizer: bytes, max_length: 8}' >> a.yaml
env/bin/python -c "import plimsoll; print(plimsoll.plan('a.yaml', '64MiB'))"; echo THE WHEEL WORKS
"""


def inside(root, script):
    return shell("unshare", "--mount", "sh", "-c", f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} sh -s", input=script)


def check_chroot(folder, wheel, debs):
    if os.geteuid() or not shutil.which("mmdebstrap"): return plim.skip("a fresh Debian: needs root and mmdebstrap")
    root, suite = folder / "debian", re.search(r"VERSION_CODENAME=(\w+)", open("/etc/os-release").read())[1]
    made = shell("mmdebstrap", "--variant=apt", "--include=python3-venv", suite, root)
    if made.returncode: return plim.skip(f"a fresh Debian: mmdebstrap failed: {made.stderr[-200:]}")
    for path in [wheel, *debs]: shutil.copy(path, root / "root")
    ran = inside(root, WHEEL)
    plim.ok("THE WHEEL WORKS" in ran.stdout, f"the wheel, without any library of ours: {ran.stderr[-300:]}")
    installed = shell("chroot", root, "sh", "-c", "cd /root && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ./*.deb gcc libc6-dev pkg-config")
    plim.ok(installed.returncode == 0, f"apt install ./*.deb {installed.stderr[-300:]}")
    ran = inside(root, README)
    plim.ok("ALL COMMANDS WORK" in ran.stdout, f"README's commands {ran.stderr[-500:]}")


def main():
    if not shutil.which("dpkg-shlibdeps") or not (BUILD / "libplimsoll.so.0").exists():
        print("needs dpkg-dev and a build with the shared library")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as t:
        number = check_versions()
        check_paths()
        debs = make(f"{t}/deb")
        check_control(debs, number)
        check_files(unpack(debs, f"{t}/root"), f"{t}/root")
        check_use(f"{t}/root", number)
        check_bill(f"{t}/root", number)
        if os.environ.get("PLIMSOLL_LONG_TESTS") == "1":
            check_reproducible(pathlib.Path(t))
            built = pathlib.Path(t) / "one/build"
            check_chroot(pathlib.Path(t), *(built / "wheel").iterdir(), sorted((built / "deb").iterdir()))
    plim.done()


main()
