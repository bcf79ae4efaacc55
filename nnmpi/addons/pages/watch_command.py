"""The command `python -m nnmpi.watch`: serves the page of runs, and follows their logs as they
grow.

It listens on this host alone: use `ssh -L PORT:127.0.0.1:PORT HOST` to see the page elsewhere. Log
files need not exist yet. Exit status: 0 stopped by Ctrl-C, 1 failed, 2 unusable arguments.
"""

import argparse
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nnmpi.addons.pages.page import as_json, as_values, html, logs_of, read
from nnmpi.addons.pages.report_command import add_files
from nnmpi.options import cli
from nnmpi.options.quoting import shown

HOST, PORT = "127.0.0.1", 8321


def parser() -> cli.Parser:
    """The parser of the command line."""
    about = f"Serve the page of runs on {HOST}, and follow their logs while they grow."
    p = cli.Parser("nnmpi.watch", description=about)
    add_files(p)
    text = f"(default {PORT}; 0: any free port)"
    p.add_argument("--port", type=int, default=PORT, metavar="N", help=text)
    return p


class PageServer(ThreadingHTTPServer):
    """An HTTP server of the page of runs; the version of `values` counts changes of the log files.
    Each connection has a thread, because browsers open connections on which they send nothing."""

    def __init__(self, port: int, files: Sequence[str]) -> None:
        self.files, self.values = files, as_values((), version=0)
        self._read: Mapping[str, tuple[int, ...]] = {}  # the files as they were read
        self._lock = threading.Lock()  # guards `values` and `_read`: each request has a thread
        super().__init__((HOST, port), PageHandler)

    def newer_values(self, version: str) -> Mapping[str, Any]:
        """Returns what the page shows, {} if `version` is the newest, or {"problem": ...}."""
        try:
            with self._lock:
                self._refresh()
        except (OSError, ValueError) as error:
            return {"problem": shown(error)}
        values = self.values
        return {} if version == f"{values['version']}" else values

    def _refresh(self) -> None:
        stats = {file: os.stat(file) for file in self.files if os.path.exists(file)}
        marks = {f: (s.st_ino, s.st_size, s.st_mtime_ns) for f, s in stats.items() if s.st_size}
        if marks != self._read:
            logs = logs_of({file: read(file) for file in marks})
            self.values, self._read = as_values(logs, self.values["version"] + 1), marks

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints the traceback of an error, unless the browser has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class PageHandler(BaseHTTPRequestHandler):
    """Answers requests: / is the page; /data?VERSION gives its values if they are newer."""

    server: PageServer
    timeout = 60.0  # seconds for which a connection may be idle

    def do_GET(self) -> None:
        path, _, version = self.path.partition("?")
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)  # DNS rebinding: a page of another host
        elif path == "/":
            self.server.newer_values("")  # a problem is reported when the page asks for /data
            self._send(html(self.server.values), "text/html; charset=utf-8")
        elif path == "/data":
            self._send(as_json(self.server.newer_values(version)), "application/json")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, text: str, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Prints nothing: the base class would log each request to stderr."""


def command(given: argparse.Namespace) -> int:
    """Serves the page of runs until Ctrl-C; returns the exit status."""
    try:
        server = PageServer(given.port, given.files)
    except (OSError, OverflowError) as error:
        raise ValueError(f"port {given.port}: {error} (give another --port)") from None
    with server, suppress(KeyboardInterrupt):
        port = server.server_port
        elsewhere = f"(from elsewhere: ssh -L {port}:{HOST}:{port} to here)"
        print(f"http://{HOST}:{port}/  {elsewhere}", flush=True)
        server.serve_forever()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments)
