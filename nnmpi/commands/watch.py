"""The command `python -m nnmpi.watch`: serves the page of runs, and follows their logs.

It listens on this host alone: `ssh -L PORT:127.0.0.1:PORT HOST` brings the page elsewhere. Files
may be there later. Exit status: 0 stopped by Ctrl-C, 1 failed, 2 unusable arguments.
"""

import argparse
import gzip
import sys
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from nnmpi import cli
from nnmpi.commands.report import add_files
from nnmpi.quoting import shown
from nnmpi.run.page.page import as_json, html
from nnmpi.run.page.sources import GrowingFile, as_values, logs_of

HOST, PORT = "127.0.0.1", 8321
NAMES = (HOST, "localhost")


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    p = cli.Parser(
        prog=cli.called("nnmpi.watch"),
        description=f"Serve the page of runs on {HOST}, and follow their logs while they grow.",
        allow_abbrev=False,
    )
    add_files(p)
    text = f"(default {PORT}; 0: any that is free)"
    p.add_argument("--port", type=int, default=PORT, metavar="N", help=text)
    return p


class Watched(HTTPServer):
    """The files, and the values of the page, whose version counts their changes."""

    def __init__(self, port: int, files: Sequence[str]) -> None:
        self.sources = [GrowingFile(file) for file in files]
        self.values = as_values((), version=0)
        self.problem = ""
        super().__init__((HOST, port), Answer)

    def follow(self) -> None:
        """Reads what is new."""
        try:
            changed = [source.read() for source in self.sources if source.path.exists()]
            if any(changed):
                self.values = as_values(logs_of(self.sources), self.values["version"] + 1)
            self.problem = ""
        except ValueError as error:
            self.problem = shown(error)


class Answer(BaseHTTPRequestHandler):
    """The page at /, and its values at /data, of which a browser says which version it has."""

    server: Watched

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in NAMES:
            self.send_error(HTTPStatus.FORBIDDEN)  # a page of others, under a name of theirs
            return
        self.server.follow()
        path, _, version = self.path.partition("?")
        if path == "/":
            self._send(html(self.server.values), "text/html; charset=utf-8")
        elif path != "/data":
            self.send_error(HTTPStatus.NOT_FOUND)
        elif self.server.problem:
            self._send(as_json({"problem": self.server.problem}), "application/json")
        elif version == f"{self.server.values['version']}":
            self._send("", "application/json", HTTPStatus.NO_CONTENT)
        else:
            self._send(as_json(self.server.values), "application/json")

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = gzip.compress(text.encode(), 1) if text else b""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        if body:
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", f"{len(body)}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are not told."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""

    def command() -> int:
        given = parser().parse_args(arguments)
        if not 0 <= given.port < 1 << 16:
            raise ValueError(f"port {given.port} must be from 0 to 65535")
        try:
            server = Watched(given.port, given.files)
        except OSError as error:
            raise ValueError(f"port {given.port}: {error.strerror}; give another --port") from None
        with server, suppress(KeyboardInterrupt):
            port = server.server_port
            print(f"http://{HOST}:{port}/  (from elsewhere: ssh -L {port}:{HOST}:{port} to here)")
            sys.stdout.flush()
            server.serve_forever()
        return 0

    return cli.run("nnmpi.watch", command)


if __name__ == "__main__":
    raise SystemExit(main())
