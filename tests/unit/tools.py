"""The tools that judge everybody else are judged here: the test runner's verdicts and limits, the layer check, the length of functions, the
virtual environments for clients."""
# run-tests: not=asan, not=tsan
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOOLS = pathlib.Path(os.environ.get("SRC_DIR", pathlib.Path(__file__).parents[2])) / "tools"
sys.dont_write_bytecode = True
cases = 0


def load(name):
    """Import a tool, which has no .py at its end."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(TOOLS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def check(name, got, want):
    global cases
    cases += 1
    print(f"{'ok' if got == want else 'not ok'} {cases} - {name}")
    if got != want: print(f"#  got {got}\n# want {want}")
    return got == want


def test_verdicts():
    judge = load("run-tests").judge
    table = [  # name, exit code, output, (passed, failed, skipped)
        ("silent success is one case", 0, "", (1, 0, 0)),
        ("silent failure is one case", 3, "", (0, 1, 0)),
        ("a signal is a failure", -11, "1..2\nok 1 - a\n", (1, 1, 0)),
        ("time ran out", None, "1..2\nok 1 - a\n", (1, 1, 0)),
        ("cases are counted one by one", 1, "1..3\nok 1 - a\nnot ok 2 - b\nok 3 - c\n", (2, 1, 0)),
        ("exit 0 does not hide a failed case", 0, "1..1\nnot ok 1 - a\n", (0, 1, 0)),
        ("exit 0 does not hide missing cases", 0, "1..3\nok 1 - a\n", (1, 1, 0)),
        ("a bad end after good cases is a failure", 1, "1..1\nok 1 - leaks\n", (1, 1, 0)),
        ("cmocka's way to say skipped", 0, "1..2\nnot ok 1 # SKIP a\nok 2 - b\n", (1, 0, 1)),
        ("TAP's way to say skipped", 0, "1..1\nok 1 - a # SKIP no torch\n", (0, 0, 1)),
        ("77 is skipped", 77, "no torch\n", (0, 0, 1)),
        ("77 does not hide a failed case", 77, "1..1\nnot ok 1 - a\n", (0, 1, 0)),
        ("two groups in one program", 0, "1..1\nok 1 - a\n1..1\nok 1 - b\n", (2, 0, 0)),
        ("a remark is not a case", 0, "# not ok - group\nok then\n", (1, 0, 0)),
    ]
    good = True
    for name, code, output, want in table:
        o = judge(code, output, 1)
        good &= check(name, (o.passed, o.failed, o.skipped), want)
    return good


def layer_faults(files):
    """How many lines the layer check prints for a tree of files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, str(TOOLS / "check-layers"), folder], capture_output=True, text=True)
        assert (done.returncode != 0) == bool(done.stdout), done
        return len(done.stdout.splitlines())


