#!/usr/bin/env python3
"""The public library: what it exports, that nothing in its interface changes unannounced, that its headers compile anywhere, and
that a program which uses it finds itself unchanged.

    tests/cli/library_abi.py --announce     writes tests/cli/library_abi.json anew, after a change that is meant
"""
import ctypes
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
INCLUDE = os.path.join(ROOT, "include")
KNOWN = os.path.join(HERE, "library_abi.json")
HEADERS = sorted(os.listdir(os.path.join(INCLUDE, "plimsoll")))
CC = shlex.split(os.environ.get("CC", "cc"))
CXX = shlex.split(os.environ.get("CXX", "c++"))
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


# --- the interface, as the headers have it

def read_headers():
    """All headers without comments and preprocessor lines."""
    text = "".join(open(os.path.join(INCLUDE, "plimsoll", name)).read() for name in HEADERS)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    return re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)


def find_functions(text):
    """name -> declaration, blanks made equal."""
    found = {}
    for declaration in re.findall(r"\bPLIM_API\b([^;]*);", text):
        words = re.sub(r"\s*([(),*])\s*", r"\1", " ".join(declaration.split()))
        found[re.search(r"(\w+)\(", words).group(1)] = words
    return found


def find_structs(text):
    """name -> names of its members, in order."""
    found = {}
    for name, body in re.findall(r"\bstruct (\w+)\s*\{(.*?)\n\};", text, flags=re.S):
        members = []
        for line in body.split(";"):
            pointer = re.search(r"\(\*\s*(\w+)\)", line)
            parts = [pointer.group(1)] if pointer else [re.findall(r"\w+", re.sub(r"\[.*?\]", "", p))[-1] for p in line.split(",") if p.strip()]
            members += parts
        found[name] = members
    return found


def find_constants(text):
    names = []
    for body in re.findall(r"\benum\b[^{;]*\{(.*?)\}", text, flags=re.S):
        names += [re.match(r"\w+", item.strip()).group(0) for item in body.split(",") if item.strip()]
    return names


def measure(structs, constants):
    """Sizes, offsets and values, as the compiler has them."""
    lines = []
    for name, members in structs.items():
        lines.append(f'printf("struct {name} sizeof %zu\\n", sizeof(struct {name}));')
        lines += [f'printf("struct {name} {m} %zu\\n", offsetof(struct {name}, {m}));' for m in members]
    lines += [f'printf("constant {name} value %lld\\n", (long long){name});' for name in constants]
    source = "#include <plimsoll/plimsoll.h>\n#include <stdio.h>\nint main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "measure")
        subprocess.run(CC + ["-I", INCLUDE, "-x", "c", "-", "-o", program], input=source, text=True, check=True)
        answer = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    result = {"structs": {}, "constants": {}}
    for line in answer.splitlines():
        kind, name, what, value = line.split()
        if kind == "struct":
            result["structs"].setdefault(name, {})[what] = int(value)
        else:
            result["constants"][name] = int(value)
    return result


def find_interface():
    text = read_headers()
    return {"functions": find_functions(text), **measure(find_structs(text), find_constants(text))}


def changes(old, new):
    """One line for each difference, and whether programs that exist would break."""
    lines, breaks = [], False
    for part in ("functions", "structs", "constants"):
        for name in sorted(set(old[part]) | set(new[part])):
            was, now = old[part].get(name), new[part].get(name)
            if was == now: continue
            grown = part == "structs" and was and now and all(now.get(m) == at for m, at in was.items() if m != "sizeof")
            lines.append(f"{part}: {name}: " + ("is new" if was is None else "is gone" if now is None else f"was {was}, is {now}"))
            breaks |= was is not None and not grown
    return lines, breaks


def announce():
    new = find_interface()
    if os.path.exists(KNOWN):
        lines, breaks = changes(json.load(open(KNOWN)), new)
        print("\n".join(lines) or "nothing has changed")
        if breaks: print("programs built with the old headers break: if a release has them, raise `abi` in cmake/library.cmake")
    with open(KNOWN, "w") as f:
        json.dump(new, f, indent=1, sort_keys=True)
        f.write("\n")


# --- the tests

