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
SAY = "The heavy ship took 12 barrels past the bar before the tide turned."


def chat(b, s, name):
    b.open(s.url + "/")
    ok(b.wait_for("document.getElementById('state').textContent === 'ready'"), f"{name}: the page is ready")
    b.evaluate("document.getElementById('heat').value = 0; document.getElementById('most').value = 300; document.getElementById('say').focus()")
    b.type(SAY)
    ok(b.wait_for("document.getElementById('send').textContent === 'Stop'"), f"{name}: Enter sends")
    moved = b.wait_for("parseInt(document.getElementById('h-blocks').textContent) > 0 && +document.getElementById('h-running').textContent === 1")
    ok(moved, f"{name}: the hold moves: {b.evaluate('document.getElementById(`h-blocks`).textContent')}")
    said = "document.querySelectorAll('.said')[1]?.textContent || ''"
    ok(b.wait_for(f"({said}).startsWith('[user] The heavy ship')"), f"{name}: the answer comes while it is made")
    return said


def page(s, name, screen, folder):
    with browser.Browser(**screen) as b:
        said = chat(b, s, name)
        if folder: b.screenshot(os.path.join(folder, name + ".png"))
        wide = b.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        ok(wide <= 0, f"{name}: nothing is wider than the screen ({wide})")
        b.evaluate("document.getElementById('send').click()")
        ok(b.wait_for("document.getElementById('send').textContent === 'Send'") and s.wait_for(s.idle), f"{name}: Stop stops")
        b.evaluate("document.getElementById('most').value = 9; document.getElementById('say').focus()")
        b.type("again")
        ok(b.wait_for("document.querySelectorAll('.said').length === 4 && document.getElementById('send').textContent === 'Send'"), f"{name}: a second turn: {b.evaluate(said)[:20]!r}")
        ok(b.wait_for("document.getElementById('h-running').textContent === '0' && parseInt(document.getElementById('h-blocks').textContent) === 0"), f"{name}: the hold is empty again")
        ok(not b.problems, f"{name}: no word on the console {b.problems[:3]}")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    browser.need()
    server.need_http()
    with tempfile.TemporaryDirectory() as where:
        with server.Server(server.model(f"{where}/m"), "--budget", "64MiB", engine="delay=20") as s:
            for name, screen in SCREENS.items() if folder else list(SCREENS.items())[:1] + list(SCREENS.items())[2:]: page(s, name, screen, folder)
    plim.done()


main()
