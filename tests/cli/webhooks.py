#!/usr/bin/env python3
"""Webhooks: each shape and each notice arrives; a hook that hangs, refuses or fails harms nothing and is told in one line;
addresses, which are secrets, are in no output and in no file.
"""
import json
import os
import sys
import tempfile

# Not from this folder, whose inspect.py would be taken for Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import plim
import receiver

SECRET = "s3cr3t-token-of-nobody"


def features():
    return json.loads(plim.run("version", "--json").stdout)["features"]


def train(path, *args, env=None):
    """(events, result); JSON goes to standard output."""
    result = plim.run("train", path, "-q", "--overwrite", *args, env=env)
    return plim.events(result.stdout), result


def kinds(messages, read):
    return [read(m) for m in messages]


def shapes(folder, path):
    """All three at once, with every notice."""
    with receiver.Receiver() as plain, receiver.Receiver() as discord, receiver.Receiver(status=200) as slack:
        env = {"PLIMSOLL_WEBHOOK": f"{plain.url}/{SECRET}", "DISCORD_WEBHOOK": f"{discord.url}/{SECRET}", "SLACK_WEBHOOK": f"{slack.url}/{SECRET}"}
        events, result = train(path, "--set", "monitoring.notify_interval=0", "--set", "training.run_name=a <b> & @everyone", env=env)
    steps = [e for e in events if e["event"] == "step"]
    plim.ok(result.returncode == 0 and len(steps) == 4, f"a run with three hooks: {result.stderr.strip()}")
    got = kinds(plain.messages, lambda m: m["event"])
    plim.ok(got == ["start"] + ["progress"] * 4 + ["end"], f"JSON: {got}")
    progress = [m for m in plain.messages if m["event"] == "progress"]
    plim.ok([(m["step"], m["loss"], m["learning_rate"]) for m in progress] == [(e["step"], e["loss"], e["lr"]) for e in steps], "numbers are the log's")
    first = progress[0]
    plim.ok(first["run"] == "a <b> & @everyone" and first["job"] == path and first["steps"] == 4 and first["memory"]["budget"] > first["memory"]["used"] > 0 and
            first["memory"]["status"] == "normal" and first["tokens_per_second"] > 0 and first["grad_norm"] > 0, f"and the rest: {sorted(first)}")
    plim.ok("4 steps" in plain.messages[0]["text"] and plain.messages[-1]["text"].startswith("finished: 4 steps"), "start and end say what there is to say")
    plim.ok(plain.paths == [f"/{SECRET}"] * 6 and all(h["Content-Type"] == "application/json" for h in plain.headers), "the path and the type")
    d = discord.messages
    plim.ok(len(d) == 6 and all(set(m) == {"username", "content", "allowed_mentions", "embeds"} and m["allowed_mentions"] == {"parse": []} for m in d),
            "Discord: its fields, and nobody is called")
    plim.ok([m["embeds"][0]["title"] for m in d] == got and all(len(m["content"]) <= 2000 for m in d) and
            {f["name"] for f in d[1]["embeds"][0]["fields"]} >= {"step", "loss", "learning rate", "tokens/s", "memory"}, "Discord: numbers as fields")
    s = slack.messages
    plim.ok(len(s) == 6 and all(set(m) == {"text", "blocks"} and m["blocks"][0]["text"]["text"] == m["text"] for m in s) and
            "*a &lt;b&gt; &amp; @everyone*" in s[0]["text"] and "step 1 of 4" in s[1]["blocks"][1]["elements"][0]["text"], "Slack: escaped, numbers below")