def exported(library):
    """Functions, and version nodes, of the library's dynamic symbols."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    symbols = [line.split() for line in listed.splitlines()]
    return {s[2].split("@")[0] for s in symbols if s[1] != "A"}, {s[2].split("@")[-1] for s in symbols if "@" in s[2]}


def check_symbols(library, functions):
    listed = set(re.findall(r"^\s+(\w+);", open(os.path.join(ROOT, "cmake/plimsoll.map")).read(), flags=re.M))
    names, versions = exported(library)
    declared = set(functions)
    plim.ok(listed == declared, f"cmake/plimsoll.map lists what the headers declare: {sorted(listed ^ declared)}")
    plim.ok(names == declared, f"the library exports what the headers declare: {sorted(names ^ declared)}")
    plim.ok(versions == {"PLIMSOLL_0"}, f"every symbol has a version: {versions}")
    plim.ok(all(n.startswith("plim_") for n in names), "every name begins with plim_")


def check_announced(interface):
    lines, breaks = changes(json.load(open(KNOWN)), interface)
    for line in lines: print(f"# {line}")
    how = "; if it is meant, run tests/cli/library_abi.py --announce and commit library_abi.json"
    if breaks: how += ", and raise `abi` in cmake/library.cmake if a release has the old interface"
    plim.ok(not lines, f"the interface is as announced{how if lines else ''}")
    for name, part, was, now, broken in (("a member at the end", "structs", {"sizeof": 8, "size": 0}, {"sizeof": 16, "size": 0, "more": 8}, False),
                                         ("a member in the middle", "structs", {"sizeof": 16, "size": 0, "a": 8}, {"sizeof": 24, "size": 0, "b": 8, "a": 16}, True),
                                         ("a function gone", "functions", "int plim_x(void)", None, True),
                                         ("another value", "constants", 1, 2, True)):
        old, new = ({"functions": {}, "structs": {}, "constants": {}, part: {"x": v} if v else {}} for v in (was, now))
        told, breaks = changes(old, new)
        plim.ok(len(told) == 1 and breaks == broken, f"{name} is seen, and {'breaks' if broken else 'does not break'} programs")


def check_headers():
    wrong = []
    for name in HEADERS:
        source = f"#include <plimsoll/{name}>\n#include <plimsoll/{name}>\n"
        for compiler, kind, standard in ((CC, "c", "c99"), (CC, "c", "c11"), (CXX, "c++", "c++17")):
            command = compiler + ["-x", kind, f"-std={standard}", *STRICT, "-I", INCLUDE, "-fsyntax-only", "-"]
            result = subprocess.run(command, input=source, capture_output=True, text=True)
            if result.returncode: wrong.append(f"{name} as {standard}: {result.stderr.strip()}")
    for line in wrong: print("# " + line.replace("\n", "\n# "))
    plim.ok(not wrong, "each header compiles alone, twice, as C99, C11 and C++17 without warnings")


def check_python(library, interface):
    """The structs that python/plimsoll/_native.py repeats."""
    os.environ["PLIMSOLL_LIBRARY"] = os.path.abspath(library)
    spec = importlib.util.spec_from_file_location("native", os.path.join(ROOT, "python/plimsoll/_native.py"))
    native, wrong = importlib.util.module_from_spec(spec), []
    try:
        spec.loader.exec_module(native)
    except (ImportError, AttributeError) as error:
        return plim.ok(False, f"Python binds every function: {error}")
    for name, kind in vars(native).items():
        if not (isinstance(kind, type) and issubclass(kind, ctypes.Structure) and getattr(kind, "_fields_", None)): continue
        struct = "plim_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        same = {"sizeof": ctypes.sizeof(kind), **{field: getattr(kind, field).offset for field, *_ in kind._fields_}}
        if same != interface["structs"].get(struct): wrong.append(f"{name}: {same}, {struct}: {interface['structs'].get(struct)}")
    for line in wrong: print(f"# {line}")
    plim.ok(not wrong, "Python's structs are those of the headers")
    known = set(native._FUNCTIONS)
    return plim.ok(known <= set(interface["functions"]), f"Python calls functions that exist: {known - set(interface['functions'])}")


def compile_with(library, source, program):
    folder = os.path.dirname(os.path.abspath(library))
    command = CC + ["-std=c11", *STRICT, "-I", INCLUDE, source, "-L", folder, "-lplimsoll", "-lm", f"-Wl,-rpath,{folder}", "-o", program]
    result = subprocess.run(command, capture_output=True, text=True)
    for line in result.stderr.splitlines(): print(f"# {line}")
    return result.returncode == 0


def check_host(library):
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "host")
        if not plim.ok(compile_with(library, os.path.join(HERE, "library_host.c"), program), "a host program compiles"): return
        result = subprocess.run([program], capture_output=True, text=True, cwd=folder, timeout=300)
        for line in result.stdout.splitlines(): print(f"# {line}")
        plim.ok(result.returncode == 0, f"the host finds itself unchanged ({result.returncode})")
        plim.ok(result.stdout + result.stderr == "", f"the library prints nothing: {result.stderr!r}")
        plim.ok(sorted(os.listdir(folder)) == ["host", "memory.json"], "no file is left behind")


def check_examples(library):
    """The examples of memory, accumulation and allocator compile, run, and are short."""
    for name, words in (("memory", "batch size "), ("accumulate", "w = 3.000000"), ("allocator", "the largest holders: weights 100 MiB")):
        source = os.path.join(ROOT, "examples/c", name + ".c")
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, name)
            built = compile_with(library, source, program)
            result = subprocess.run([program], capture_output=True, text=True, cwd=folder, timeout=300) if built else None
            plim.ok(built and result.returncode == 0 and words in result.stdout, f"examples/c/{name}.c runs: {result and result.stdout + result.stderr}")
        plim.ok(len(open(source).readlines()) <= 60, f"examples/c/{name}.c has at most 60 lines")


if __name__ == "__main__":
    if sys.argv[1:] == ["--announce"]:
        sys.exit(announce())
    shared = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "libplimsoll.so")
    if not os.path.exists(shared):
        print(f"{shared} was not built")
        sys.exit(77)
    present = find_interface()
    check_symbols(shared, present["functions"])
    check_announced(present)
    check_headers()
    check_python(shared, present)
    check_host(shared)
    check_examples(shared)
    plim.done()
