#!/usr/bin/env python3
"""Help, version, generated documents: what the program says of itself."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

COMMANDS = ["plan", "train", "generate", "embed", "classify", "serve", "eval", "export", "calibrate", "config", "doctor", "pack", "replay", "version"]

overview = plim.run("--help")
plim.ok(overview.returncode == 0 and not overview.stderr, "plimsoll --help exits 0")
plim.ok(all(f"  {name}" in overview.stdout for name in COMMANDS), "the overview names every command")
plim.ok("docs" not in overview.stdout.split(), "the overview does not name hidden ones")

nothing = plim.run()
plim.ok(nothing.returncode == 2 and "Usage" in nothing.stderr and not nothing.stdout, "no command: overview on stderr, exit 2")
wrong = plim.run("trian")
plim.ok(wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "train" in wrong.stderr,
        f"an unknown command names the nearest: {wrong.stderr.strip()}")

for name in COMMANDS + ["docs"]:
    help_ = plim.run(name, "--help")
    plim.ok(help_.returncode == 0 and help_.stdout.startswith(f"Usage: plimsoll {name} ") and not help_.stderr,
            f"{name} --help")
    plim.ok(name == "docs" or "Examples:" in help_.stdout and f"plimsoll {name} " in help_.stdout.split("Examples:")[1],
            f"{name} --help has examples")
    plim.ok(all(len(line) <= 100 for line in help_.stdout.splitlines()), f"{name} --help fits a terminal")
    option = plim.run(name, "--jsn")
    plim.ok(option.returncode == 2 and option.stderr.count("\n") == 1 and "--jsn" in option.stderr,
            f"{name}: an unknown option is one line: {option.stderr.strip()}")
for name in ["plan", "train", "generate", "embed", "classify", "serve", "eval", "export", "config", "pack", "replay"]:
    bare = plim.run(name)
    plim.ok(bare.returncode == 2 and bare.stderr.count("\n") == 1 and "--help" in bare.stderr,
            f"{name} without arguments: {bare.stderr.strip()}")

version = plim.run("version", "--json")
facts = json.loads(version.stdout)
plim.ok(version.returncode == 0 and set(facts) == {"version", "build", "machine", "features"}, "version --json")
plim.ok(facts["features"]["cpu"] is True and facts["features"]["cuda"] in (True, False), "features are said")
plim.ok(all(facts["machine"]["gemm"].get(t) for t in ("f32", "bf16", "f16")), "kernels are named")
plim.ok(plim.run("--version").stdout.startswith(f"plimsoll {facts['version']}\n"), "--version")

man = plim.run("docs", "man").stdout
plim.ok(man.startswith(".") and all(f"{name}" in man for name in COMMANDS) and "EXIT STATUS" in man, "docs man")
for shell in ("bash", "zsh"):
    text = plim.run("docs", shell).stdout
    plim.ok("plimsoll" in text and all(name in text for name in COMMANDS) and "budget" in text, f"docs {shell}")
config = plim.run("docs", "config").stdout
plim.ok("`training.batch_size`" in config and "`budget`" in config, "docs config")
for kind, page in (("config", "configuration.md"), ("cli", "cli.md")):
    with open(os.path.join(plim.SRC_DIR, "docs", page)) as f:
        plim.ok(f.read() == plim.run("docs", kind).stdout, f"docs/{page} is what `plimsoll docs {kind}` prints")
plim.ok(plim.run("docs", "mann").returncode == 2, "docs of an unknown kind")
plim.done()