def notices(folder, path):
    """Which notices are sent is monitoring.notify's; warning and error."""
    with receiver.Receiver() as r:
        env = {"PLIMSOLL_WEBHOOK": r.url}
        train(path, "--set", "monitoring.notify=end", env=env)
        plim.ok(kinds(r.messages, lambda m: m["event"]) == ["end"], "monitoring.notify: end alone")
        r.messages.clear()
        train(path, "--set", "monitoring.notify=none", env=env)
        plim.ok(not r.messages, "monitoring.notify: none")
        train(path, "--set", "training.log_every=2", "--set", "monitoring.notify=progress", "--set", "monitoring.notify_interval=0", env=env)
        plim.ok([m["step"] for m in r.messages] == [2, 4], "progress keeps to training.log_every")
        r.messages.clear()
        train(path, "--set", "monitoring.notify_interval=1000", env=env)
        plim.ok(kinds(r.messages, lambda m: m["event"]) == ["start", "end"], "and to monitoring.notify_interval")
        r.messages.clear()
        _, result = train(path, "--budget-at", "3=64KiB", env=env)
        plim.ok(result.returncode == 3 and kinds(r.messages, lambda m: m["event"]) == ["start", "error"] and r.messages[1]["text"] in result.stderr,
                f"an error is told in its line: {kinds(r.messages, lambda m: m['event'])}")
        r.messages.clear()
        _, result = train(path, "--budget", "64KiB", env=env)
        plim.ok(result.returncode == 3 and kinds(r.messages, lambda m: m["event"]) == ["error"], "also before the first step")
        r.messages.clear()
        events, _ = train(path, "--set", "monitoring.interval=0.01", "--set", "training.memory.warning_threshold=0.012", "--set", "training.memory.target_utilization=0.011",
                          "--set", "training.memory.critical_threshold=0.9", "--budget", "512MiB", "--set", "training.steps=30", env=env)
        told = [e["text"] for e in events if e["event"] == "memory" and e["memory"]["status"] != "normal"]
        plim.ok(told and [m["text"] for m in r.messages if m["event"] == "warning" and m["text"][0] == "["] == told, f"a warning is the step line of memory: {told[:1]}")
        r.messages.clear()
        with open(f"{folder}/.env", "w") as f: f.write(f"PLIMSOLL_WEBHOOK={r.url}\n")
        train(path)
        plim.ok(len(r.messages) == 2, "an address of .env beside the job")
        r.messages.clear()
        for command in (("plan", path), ("doctor", path), ("config", "show", path)): plim.run(*command)
        plim.ok(not r.messages, "plan, doctor and config send nothing")
        os.remove(f"{folder}/.env")


def trouble(folder, path):
    """The same steps, one line, in the time that was stated."""
    calm = plim.losses(train(path)[1].stdout)
    hanging = receiver.Receiver(hang=True)
    with hanging, receiver.Receiver(status=403) as failing:
        cases = {"hangs": hanging.url, "answers 403": failing.url, "refuses": f"http://127.0.0.1:{receiver.closed_port()}", "has no such name": "https://nobody.invalid"}
        for name, url in cases.items():
            events, result = train(path, "--set", "monitoring.notify_timeout=0.5", "--set", "monitoring.notify_interval=0",
                                   env={"DISCORD_WEBHOOK": f"{url}/{SECRET}", "https_proxy": "", "HTTPS_PROXY": ""})
            notes = [e["text"] for e in events if e["event"] == "note" and "DISCORD_WEBHOOK" in e["text"]]
            plim.ok(result.returncode == 0 and plim.losses(result.stdout) == calm, f"a hook that {name}: the run is as it was")
            plim.ok(len(notes) == 1 and SECRET not in notes[0] and "continues" in notes[0], f"one line: {notes}")
        plim.ok(len(failing.messages) == 6, "later messages are tried")
    # No step waits: 40 steps end while the first message still hangs, which may take longer than all of them.
    # What a 4xx answers has not arrived, and is not sent again; 429 and 5xx are.
    for statuses, arrives in (([404], False), ([400], False), ([401], False), ([308], False), ([429, 204], True), ([503, 503, 200], True), ([429], False)):
        with receiver.Receiver(status=statuses) as r:
            result = plim.run("train", path, "-q", "--no-checkpoint", "--steps", 1, "--set", "monitoring.notify=start", env={"PLIMSOLL_WEBHOOK": r.url})
            told = [e["text"] for e in plim.events(result.stdout) if e["event"] == "note" and f"the answer was {statuses[-1]}" in e["text"]]
            tries = len(statuses) if len(statuses) > 1 else 3 if statuses == [429] else 1
            plim.ok(result.returncode == 0 and len(r.messages) == tries and bool(told) != arrives, f"answers {statuses}: sent {len(r.messages)} times, told {told} {result.stderr.strip()}")
    with receiver.Receiver(hang=True) as hanging:
        events, result = train(path, "--set", "monitoring.notify_timeout=3", "--set", "monitoring.notify_interval=0", "--steps", 40, "--no-checkpoint",
                               env={"PLIMSOLL_WEBHOOK": hanging.url})
        end = next(e for e in events if e["event"] == "end")
        spent = sum(e["step_ms"] for e in events if e["event"] == "step") / 1e3
        plim.ok(result.returncode == 0 and len([e for e in events if e["event"] == "step"]) == 40, "more messages than the queue holds: every step is made")
        plim.ok(end["seconds"] - spent < 40 * 3 / 2, "and none has waited for its message's 3 seconds")
        print(f"# the run took {end['seconds']:.2f} s, its steps {spent:.2f} s")


