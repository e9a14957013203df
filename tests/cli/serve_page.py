#!/usr/bin/env python3
"""serve_page.py [FOLDER] - the server's page in a browser: a chat works, the hold moves, the console stays silent, on a screen and on a phone, light and
dark. Skips itself where there is no Chromium. With FOLDER the pictures of docs/serving.md are written there:

    python3 tests/cli/serve_page.py docs"""
# run-tests: timeout=300, not=asan, not=tsan
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import tempfile

import browser
import plim
from plim import ok
import server

SCREENS = {"serving": dict(width=1000, height=640), "serving-dark": dict(width=1000, height=640, dark=True),
           "serving-phone": dict(width=390, height=780, dark=True)}


def chat(b, s, say, tokens, name):
    """Sends a line; the answer is under way and the hold has moved when it returns."""
    b.open(s.url + "/")
    ok(b.wait_for("document.getElementById('state').textContent === 'ready'"), f"{name}: the page is ready")
    b.evaluate(f"document.getElementById('heat').value = 0; document.getElementById('most').value = {tokens}; document.getElementById('say').focus()")
    b.type(say)
    ok(b.wait_for("document.getElementById('send').textContent === 'Stop'"), f"{name}: Enter sends")
    moved = b.wait_for("parseInt(document.getElementById('h-blocks').textContent) > 0 && +document.getElementById('h-running').textContent > 0")
    ok(moved, f"{name}: the hold moves: {b.evaluate('document.getElementById(`h-blocks`).textContent')}")


def page(s, name, screen):
    said = "document.querySelectorAll('.said')[1]?.textContent || ''"
    with browser.Browser(**screen) as b:
        chat(b, s, "The heavy ship took 12 barrels past the bar.", 300, name)
        ok(b.wait_for(f"({said}).startsWith('[user] The heavy ship')"), f"{name}: the answer comes while it is made")
        wide = b.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        ok(wide <= 0, f"{name}: nothing is wider than the screen ({wide})")
        b.evaluate("document.getElementById('send').click()")
        ok(b.wait_for("document.getElementById('send').textContent === 'Send'") and s.wait_for(s.idle), f"{name}: Stop stops")
        b.evaluate("document.getElementById('most').value = 9; document.getElementById('say').focus()")
        b.type("again")
        ok(b.wait_for("document.querySelectorAll('.said').length === 4 && document.getElementById('send').textContent === 'Send'"), f"{name}: a second turn: {b.evaluate(said)[:20]!r}")
        ok(b.wait_for("document.getElementById('h-running').textContent === '0' && parseInt(document.getElementById('h-blocks').textContent) === 0"), f"{name}: the hold is empty again")
        ok(not b.problems, f"{name}: no word on the console {b.problems[:3]}")


def pictures(folder, where):
    """Of a small model that was trained for it, while it answers others too."""
    job = plim.job(where, training__steps=150, training__learning_rate="3e-3", model__hidden_size=192, model__intermediate_size=512, model__num_layers=6, output__dir=f"{where}/demo")
    ok(plim.run("train", job, "-q").returncode == 0, "trained")
    with open(f"{where}/chat.jinja", "w") as f: f.write("{{ messages[-1].content }}")
    with server.Server(f"{where}/demo", "--budget", "128MiB", "--max-context", 2048, "--chat-template", f"{where}/chat.jinja", program=plim.PLIMSOLL) as s:
        for name, screen in SCREENS.items():
            others = [server.open_connection(s, "/v1/completions", {"prompt": "The swift cutter took 5 barrels past the light" + "." * i, "max_tokens": 1800, "ignore_eos": True, "stream": True}) for i in range(3)]
            with browser.Browser(**screen) as b:
                chat(b, s, "The heavy ship took", 1500, name)
                b.wait_for("(document.querySelectorAll('.said')[1]?.textContent || '').length > 400")
                b.wait_for("+document.getElementById('h-running').textContent > 3", 5)
                b.evaluate("document.getElementById('talk').scrollTop = 0")
                b.screenshot(os.path.join(folder, name + ".png"))
            for c in others: c.close()
            size = os.path.getsize(os.path.join(folder, name + ".png"))
            ok(size < 150000, f"{name}.png has {size} bytes")


def main():
    browser.need()
    server.need_http()
    with tempfile.TemporaryDirectory() as where:
        if len(sys.argv) > 1:
            pictures(sys.argv[1], where)
        else:
            with server.Server(server.model(f"{where}/m"), "--budget", "64MiB", engine="delay=20") as s:
                for name in ("serving", "serving-phone"): page(s, name, SCREENS[name])
    plim.done()


main()
