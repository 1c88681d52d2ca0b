"""Servers for the tests of storage: an HTTP server with listings and ranges, and S3 ones where they are installed."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    """Listings of http.server, ranges, a log, and whatever a test wants to go wrong."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.log.append((self.path, asked))
        status = self.server.trouble(self.path, asked) if self.server.trouble else None
        if status == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if status:
            self.send_error(status)
            return
        path = Path(self.translate_path(self.path))
        if not (asked and self.server.ranges and path.is_file()):
            super().do_GET()
            return
        content = path.read_bytes()
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", asked).groups()
        last = min(int(last or len(content)), len(content) - 1)
        part = content[int(first) : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def do_HEAD(self):
        status = self.server.trouble(self.path, None) if self.server.trouble else None
        if status and status != "drop":
            self.send_error(status)
            return
        super().do_HEAD()

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """Clients that go away are nothing to print."""

    daemon_threads = True

    def handle_error(self, *_):
        pass


@contextlib.contextmanager
def http(folder: Path, *, ranges=True, trouble=None):
    """A server of a folder: `.url`, and `.log` of (path, range)."""
    server = Server(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    server.log, server.ranges, server.trouble = [], ranges, trouble
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def s3_commands(root: Path, port: int) -> dict[str, list[str]]:
    """How to start each S3 server that is installed."""
    found = {}
    if shutil.which("s3s-fs"):
        keys = ["--access-key", "key-of-a-test", "--secret-key", "secret-of-a-test"]
        found["s3s-fs"] = ["s3s-fs", "--host", "127.0.0.1", "--port", str(port), *keys, str(root)]
    with contextlib.suppress(ImportError):
        import moto.server  # noqa: F401

        found["moto"] = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return found


@contextlib.contextmanager
def running(command: list[str], port: int):
    """A server process that answers on a port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        else:
            msg = f"{command[0]} did not start"
            raise RuntimeError(msg)
        yield
    finally:
        process.kill()
        process.wait()
