#!/usr/bin/env python3
"""The server as curl meets it: bodies of every kind, streams, heads, errors. Skips itself where there is no curl."""
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import json
import shutil
import subprocess
import tempfile

import plim
from plim import ok
import server

server.need_http()
if not shutil.which("curl"):
    print("no curl here")
    sys.exit(77)


def curl(s, path, *args, data=None):
    r = subprocess.run(["curl", "-s", "-S", "--noproxy", "*", "-m", "60", *args, s.url + path], input=data, capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


with tempfile.TemporaryDirectory() as folder:
    with server.Server(server.model(f"{folder}/m"), "--max-context", 4000000, "--max-body", "4MiB", engine="delay=1") as s:
        ask = {"prompt": "abc", "max_tokens": 6, "temperature": 0}
        code, text = curl(s, "/v1/completions", "-d", json.dumps(ask))
        ok(code == 0 and json.loads(text)["choices"][0]["text"] == "abcabc", "a completion as the docs write it")
        code, text = curl(s, "/v1/completions", "-N", "-d", json.dumps(dict(ask, stream=True)))
        events = [e[6:] for e in text.split("\n\n") if e]
        ok(code == 0 and events[-1] == "[DONE]" and "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]) == "abcabc", "a stream")
        large = json.dumps(dict(ask, prompt="x" * 1500000, max_tokens=1))
        code, text = curl(s, "/v1/completions", "-H", "Expect: 100-continue", "-d", "@-", data=large)
        ok(code == 0 and json.loads(text)["usage"]["prompt_tokens"] == 1500000, f"a large body that waits for 100 Continue: {text[:100]}")
        code, text = curl(s, "/generate", "-H", "Transfer-Encoding: chunked", "-d", "@-", data=json.dumps(ask))
        ok(code == 0 and json.loads(text)["generated_text"] == "abcabc", "a body in chunks")
        code, text = curl(s, "/v1/completions", "-H", "Expect: 100-continue", "-d", "@-", data="x" * (6 << 20))
        ok("larger than" in text, f"a body that is too large is told so: {code} {text[:100]}")
        ok(" 200" in curl(s, "/health", "-I")[1].splitlines()[0] and " 405" in curl(s, "/health", "-X", "DELETE", "-i")[1].splitlines()[0], "HEAD, and a method that there is not")
        code, text = curl(s, "/v1/completions", "--fail-with-body", "-d", "{")
        ok(code == 22 and json.loads(text.splitlines()[0])["error"]["code"] == "invalid_json", f"an error is one for curl: {code}")
        ok(curl(s, "/v1/completions", "-m", "1", "-N", "-d", json.dumps(dict(ask, max_tokens=100000, stream=True)))[0] == 28 and s.wait_for(s.idle), "curl gives up in the middle: nothing is left")
plim.done()
