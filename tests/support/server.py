"""A server to test: starts plimsoll serve over the fake engine, speaks HTTP to it, and stops it."""
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import plim

FAKE = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tests", "fake_engine", "plimsoll")
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}


def need_http():
    """Ends the test as skipped where the program has no server in it."""
    if not json.loads(plim.run("version", "--json").stdout)["features"]["http"]:
        print("this plimsoll was built without libmicrohttpd")
        sys.exit(77)


def model(folder, template=TEMPLATE):
    """A folder that the fake engine takes for a model; its tokens are bytes."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f: json.dump(CONFIG, f)
    if template is not None:
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f: json.dump({"chat_template": template}, f)
    return folder


class Server:
    """with Server(folder, "--parallel", 2, engine="delay=5") as s: s.post("/generate", {...})"""

    def __init__(self, folder, *flags, engine="", program=FAKE):
        env = dict(os.environ, PLIMSOLL_FAKE_ENGINE=engine)
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([program, "serve", folder, "--port", "0", "--device", "cpu", *map(str, flags)], env=env,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err, text=True)
        self.url = self.process.stdout.readline().strip()
        found = re.match(r"http://(.*):(\d+)$", self.url)
        self.port = int(found.group(2)) if found else 0

    def __enter__(self):
        until = time.time() + 60
        while self.port and time.time() < until and not self.healthy() and self.process.poll() is None: time.sleep(0.01)
        return self

    def healthy(self):
        try:
            return self.get("/health")[0] == 200
        except (OSError, http.client.HTTPException):
            if not plim.gone(self.process): raise
            return False

    def __exit__(self, *_):
        self.stop()

    def stop(self, number=signal.SIGTERM):
        """Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        if "Sanitizer" in self.log(): print("# " + self.log().replace("\n", "\n# ")[:8000], flush=True)
        return self.process.returncode

    def log(self):
        """What it has said so far. Its place in the file is ours, too: reading must not move that, or it would write over its own lines."""
        fd = self.err.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, text)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)): body = json.dumps(body)
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read().decode()
        finally:
            c.close()

    def get(self, path, **more):
        status, headers, text = self.request("GET", path, **more)
        return status, text

    def post(self, path, body, **more):
        """(status, JSON)."""
        status, headers, text = self.request("POST", path, body, **more)
        return status, json.loads(text)

    def stream(self, path, body):
        """All events of a stream, as JSON or text."""
        status, headers, text = self.request("POST", path, dict(body, stream=True))
        if status != 200: return json.loads(text)
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        found = [e[6:] for e in text.split("\n\n") if e]
        return [json.loads(e) if e != "[DONE]" else e for e in found]

    def raw(self, data, timeout=60, until_close=True):
        """What comes back for these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            got = b""
            try:
                s.sendall(data)
            except ConnectionError:
                pass  # answered and hung up on before it had read everything
            try:
                while piece := s.recv(65536):
                    got += piece
                    if not until_close and b"\r\n\r\n" in got: break
            except (ConnectionResetError, socket.timeout):
                pass
            return got

    def metric(self, name, **labels):
        """The value of a line of /metrics."""
        text = self.get("/metrics")[1]
        for line in text.splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()): return float(line.split()[-1])
        return None

    def wait_for(self, condition, seconds=30):
        until = time.time() + seconds
        while time.time() < until:
            if condition(): return True
            time.sleep(0.01)
        return False

    def idle(self):
        return is_idle(self)


def is_idle(s, headers=None):
    """Nothing runs, waits or is in use."""
    h = json.loads(s.request("GET", "/hold", headers=headers)[2])
    return h["running"] == h["waiting"] == h["blocks_used"] == 0


def open_connection(s, path, ask, receive=None, headers=""):
    """A connection that has asked and not read."""
    body = json.dumps(ask).encode()
    c = socket.socket()
    if receive: c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    c.settimeout(60)
    c.connect(("127.0.0.1", s.port))
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
    return c


def background(function, *args):
    """A thread whose result is in .result."""
    def body(): thread.result = function(*args)
    thread = threading.Thread(target=body)
    thread.result = None
    thread.start()
    return thread


BLANK = dict(CONFIG, num_hidden_layers=4, hidden_size=256, intermediate_size=704, num_attention_heads=8, num_key_value_heads=4, vocab_size=8192,
             max_position_embeddings=2048, tie_word_embeddings=True, torch_dtype="float32")


def blank_model(folder, **changes):
    """A LLaMA whose weights are zeros, in a sparse file: as large as wanted, at once; every token is as likely. Its tokens are bytes."""
    config = {**BLANK, **changes}
    os.makedirs(folder, exist_ok=True)
    c, f, v = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = c // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [v, c], "model.norm.weight": [c]}
    for i in range(config["num_hidden_layers"]):
        for name, shape in (("self_attn.q_proj", [c, c]), ("self_attn.k_proj", [kv, c]), ("self_attn.v_proj", [kv, c]), ("self_attn.o_proj", [c, c]), ("mlp.gate_proj", [f, c]),
                            ("mlp.up_proj", [f, c]), ("mlp.down_proj", [c, f]), ("input_layernorm", [c]), ("post_attention_layernorm", [c])):
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "config.json"), "w") as out: json.dump(config, out)
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return folder


def resident(process):
    """Bytes of memory that the process has now, and had at most, as the system says."""
    with open(f"/proc/{process.pid}/status") as f: found = dict(line.split(":", 1) for line in f)
    return int(found["VmRSS"].split()[0]) * 1024, int(found["VmHWM"].split()[0]) * 1024
