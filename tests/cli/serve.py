#!/usr/bin/env python3
"""plimsoll serve over a fake engine: every endpoint, its forms and its refusals."""
# run-tests: timeout=300
import os
import sys

sys.path[0] = os.path.join(sys.path[0], "..", "support")  # not from here, where tests have names of Python's modules
import json
import tempfile

import plim
from plim import ok
import server
from server import Server

server.need_http()


def completions(s):
    code, r = s.post("/v1/completions", {"model": "m", "prompt": "abc", "max_tokens": 5, "temperature": 0})
    ok(code == 200 and r["choices"][0]["text"] == "abcab" and r["choices"][0]["finish_reason"] == "length" and r["object"] == "text_completion"
       and r["id"].startswith("cmpl-") and r["model"] == "m" and r["choices"][0]["logprobs"] is None, f"completion: {r}")
    ok(r["usage"]["prompt_tokens"] == 3 and r["usage"]["completion_tokens"] == 5 and r["usage"]["total_tokens"] == 8, "usage adds up")
    code, r = s.post("/v1/completions", {"prompt": "abc", "temperature": 0})
    ok(r["usage"]["completion_tokens"] == 16, "16 tokens unless told")
    code, r = s.post("/v1/completions", {"prompt": ["ab", "cd"], "max_tokens": 2, "temperature": 0, "n": 2})
    ok([c["text"] for c in r["choices"]] == ["ab", "ab", "cd", "cd"] and [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
       and r["usage"]["prompt_tokens"] == 4, f"several prompts, several choices {r}")
    code, r = s.post("/v1/completions", {"prompt": [97, 98], "max_tokens": 3, "temperature": 0})
    ok(r["choices"][0]["text"] == "aba", "a prompt of token ids")
    code, r = s.post("/v1/completions", {"prompt": [[97], [98]], "max_tokens": 2, "temperature": 0, "echo": True})
    ok([c["text"] for c in r["choices"]] == ["aaa", "bbb"], "several of them, echoed")
    one, two = (s.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 4, "seed": 8})[1]["choices"][0]["text"] for _ in range(2))
    ok(one == two == "cdef", "the same seed gives the same text")
    code, r = s.post("/v1/completions", {"prompt": "ab\x04", "max_tokens": 9, "temperature": 0})
    ok(r["choices"][0]["text"] == "ab" and r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] == 2, "the end of text stops")
    code, r = s.post("/v1/completions", {"prompt": "ab\x04", "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    ok(r["choices"][0]["text"] == "ab\x04a" and r["choices"][0]["finish_reason"] == "length", "unless it is ignored")


def stops(s):
    for stop, text in (("cd", "ab"), (["zz", "bcd"], "a"), ("é", "abcd"), ("éf", "abcd"), ("nothing", "abcdéfabcdéf")):
        code, r = s.post("/v1/completions", {"prompt": "abcdéf", "max_tokens": 14, "temperature": 0, "stop": stop})
        events = s.stream("/v1/completions", {"prompt": "abcdéf", "max_tokens": 14, "temperature": 0, "stop": stop})
        streamed = "".join(e["choices"][0]["text"] for e in events[:-1])
        reason = "length" if stop == "nothing" else "stop"
        ok(r["choices"][0]["text"] == streamed == text and r["choices"][0]["finish_reason"] == events[-2]["choices"][0]["finish_reason"] == reason,
           f"stop {stop!r} across tokens: {r['choices'][0]} {streamed!r}")
    code, r = s.post("/v1/completions", {"prompt": "abé", "max_tokens": 3, "temperature": 0})
    ok(r["choices"][0]["text"] == "ab\ufffd", f"a character that was cut is U+FFFD at the end {r['choices'][0]['text']!r}")
    events = s.stream("/v1/completions", {"prompt": "é€𝄞", "max_tokens": 18, "temperature": 0})
    ok("".join(e["choices"][0]["text"] for e in events[:-1]) == "é€𝄞é€𝄞" and not any("\ufffd" in str(e) for e in events), "no event ends inside a character")


def likelihoods(s):
    code, r = s.post("/v1/completions", {"prompt": "abc", "max_tokens": 2, "temperature": 0, "logprobs": 2, "echo": True})
    l = r["choices"][0]["logprobs"]
    ok(l["tokens"] == list("abcab") and l["text_offset"] == [0, 1, 2, 3, 4] and l["token_logprobs"] == [None, -0.5, -0.75, -0.25, -0.5]
       and l["top_logprobs"][0] is None and l["top_logprobs"][3] == {"a": -0.25, "b": -0.5}, f"logprobs with echo {l}")
    for more in (0, 2):
        code, r = s.post("/v1/completions", {"prompt": "a", "max_tokens": more, "temperature": 0, "logprobs": 1, "echo": True})
        lp = r["choices"][0]["logprobs"]
        ok(code == 200 and lp["tokens"][0] == "a" and lp["token_logprobs"][0] is None and len(lp["tokens"]) == 1 + more, f"echo of a prompt of one token, and {more} more")
    code, r = s.post("/v1/completions", {"prompt": "abc", "max_tokens": 0, "logprobs": 0, "echo": True, "temperature": 0})
    ok(r["choices"][0]["text"] == "abc" and len(r["choices"][0]["logprobs"]["tokens"]) == 3 and r["usage"]["completion_tokens"] == 0, f"scoring a prompt {r}")
    code, r = s.post("/v1/completions", {"prompt": "\x04ab", "max_tokens": 0, "echo": True, "temperature": 0})
    ok(r["choices"][0]["text"] == "\x04ab" and r["choices"][0]["finish_reason"] == "length", f"no token was asked for: none can end it {r}")
    for n, want in ((512, 200), (513, 400)):
        code, r = s.post("/v1/completions", {"prompt": "x" * n, "max_tokens": 0, "echo": True, "logprobs": 0})
        ok(code == want and (code == 200 or "may have 0: 1 too many" in r["error"]["message"]), f"a prompt of {n} tokens alone in a context of 512: {code} {str(r)[:200]}")
    code, r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "é"}], "max_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 1})
    entries = r["choices"][0]["logprobs"]["content"]
    ok(len(entries) == 10 and entries[0]["token"] == "[" and entries[0]["bytes"] == [91] and entries[0]["top_logprobs"][0]["token"] == "[", "logprobs of a chat")
    whole = bytes(b for e in entries for b in e["bytes"]).decode()
    ok(whole.startswith("[user] é"), "bytes of tokens join to the text")
    events = s.stream("/v1/completions", {"prompt": "abc", "max_tokens": 4, "temperature": 0, "logprobs": 0})
    tokens = [t for e in events[:-1] for t in e["choices"][0]["logprobs"]["tokens"]]
    ok(tokens == list("abca"), f"streamed logprobs, each token once {tokens}")


