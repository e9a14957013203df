#!/usr/bin/env python3
"""plimsoll cache: kinds are counted and cleared, one or all; other files stay; wrong words are refused in one line."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import plim

FILES = {"programs": ["pjrt/00ff.pjrt", "pjrt/00fe.pjrt", "pjrt/00fd.pjrt.tmp.12.0"],
         "rates": ["cpu-1.json", "cuda-2.json", "disk-3.json", "link-4.json"], "plans": ["serve-5.json", "rung-6.json"]}
OTHERS = ["notes.txt", "pjrt/notes", "serve-5.txt", "mine-1.json"]

with tempfile.TemporaryDirectory() as home:
    env = {"XDG_CACHE_HOME": home}
    folder = f"{home}/plimsoll"

    def ask(*args):
        return plim.run("cache", *args, env=env)

    def fill():
        os.makedirs(f"{folder}/pjrt", exist_ok=True)
        for name in sum(FILES.values(), OTHERS):
            with open(f"{folder}/{name}", "w") as out:
                out.write("x" * 10)

    def there(names):
        return [name for name in names if os.path.exists(f"{folder}/{name}")]

    empty = json.loads(ask("list", "--json").stdout)
    plim.ok(empty["folder"] == folder and all(empty[kind] == {"files": 0, "bytes": 0} for kind in FILES), "a cache that is not there is empty")
    fill()
    full = json.loads(ask("list", "--json").stdout)
    plim.ok(all(full[kind] == {"files": len(names), "bytes": 10 * len(names)} for kind, names in FILES.items()), f"kinds are counted: {full}")
    text = ask("list").stdout
    plim.ok(folder in text and all(kind in text for kind in FILES), "list names folder and kinds")
    result = ask("clear", "programs")
    plim.ok(result.returncode == 0 and not there(FILES["programs"]) and there(FILES["rates"]) == FILES["rates"], "clear of one kind leaves the others")
    fill()
    result = ask("clear")
    plim.ok(result.returncode == 0 and not there(sum(FILES.values(), [])) and there(OTHERS) == OTHERS, "clear removes all kinds and no other file")
    for args in (["drop"], [], ["clear", "everything"], ["list", "--all"]):
        result = ask(*args)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and not result.stdout, f"cache {' '.join(args)}: {result.stderr.strip()}")
plim.done()
