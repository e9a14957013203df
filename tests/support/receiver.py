"""An HTTP receiver on loopback for tests of what a run sends: answers, refuses, fails or hangs, and keeps what came."""
import http.server
import json
import socket
import threading


class Receiver:
    """with Receiver(status=204) as r: ... r.url, r.messages. A list of statuses: one for each request, the last for all others."""

    def __init__(self, status=204, hang=False):
        self.messages, self.headers, self.paths, self.lock = [], [], [], threading.Lock()
        self.release = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if hang: outer.release.wait(120)
                with outer.lock:
                    answer = status if isinstance(status, int) else status[min(len(outer.messages), len(status) - 1)]
                    outer.messages.append(json.loads(body))
                    outer.headers.append(dict(self.headers))
                    outer.paths.append(self.path)
                try:
                    self.send_response(answer)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:
                    pass

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *args):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


_kept = []


def closed_port():
    """A port of this machine where nobody listens, nor can begin to: it stays taken until the test ends."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    _kept.append(s)
    return s.getsockname()[1]
