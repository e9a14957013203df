#!/usr/bin/env python3
"""Real clients: the openai package speaks to our server, and Prometheus' parser reads its metrics.

Skips itself where they are not installed; `tools/deps.sh test` installs them into build/venv-test."""
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]  # tests here have names of modules that openai imports
try:
    import openai
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as e:
    print(f"no openai or prometheus_client here: {e}")
    sys.exit(77)

import tempfile

sys.path.insert(0, os.path.join(here, "..", "support"))
import plim
from plim import ok
import server
import tiny_bert

server.need_http()
HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
              "request_prefill_time_seconds", "request_decode_time_seconds"]
COUNTERS = ["num_preemptions", "prompt_tokens", "generation_tokens", "request_success"]
GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]


def raised(kind, call, *args, **more):
    try:
        call(*args, **more)
    except kind as e:
        return e
    return None


def completions(client):
    r = client.completions.create(model="m", prompt="abc", max_tokens=5, temperature=0, logprobs=2)
    ok(r.choices[0].text == "abcab" and r.choices[0].finish_reason == "length" and r.usage.total_tokens == 8, f"completion {r.choices[0].text}")
    ok(r.choices[0].logprobs.tokens == list("abcab") and r.choices[0].logprobs.top_logprobs[0] == {"a": -0.25, "b": -0.5}, "its logprobs")
    r = client.completions.create(model="m", prompt=["abcd", "xyz"], max_tokens=9, temperature=0, n=2, stop=["cd", "z"])
    ok([c.text for c in r.choices] == ["ab", "ab", "xy", "xy"] and all(c.finish_reason == "stop" for c in r.choices), "n and stop")
    chunks = list(client.completions.create(model="m", prompt="é€", max_tokens=10, temperature=0, stream=True, stream_options={"include_usage": True}))
    ok("".join(c.choices[0].text for c in chunks if c.choices) == "é€é€" and chunks[-1].usage.completion_tokens == 10, "streamed, with usage")


def chats(client):
    ask = dict(model="m", messages=[{"role": "user", "content": "Hi"}], max_tokens=9, temperature=0)
    r = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    ok(r.choices[0].message.content == "[user] Hi" and r.choices[0].message.role == "assistant" and r.object == "chat.completion", "chat")
    ok(r.choices[0].logprobs.content[1].token == "u" and len(r.choices[0].logprobs.content[1].top_logprobs) == 2, "its logprobs")
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    ok("".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "[user] Hi" and chunks[0].choices[0].delta.role == "assistant"
       and chunks[-1].usage.completion_tokens == 9 and [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length", "streamed chat")
    with client.chat.completions.create(**dict(ask, max_tokens=400), stream=True) as stream: next(iter(stream))
    ok(client.models.list().data[0].id == "m", "models")


def errors(client, s):
    e = raised(openai.BadRequestError, client.completions.create, model="m", prompt="x", max_tokens=5000)
    ok(e and e.code == "context_length_exceeded" and e.param == "max_tokens" and "512" in e.message, f"context: {e}")
    ok(raised(openai.NotFoundError, client.completions.create, model="other", prompt="x"), "another model is not found")
    ok(raised(openai.UnprocessableEntityError, client.completions.create, model="m", prompt="x", temperature=-1), "validation")
    ok(raised(openai.AuthenticationError, openai.OpenAI(base_url=s.url + "/v1", api_key="wrong-key", max_retries=0).models.list), "a wrong key")


def embeddings(folder):
    tiny_bert.make_model(f"{folder}/bert")
    with server.Server(f"{folder}/bert", program=plim.PLIMSOLL) as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
        r = client.embeddings.create(model="bert", input=["The ship left.", "a"])
        ok(len(r.data) == 2 and len(r.data[0].embedding) == tiny_bert.SIZES["hidden_size"] and abs(sum(x * x for x in r.data[0].embedding) - 1) < 1e-5 and r.usage.prompt_tokens > 4, "embeddings, as the client asks for them")
        plain = client.embeddings.create(model="bert", input="The ship left.", encoding_format="float")
        ok(max(abs(a - b) for a, b in zip(plain.data[0].embedding, r.data[0].embedding)) < 1e-6, "as numbers")
        ok(raised(openai.BadRequestError, client.embeddings.create, model="bert", input="word " * 500), "too long a text")
        ok(raised(openai.InternalServerError, client.completions.create, model="bert", prompt="x"), "an encoder writes no text")


def metrics(s):
    status, headers, text = s.request("GET", "/metrics", headers={"Authorization": "Bearer key-for-tests"})
    found = {f.name: f for f in text_string_to_metric_families(text)}
    ok(status == 200 and all(found["vllm:" + n].type == "histogram" for n in HISTOGRAMS) and all(found["vllm:" + n].type == "counter" for n in COUNTERS)
       and all(found["vllm:" + n].type == "gauge" for n in GAUGES), f"Prometheus reads {len(found)} families")
    for name in HISTOGRAMS:
        samples = found["vllm:" + name].samples
        buckets = [x.value for x in samples if x.name.endswith("_bucket")]
        count = [x.value for x in samples if x.name.endswith("_count")][0]
        ok(buckets == sorted(buckets) and buckets[-1] == count > 0, f"{name}: {count:.0f} observations")
    ok(all(x.labels["model_name"] == "m" for f in found.values() for x in f.samples), "every sample names the model")


with tempfile.TemporaryDirectory() as folder:
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as f: f.write("key-for-tests\n")
    with server.Server(server.model(f"{folder}/m"), "--api-key-file", keys, "--metrics-prefix", "vllm:", engine="delay=1") as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="key-for-tests", max_retries=0)
        completions(client)
        chats(client)
        errors(client, s)
        metrics(s)
    embeddings(folder)
plim.done()