def bad_input(path):
    for args, words in ((("--set", "monitoring.notify=begin"), ["monitoring.notify", "'begin'", "start, progress"]),
                        (("--set", "monitoring.notify_timeout=0"), ["monitoring.notify_timeout"]),
                        (("--set", "monitoring.notify_interval=-1"), ["monitoring.notify_interval"])):
        result = plim.run("train", path, *args)
        plim.ok(result.returncode == 2 and result.stderr.count("\n") == 1 and all(w in result.stderr for w in words), f"{args[-1]}: {result.stderr.strip()}")
    for name in ("DISCORD_WEBHOOK", "SLACK_WEBHOOK", "PLIMSOLL_WEBHOOK"):
        result = plim.run("train", path, env={name: SECRET})
        plim.ok(result.returncode == 2 and name in result.stderr and "https://" in result.stderr and SECRET not in result.stderr, f"{name}: {result.stderr.strip()}")


def secrets(folder, path):
    """The address is in no file and no output."""
    with receiver.Receiver(status=500) as r:
        env = {"DISCORD_WEBHOOK": f"{r.url}/{SECRET}", "WANDB_API_KEY": SECRET}
        log = f"{folder}/secret.jsonl"
        outputs = [plim.run("train", path, "--overwrite", "--log", log, "--set", "training.report_to=all", env=env)]
        for command in (("plan", path, "--settings"), ("plan", path, "--json"), ("config", "show", path, "--all"), ("config", "explain", "monitoring.notify"), ("doctor", path), ("doctor", f"{folder}/run")):
            outputs.append(plim.run(*command, env=env))
    plim.ok(outputs[0].returncode == 0 and not any(SECRET in o.stdout + o.stderr for o in outputs), "no output shows it")
    plim.ok("environment DISCORD_WEBHOOK is told of runs" in outputs[-2].stdout + outputs[-2].stderr, "doctor says that it acts")
    found, files = [], 0
    for root, _, names in os.walk(folder):
        for name in names:
            files += 1
            if SECRET.encode() in open(os.path.join(root, name), "rb").read(): found.append(name)
    plim.ok(files > 10 and not found, f"none of {files} files has it: {found}")


def planned(path):
    with receiver.Receiver() as r:
        env = {"PLIMSOLL_WEBHOOK": r.url}
        plans = [json.loads(plim.run("plan", path, "--json", "-q", env=e).stdout) for e in ({}, env)]
        events, _ = train(path, env=env)
    more = plans[1]["by_class"]["overhead"] - plans[0]["by_class"]["overhead"]
    plim.ok(12 << 20 <= more <= 16 << 20, f"libcurl's memory is part of the plan: {more / (1 << 20):.1f} MiB")
    end = next(e for e in events if e["event"] == "end")
    plim.ok(plim.SANITIZED or end["rss_peak"] <= end["planned_peak"], f"and it is enough: {end['rss_peak']} of {end['planned_peak']}")


with tempfile.TemporaryDirectory() as folder:
    path = plim.job(folder, training__max_grad_norm=1.0)
    bad_input(path)
    if not features()["curl"]:
        events, result = train(path, env={"DISCORD_WEBHOOK": f"https://x/{SECRET}"})
        notes = [e["text"] for e in events if e["event"] == "note" and "libcurl" in e["text"]]
        plim.ok(result.returncode == 0 and len(notes) == 1 and SECRET not in result.stdout, f"without libcurl: {notes}")
        plim.done()
    shapes(folder, path)
    notices(folder, path)
    trouble(folder, path)
    secrets(folder, path)
    planned(path)
plim.done()