def chats(s):
    ask = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}],
           "max_tokens": 30, "temperature": 0}
    code, r = s.post("/v1/chat/completions", ask)
    ok(code == 200 and r["object"] == "chat.completion" and r["id"].startswith("chatcmpl-") and r["choices"][0]["message"] ==
       {"role": "assistant", "content": "[system] S\n[user] Hi\n[assistan"}, f"a chat through the template {r}")
    events = s.stream("/v1/chat/completions", dict(ask, stream_options={"include_usage": True}, n=2))
    ok(events[-1] == "[DONE]" and all(e["object"] == "chat.completion.chunk" for e in events[:-1]), "a streamed chat ends with [DONE]")
    ok([e["choices"][0]["delta"] for e in events[:2]] == [{"role": "assistant", "content": ""}] * 2, "the first deltas have the role")
    for i in (0, 1):
        mine = [e["choices"][0] for e in events[:-1] if e["choices"] and e["choices"][0]["index"] == i]
        ok("".join(c["delta"].get("content", "") for c in mine) == r["choices"][0]["message"]["content"] and mine[-1]["finish_reason"] == "length"
           and all(c["finish_reason"] is None for c in mine[:-1]), f"choice {i} of a streamed chat is whole")
    ok(events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 60 and events[0]["usage"] is None, "usage comes last when asked for")
    code, r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": 0})
    ok(r["usage"]["total_tokens"] == 512, "without max_tokens the context is the bound")