def test_planted():
    """A list of planted bugs that no longer fits is told by name."""
    plant, good = load("plant"), True
    block = "== src/a.c\nbug: One.\ncaught by: unit/test_a, cli/b.py\n--- old\n%s\n--- new\n%s\n"
    with tempfile.TemporaryDirectory() as folder:
        plant.ROOT = pathlib.Path(folder)
        for name, text in {"src/a.c": "x = 1;\ny = 1;\n", "tests/unit/test_a.c": "", "tests/cli/b.py": ""}.items():
            (plant.ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (plant.ROOT / name).write_text(text)
        listed = plant.ROOT / "list"
        for name, old, new, faults in [("fits", "x = 1;\ny", "x = 2;\ny", 0), ("deletes", "x = 1;", "", 0), ("is gone", "z = 1;", "", 1), ("is there twice", "= 1;", "", 1)]:
            listed.write_text("a remark\n\n" + block % (old, new))
            bug = plant.read_list(listed)[0]
            good &= check(f"a planted bug {name}", (bug.old, bug.new, bug.tests, len(plant.faults(bug))), (old, new, ["unit/test_a", "cli/b.py"], faults))
        bug.file, bug.tests = "src/none.c", []
        good &= check("of a file that is gone", plant.faults(bug), ["1: src/none.c is gone"])
        bug.file, bug.old, bug.tests = "src/a.c", "x = 1;", ["unit/none"]
        good &= check("of a test that is gone", plant.faults(bug), ["1: there is no test unit/none"])
        listed.write_text("== src/a.c\nbug: no text\n")
        try: good &= check("half a block", plant.read_list(listed), "refused")
        except plant.Broken as e: good &= check("half a block", "block 1 ('== src/a.c')" in str(e), True)
    return good


def test_layers():
    base, plan, cpu = {"src/base/a.h": ""}, {"src/plan/p.h": ""}, {"src/device/cpu/k.h": ""}
    table = [
        ("downward is fine", 0, {**base, "src/plan/p.c": '#include "base/a.h"\n'}),
        ("upward is not", 1, {**plan, "src/base/a.c": '#include "plan/p.h"\n'}),
        ("a missing header", 1, {"src/base/a.c": '#include "base/none.h"\n'}),
        ("an unknown folder", 1, {"src/stuff/a.c": ""}),
        ("a child includes its parent", 0, {"src/device/d.h": "", "src/device/cpu/k.c": '#include "device/d.h"\n'}),
        ("a registry names its children", 0, {**cpu, "src/device/d.c": '#include "device/cpu/k.h"\n'}),
        ("an interface does not", 1, {**cpu, "src/device/d.h": '#include "device/cpu/k.h"\n'}),
        ("siblings are strangers", 1, {**cpu, "src/device/cuda/c.c": '#include "device/cpu/k.h"\n'}),
        ("a ring of headers", 1, {"src/base/a.h": '#include "base/b.h"\n', "src/base/b.h": '#include "base/a.h"\n'}),
        ("a folder with its line", 0, {**base, "src/README.md": "| `base` | things | `a.h` |\n"}),
        ("a folder without one", 1, {**base, **plan, "src/README.md": "| `base` | things | `a.h` |\n"}),
        ("a line without its header", 1, {**base, "src/README.md": "| `base` | things | `b.h` |\n"}),
        ("a page in the order of layers", 0, {**base, "ARCHITECTURE.md": "| `src/base` | x |\n| `src/plan` | x |\n"}),
        ("a page in another order", 1, {**base, "ARCHITECTURE.md": "| `src/plan` | x |\n| `src/base` | x |\n"}),
        ("a comment is not an include", 0, {"src/base/a.c": '/* #include "plan/p.h" */\n'}),
    ]
    good = True
    for name, want, files in table: good &= check(name, layer_faults(files), want)
    return good


def test_runner():
    """A hung test is ended, with what it started; others see fixed rates and a cache of the build's own."""
    os.environ.pop("PLIMSOLL_CALIBRATE", None)
    tool, build = load("run-tests"), pathlib.Path(os.environ["TMPDIR"], "release")
    build.mkdir()
    (build / "CMakeCache.txt").write_text("PLIMSOLL_SANITIZE:STRING=\n")
    runner, log = tool.Runner(build), build / "log"
    execute = lambda suite, script, limit: runner.execute(tool.Test(suite, "x", ["sh", "-c", script], timeout=limit), open(log, "wb"))
    code, _, _ = execute("unit", "sleep 1000 & sleep 1000", 0.2)
    good = check("a hung test is ended", code, None)
    code, seconds, cpu = execute("unit", 'echo "$PLIMSOLL_CALIBRATE $XDG_CACHE_HOME"', 1000)
    good &= check("tests do not measure", (code, log.read_text()), (0, f"0 {build}/test-cache\n"))
    execute("gpu", 'echo "${PLIMSOLL_CALIBRATE-unset}"', 1000)
    return good & check("those on a GPU do", log.read_text(), "unset\n")


def test_lengths():
    lengths = load("check-functions").lengths
    table = [
        ("a body", ["int f(void)", "{", "    return 1;", "}"], [(2, 3)]),
        ("a table is no function", ["static int t[] = {", "    1,", "};"], []),
        ("a macro", ["#define F(x) \\", "    g(x); \\", "    h(x)", "int a;"], [(1, 3)]),
    ]
    good = True
    for name, lines, want in table: good &= check(name, list(lengths(lines)), want)
    return good


PYTHON = """#!/bin/sh
[ "$1" != -c ] || exit 0
echo "$*" >>"$ASKED"
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; else exit "$PIP_SAYS"; fi
"""


def install_clients(tree, purpose, pip_says):
    """tools/deps.sh in a tree of its own, with a Python that only notes what it is asked and an apt-get that always fails."""
    (tree / "tools").mkdir(parents=True, exist_ok=True)
    (tree / "bin").mkdir(exist_ok=True)
    shutil.copy(TOOLS / "deps.sh", tree / "tools")
    for name, text in (("python3", PYTHON), ("apt-get", "#!/bin/sh\nexit 1\n"), ("sudo", "#!/bin/sh\nexit 1\n")):
        (tree / "bin" / name).write_text(text)
        (tree / "bin" / name).chmod(0o755)
    env = dict(os.environ, PATH=f"{tree}/bin:{os.environ['PATH']}", ASKED=str(tree / "asked"), PIP_SAYS=str(pip_says), CHROMIUM="none")
    done = subprocess.run(["sh", str(tree / "tools" / "deps.sh"), purpose], env=env, capture_output=True, text=True)
    asked = (tree / "asked").read_text() if (tree / "asked").exists() else ""
    (tree / "asked").unlink(missing_ok=True)
    return done.returncode, done.stderr, asked


def test_clients():
    """Packages for clients go below build/; a registry that refuses is a note, and tests then run with the plain Python."""
    python, tree = load("run-tests").find_python, pathlib.Path(os.environ["TMPDIR"], "tree")
    code, told, asked = install_clients(tree, "test", 1)
    good = check("a registry that refuses is no failure", (code, "skipped" in told, "openai" in asked), (0, True, True))
    good &= check("then tests have the plain Python", python(tree, False), sys.executable)
    good &= check("and it is not asked again", install_clients(tree, "test", 0)[2], "")
    (tree / "build" / "venv-test.failed").unlink()
    code, told, asked = install_clients(tree, "test", 0)
    good &= check("packages are installed as wheels", (code, "--only-binary :all:" in asked), (0, True))
    good &= check("scripts then run with them", python(tree, False), f"{tree}/build/venv-test/bin/python")
    good &= check("live ones do not", python(tree, True), sys.executable)
    code, told, asked = install_clients(tree, "live", 0)
    good &= check("PyTorch has an environment of its own", (code, "sentence-transformers" in asked), (0, True))
    good &= check("with which live tests run", python(tree, True), f"{tree}/build/venv-live/bin/python")
    good &= check("once is enough", install_clients(tree, "live", 0)[2], "")
    good &= check("the overload of a server is a part of make test", "load" in load("test-all").BUILDS[0][1], True)
    return good


def test_root():
    """awk's `print n > most` writes a file named after a number: what lies at the root has a name with letters."""
    names = [p.name for p in TOOLS.parent.iterdir() if p.is_file()]
    check("each folder of src/ has its line", (TOOLS.parent / "src" / "README.md").is_file(), True)
    told = re.findall(r"^\| `(\w+)` \| `", (TOOLS.parent / "CONTRIBUTING.md").read_text(), re.M)
    check("CONTRIBUTING.md says where the tests of each are", sorted(told), sorted(p.name for p in (TOOLS.parent / "src").iterdir() if p.is_dir()))
    return check("no stray file at the root", [n for n in names if not any(c.isalpha() for c in n)], [])


if __name__ == "__main__":
    results = [test_verdicts(), test_planted(), test_layers(), test_runner(), test_lengths(), test_clients(), test_root()]
    print(f"1..{cases}")
    sys.exit(0 if all(results) else 1)
