#!/usr/bin/env python3
"""watch_page.py [FOLDER] - the page of a run in a browser: the chart grows with a live run, the four lines, an event and a tensor's name under the pointer are there, a
finished run opens likewise, and so does the map of plan --html. Skips itself where there is no Chromium. With FOLDER the pictures of docs/watching.md and of README.md are written there:

    python3 tests/cli/watch_page.py docs"""
# run-tests: timeout=300, not=asan, not=tsan
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")
import tempfile

import browser
import plim
from plim import ok
import png
import server
import watching

SCREENS = {"watching": dict(width=1100, height=1750), "watching-dark": dict(width=1100, height=1750, dark=True), "watching-phone": dict(width=390, height=1500, dark=True)}
NAME = "model.layers.1.mlp.down_proj.weight"
DRAWN = """(id => { const c = document.getElementById(id), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 200) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size; })"""


def point(b, name, map="map"):
    """The pointer over a tensor that was looked for; what the map says of it."""
    b.evaluate(f"{map}.canvas.scrollIntoView(); {map}.seek({name!r})")
    x, y = b.evaluate(f"{map}.middle({name!r})")
    b.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    b.wait_for(f"!{map}.tip.hidden", 10)
    return b.evaluate(f"{map}.tip.textContent")


def map_works(b, what):
    told = point(b, NAME)
    ok(NAME in told and "parameters" in told, f"{what}: the name under the pointer: {told}")
    ok("alive" in b.evaluate("map.at.textContent") and "address" in b.evaluate("map.at.textContent"), f"{what}: the cursor: {b.evaluate('map.at.textContent')}")
    b.evaluate("map.reset()")
    ok(not b.evaluate("map.zoomed"), f"{what}: all of it again")
    b.evaluate("document.querySelector('[aria-label=\"Zoom in\"]').click()")
    ok(b.evaluate("map.zoomed"), f"{what}: zoom")
    b.evaluate("map.reset()")


def live(folder):
    with watching.Run(folder, "--budget", "40MiB") as run, watching.Page(run.folder) as p, browser.Browser(**SCREENS["watching"]) as b:
        b.open(p.url + "/")
        ok(b.wait_for("document.getElementById('state').textContent === 'live'"), "the run is live")
        b.wait_for("run.points.length > 2")
        first = b.evaluate("run.points.length")
        ok(b.wait_for(f"run.points.length > {first + 5}"), f"the chart grows: {first}, then {b.evaluate('run.points.length')} points")
        ok(all(b.evaluate(f"{DRAWN}('{id}')") > 3 for id in ("memory", "loss", "lr", "speed")), "all four are drawn")
        ok(b.evaluate("LINES.every(n => run.plans[0].lines[n] > 0)") and b.evaluate("document.querySelectorAll('#gauges .bar s').length") >= 8, "the four lines, in the chart and on the bars")
        ok(b.wait_for("map && map.list && map.list.length > 20"), "the arena's map is there")
        map_works(b, "live")
        ok(run.ctl("budget", "30MiB").returncode == 0 and b.wait_for("document.getElementById('events').textContent.includes('re-planned')"), "an event comes: the run was re-planned")
        ok(b.wait_for("map.snapshot.budget === 30 * 2 ** 20"), "and the map is the new plan's")
        run.stop()
        ok(b.wait_for("document.getElementById('state').textContent === 'ended'"), "the end is told")
        ok(not b.problems, f"no word on the console {b.problems[:3]}")
    return run.folder


def finished(run, name):
    with watching.Page(run) as p, browser.Browser(**SCREENS[name]) as b:
        b.open(p.url + "/")
        ok(b.wait_for("document.getElementById('state').textContent === 'ended' && run.points.length > 5"), f"{name}: a finished run opens: {b.evaluate('run.points.length')} points")
        ok("ended after" in b.evaluate("document.getElementById('events').textContent"), f"{name}: with its events")
        ok(b.wait_for("map && map.list"), f"{name}: and its map")
        map_works(b, name)
        wide = b.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        ok(wide <= 0, f"{name}: nothing is wider than the screen ({wide})")
        ok(not b.problems, f"{name}: no word on the console {b.problems[:3]}")


def planned(folder):
    page = os.path.join(folder, "plan.html")
    made = plim.run("plan", f"{folder}/job.yaml", "-q", "--set", "training.state_tier=disk", "--html", page)
    ok(made.returncode == 0, f"plan --html {made.stderr.strip()}")
    with browser.Browser(**SCREENS["watching-phone"]) as b:
        b.open("file://" + page)
        map_works(b, "plan --html")
        b.evaluate("[...map.tiers.children].find(x => x.textContent.startsWith('disk')).click()")
        ok(b.evaluate("map.snapshot.tiers[map.tier].name") == "disk" and b.evaluate("map.list.length") > 10, "the disk's tier, too")
        ok(not b.problems, f"plan --html: no word on the console {b.problems[:3]}")


def picture(b, path, x, y):
    """The screen with the pointer at a place of the map, in shares of it."""
    if x: b.call("Input.dispatchMouseEvent", type="mouseMoved", **dict(zip("xy", b.evaluate(f"(c => [c.left + {x} * c.width, c.top + {y} * c.height])(map.canvas.getBoundingClientRect())"))))
    b.screenshot(path)
    png.shrink(path)
    size = os.path.getsize(path)
    ok(size < 100000, f"{os.path.basename(path)} has {size} bytes")


def pictures(folder, where):
    """Of a run whose line has moved, while it goes on; and of the demo's plan."""
    page = os.path.join(where, "plan.html")
    plim.run("plan", "demo/small.yaml", "-q", "--html", page)
    with browser.Browser(width=1100, height=880) as b:
        b.open("file://" + page)
        picture(b, os.path.join(folder, "arena.png"), .3, .6)
    with watching.Run(where, "--budget", "56MiB", training__learning_rate="3e-3", training__steps=4000, training__warmup_steps=40, training__lr_scheduler="cosine", model__hidden_size=128, model__intermediate_size=352,
                      model__num_layers=6) as run:
        for step, budget in ((60, "40MiB"), (110, "56MiB")):
            watching.wait_for(lambda: run.steps() > step, 300)
            run.ctl("budget", budget)
        watching.wait_for(lambda: run.steps() > 160, 300)
        with watching.Page(run.folder) as p:
            for name, screen in SCREENS.items():
                with browser.Browser(**screen) as b:
                    b.open(p.url + "/")
                    b.wait_for("document.getElementById('state').textContent === 'live' && run.points.length > 50 && map && map.list")
                    picture(b, os.path.join(folder, name + ".png"), .42 if name != "watching-phone" else 0, .86)


def main():
    browser.need()
    server.need_http()
    with tempfile.TemporaryDirectory() as where:
        if len(sys.argv) > 1:
            pictures(sys.argv[1], where)
        else:
            run = live(where)
            for name in ("watching", "watching-phone"): finished(run, name)
            planned(where)
    plim.done()


main()