def generate(s):
    code, r = s.post("/generate", {"prompt": "abc", "max_tokens": 4, "temperature": 0})
    ok(code == 200 and r["generated_text"] == "abca" and r["finish_reason"] == "length" and r["usage"]["completion_tokens"] == 4, f"/generate {r}")
    code, r = s.post("/generate", {"inputs": "abc", "parameters": {"max_new_tokens": 4}})
    ok(code == 200 and r == {"generated_text": "abca"}, f"/generate in TGI's form is greedy {r}")
    code, r = s.post("/generate", {"inputs": "ab\x04", "parameters": {"max_new_tokens": 9, "details": True, "seed": 3}})
    ok(r["details"]["finish_reason"] == "eos_token" and r["details"]["generated_tokens"] == 2 and r["details"]["seed"] == 3
       and [t["text"] for t in r["details"]["tokens"]] == ["a", "b"], f"its details {r}")
    code, r = s.post("/generate", {"inputs": "abcd", "parameters": {"max_new_tokens": 9, "details": True, "stop": ["cd"], "return_full_text": True}})
    ok(r["details"]["finish_reason"] == "stop_sequence" and r["generated_text"] == "abcdab", f"its stop and full text {r}")
    events = s.stream("/generate", {"inputs": "abc", "parameters": {"max_new_tokens": 4}})
    ok([e["token"]["id"] for e in events] == [97, 98, 99, 97] and events[-1]["generated_text"] == "abca" and events[0]["generated_text"] is None
       and events[-1]["details"]["finish_reason"] == "length", f"its stream {events[-1]}")


def tokens_and_rest(s):
    code, r = s.post("/tokenize", {"prompt": "aé"})
    ok(code == 200 and r == {"count": 3, "max_model_len": 512, "tokens": [97, 195, 169]}, f"/tokenize {r}")
    code, r = s.post("/tokenize", {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False})
    ok(r["count"] == len("[user] x\n"), "/tokenize a conversation")
    ok(s.post("/detokenize", {"tokens": [97, 195, 169]}) == (200, {"prompt": "aé"}), "/detokenize")
    code, r = s.request("GET", "/v1/models")[0], json.loads(s.get("/v1/models")[1])
    ok(code == 200 and r["object"] == "list" and r["data"][0]["id"] == "m" and r["data"][0]["max_model_len"] == 512 and r["data"][0]["object"] == "model", f"/v1/models {r}")
    ok(s.get("/health") == (200, '{"status":"ok"}\n'), "/health")
    status, headers, text = s.request("GET", "/")
    ok(status == 200 and headers["Content-Type"].startswith("text/html") and "default-src 'none'" in headers["Content-Security-Policy"], "the page and its policy")
    ok("http://" not in text and "https://" not in text and "src=" not in text, "the page needs nothing else")
    status, headers, text = s.request("HEAD", "/health")
    ok(status == 200 and text == "", "HEAD has no body")
    code, r = s.post("/v1/embeddings", {"input": "x"})
    ok(code == 501 and "embeddings" in r["error"]["message"], "embeddings are refused clearly")
    hold = json.loads(s.get("/hold")[1])
    ok(hold["blocks"] > 0 and hold["model"] == "m" and hold["plan"]["context"] == 512, "/hold")
    ok(s.metric("http_responses_total", code=200) > 10 and s.metric("request_success_total", finished_reason="stop") >= 1
       and s.metric("time_to_first_token_seconds_count") > 5 and s.metric("generation_tokens_total") > 100, "/metrics count")


