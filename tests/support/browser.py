"""A headless Chromium for tests, driven over its DevTools protocol with the standard library alone.

    with Browser(width=390, height=800, dark=True) as b:
        b.open(url)
        b.evaluate("document.title")
        b.screenshot("page.png")
    b.problems: console errors, uncaught exceptions, and what could not be loaded"""
import base64
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time


def find():
    """Its path; None: there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def need():
    """Ends the test as skipped where there is none that starts (a distribution's may be a stub that asks for another package)."""
    program = find()
    if not program or subprocess.run([program, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        print("no Chromium here" if not program else f"{program} does not start")
        sys.exit(77)


class Socket:
    """The client's side of a WebSocket: texts both ways."""

    def __init__(self, port, path):
        self.s = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer: self.buffer += self.s.recv(4096)
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0x80 | 126, len(data)) if len(data) < 65536 else struct.pack("!BQ", 0x80 | 127, len(data))
        self.s.sendall(b"\x81" + size + mask + bytes(c ^ mask[i % 4] for i, c in enumerate(data)))

    def take(self, n):
        while len(self.buffer) < n:
            piece = self.s.recv(65536)
            if not piece: raise EOFError("the browser has gone")
            self.buffer += piece
        got, self.buffer = self.buffer[:n], self.buffer[n:]
        return got

    def receive(self):
        whole = b""
        while True:
            first, second = self.take(2)
            size = second & 127
            if size == 126: size, = struct.unpack("!H", self.take(2))
            elif size == 127: size, = struct.unpack("!Q", self.take(8))
            data = self.take(size)
            if first & 15 in (9, 10): continue  # ping, pong
            whole += data
            if first & 0x80: return whole.decode()


class Browser:
    def __init__(self, width=1100, height=760, dark=False, scale=1):
        self.folder = tempfile.mkdtemp()
        self.size, self.dark, self.number, self.problems = (width, height, scale), dark, 0, []
        self.process = subprocess.Popen([find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                                         "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={self.folder}", "about:blank"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        path, until = os.path.join(self.folder, "DevToolsActivePort"), time.time() + 90
        while not (os.path.exists(path) and "\n" in open(path).read()):
            if time.time() > until or self.process.poll() is not None: raise RuntimeError("Chromium does not start")
            time.sleep(0.05)
        port = int(open(path).read().split()[0])
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        c.request("GET", "/json/list")
        page = next(t for t in json.loads(c.getresponse().read()) if t["type"] == "page")
        self.socket = Socket(port, page["webSocketDebuggerUrl"].split(str(port), 1)[1])
        for domain in ("Page", "Runtime", "Log", "Network"): self.call(domain + ".enable")
        width, height, scale = self.size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}])
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def note(self, event):
        kind, p = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown": self.problems.append(p["exceptionDetails"]["text"])
        if kind == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"): self.problems.append(str([a.get("value") for a in p["args"]]))
        if kind == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"): self.problems.append(p["entry"]["text"])
        if kind == "Network.loadingFailed" and not p.get("canceled"): self.problems.append(p["errorText"])

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            reply = json.loads(self.socket.receive())
            if reply.get("id") == self.number: break
            self.note(reply)
        if "error" in reply: raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script):
        r = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r: raise RuntimeError(r["exceptionDetails"]["text"])
        return r["result"].get("value")

    def wait_for(self, script, seconds=60):
        until = time.time() + seconds
        while time.time() < until:
            if self.evaluate(script): return True
            time.sleep(0.05)
        return False

    def type(self, text, enter=True):
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)
        if not enter: return
        for kind in ("keyDown", "keyUp"): self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "")

    def screenshot(self, path):
        with open(path, "wb") as f: f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