def refusals(s):
    def bad(path, body, status, param, says, method="POST", **more):
        code, headers, text = s.request(method, path, body, **more)
        e = json.loads(text)["error"]
        ok(code == status and e["param"] == param and says in e["message"] and set(e) == {"message", "type", "param", "code"}, f"{path}: {code} {e}")
        return headers
    bad("/v1/completions", '{"prompt":"x"', 400, None, "body:1")
    bad("/v1/completions", "", 400, None, "body")
    bad("/v1/completions", b'{"prompt":"\xff"}', 400, None, "UTF-8")
    bad("/v1/completions", '{"prompt":"x","prompt":"y"}', 400, None, "twice")
    bad("/v1/completions", "[" * 100000, 400, None, "128")
    bad("/v1/completions", "[1]", 400, None, "object")
    bad("/v1/completions", {}, 422, "prompt", "missing")
    bad("/v1/completions", {"prompt": 3}, 422, "prompt", "text or a list")
    bad("/v1/completions", {"prompt": []}, 422, "prompt", "1 to")
    bad("/v1/completions", {"prompt": ""}, 422, "prompt", "no tokens")
    bad("/v1/completions", {"prompt": [1, 256]}, 422, "prompt", "item 1")
    bad("/v1/completions", {"prompt": "x", "model": "other"}, 404, "model", "'m'")
    bad("/v1/completions", {"prompt": "x", "model": "m\x00x"}, 422, "model", "U+0000")
    bad("/v1/completions", {"prompt": "x", "response_format": {"type": "text\x00x"}}, 422, "response_format", "text")
    bad("/v1/completions", {"prompt": "x", "max_tokens": 512}, 400, "max_tokens", "512 tokens; the prompt has 1 and the answer may have 512: 1 too many")
    bad("/v1/completions", {"prompt": "x" * 600}, 400, "max_tokens", "600")
    bad("/v1/completions", {"prompt": "x", "n": 100}, 422, "n", "at once")
    bad("/v1/chat/completions", {"prompt": "x"}, 422, "prompt", "unknown")
    bad("/v1/chat/completions", {"messages": []}, 422, "messages", "at least one")
    bad("/v1/chat/completions", {"messages": [{"role": "user"}]}, 422, "messages", "content")
    bad("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 422, "messages", "image_url")
    bad("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 600}]}, 400, "messages", "too many")
    bad("/generate", {"inputs": 3}, 422, "inputs", "text")
    bad("/generate", {"inputs": "x", "parameters": {"max_tokens": 3}}, 422, "max_tokens", "unknown")
    bad("/detokenize", {"tokens": "x"}, 422, "tokens", "list")
    bad("/nothing", {}, 404, None, "/nothing")
    ok(bad("/generate", None, 405, None, "POST", method="GET")["Allow"] == "POST", "405 says what is allowed")
    ok(bad("/health", {}, 405, None, "GET")["Allow"] == "GET, HEAD", "for GET, too")
    bad("/generate", "x" * 3000000, 413, None, "2097152")
    bad("/generate", {"prompt": "x"}, 403, None, "elsewhere", headers={"Origin": "http://evil.example"})
    bad("/generate", {"prompt": "x"}, 403, None, "elsewhere", headers={"Origin": "null"})
    bad("/generate", {"prompt": "x"}, 403, None, "elsewhere", headers={"Sec-Fetch-Site": "cross-site"})
    bad("/generate", {"prompt": "x"}, 403, None, "evil.example", headers={"Host": "evil.example:8000"})
    code, r = s.post("/generate", {"prompt": "x", "max_tokens": 1}, headers={"Origin": f"http://127.0.0.1:{s.port}"})
    ok(code == 200, "the page's own origin is welcome")


def keys(folder):
    path = os.path.join(folder, "keys")
    with open(path, "w") as f: f.write("secret-key-one\nsecret-key-two\n")
    os.chmod(path, 0o600)
    with Server(f"{folder}/m", "--api-key-file", path, "-v") as s:
        for shown, want in ((None, 401), ("Bearer wrong-key", 401), ("Bearer secret-key-on", 401), ("Basic secret-key-one", 401), ("Bearer " + "x" * 5000, 401),
                            ("Bearer secret-key-one", 200), ("bearer secret-key-two", 200)):
            code, headers, text = s.request("POST", "/generate", {"prompt": "x", "max_tokens": 1}, headers={"Authorization": shown} if shown else {})
            ok(code == want and (code == 200 or headers.get("WWW-Authenticate") == "Bearer"), f"key {shown and shown[:30]}: {code}")
        ok(s.get("/metrics")[0] == 401 and s.get("/health")[0] == 200 and s.get("/")[0] == 200, "health and page need none")
        code, r = s.post("/generate", {"prompt": "x", "max_tokens": 1}, headers={"Authorization": "Bearer secret-key-one", "Origin": "http://elsewhere.example"})
        ok(code == 200, "who shows a key may come from elsewhere")
        s.stop()
        ok("secret-key" not in s.log(), "keys are not in the log")
    os.chmod(path, 0o644)
    with Server(f"{folder}/m", "--api-key-file", path) as s:
        s.stop()
        ok("chmod 600" in s.log(), "a file that others can read is warned of")


def without_chat(folder):
    for template, says in ((None, "cannot chat"), ("{% for %}", "cannot chat")):
        with Server(server.model(f"{folder}/plain", template)) as s:
            code, r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
            ok(code == 501 and says in r["error"]["message"] and s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200,
               f"no chats, but completions: {r['error']['message']}")
    with Server(server.model(f"{folder}/strict", "{{ raise_exception('no system') }}")) as s:
        code, r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        ok(code == 422 and r["error"]["param"] == "messages" and "no system" in r["error"]["message"], "a template that refuses")


def large_bodies(folder):
    with Server(f"{folder}/m", "--max-context", 1000000, "--max-body", "8MiB") as s:
        ids = {"prompt": [97] * 400000, "max_tokens": 1, "temperature": 0}
        code, r = s.post("/v1/completions", ids)
        ok(code == 200 and r["usage"]["prompt_tokens"] == 400000, f"a prompt of 400,000 ids: {code} {str(r)[:200]}")
        code, headers, text = s.request("POST", "/v1/completions", '{"prompt":[' + "[]," * 2000000 + "[]]}")
        ok(code == 400 and "the most for a request" in text, f"JSON that takes too much as a tree: {text.strip()}")
    with Server(f"{folder}/m", "--max-context", 3000000, engine="delay=1") as s:
        large = {"prompt": "a", "max_tokens": 900000, "temperature": 0}
        first = server.open_connection(s, "/v1/completions", large)
        ok(s.wait_for(lambda: s.metric("num_requests_running") == 1), "a request whose answer may be large runs")
        code, r = s.post("/v1/completions", large)
        ok(code == 429 and r["error"]["code"] == "answers_full", f"another would be too much: {r}")
        ok(s.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200, "a small one is not")
        first.close()
        ok(s.wait_for(lambda: s.post("/v1/completions", dict(large, max_tokens=2))[0] == 200 and s.idle()), "its client has gone")


def flags(folder):
    def wrong(says, *args):
        r = plim.run("serve", "-q", *args)
        ok(r.returncode == 2 and says in r.stderr and r.stderr.count("\n") == 1 and not r.stdout, f"serve {' '.join(map(str, args))[-40:]}: {r.stderr.strip()}")
    m = f"{folder}/m"
    wrong("--port", m, "--port", 70000)
    wrong("--device", m, "--device", "xpu")
    wrong("--timeout", m, "--timeout", 0)
    wrong("nothing", f"{folder}/nothing", "--port", 0)
    wrong("keys", m, "--port", 0, "--api-key-file", f"{folder}/no-such-keys")
    with Server(m) as s:
        wrong("another --port", m, "--port", s.port)


def main():
    with tempfile.TemporaryDirectory() as folder:
        with Server(server.model(f"{folder}/m"), "--queue", 16) as s:
            for part in (completions, stops, likelihoods, chats, generate, tokens_and_rest, refusals): part(s)
            ok(s.wait_for(s.idle), "nothing is left over")
            code = s.stop()
            log = s.log()
            names = ["start", "config_loaded", "tokenizer_loaded", "weights_mapped", "model_loaded_cpu", "inputs_on_device", "model_on_device", "compilation_started",
                     "compilation_complete", "warmup_complete", "model_saved", "final_cleanup", "ready"]
            ok(code == 0 and [l.split()[2] for l in log.splitlines() if l.startswith("stage")] == names and log.count(", host ") == 13, f"thirteen stages, exit 0: {log[-300:]}")
        keys(folder)
        without_chat(folder)
        large_bodies(folder)
        flags(folder)
    plim.done()


main()
