"""Downloads from a local server: complete and verified, or nothing and a one-line error."""

import gzip
import socket
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest
from helpers.datafiles import refused

from nnmpi import data
from nnmpi.addons.images import mnist
from nnmpi.addons.images.download import MIRRORS, DownloadSource, fetch

CONTENT = b"some bytes " * 300_000


class Answer(NamedTuple):
    """The response for a path; `length` is the Content-Length if it differs from the body's."""

    body: bytes
    status: int = 200
    length: int | None = None


class Server(NamedTuple):
    """A running server: its address, its responses by path, and the paths requested so far."""

    base: str
    answers: dict[str, Answer]
    asked: list[str]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    answers: dict[str, Answer] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer = answers.get(self.path, Answer(b"no such file", 404))
            self.send_response(answer.status)
            self.send_header("Content-Length", str(answer.length or len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Server(f"http://127.0.0.1:{httpd.server_port}/", answers, asked)
        httpd.shutdown()
        thread.join()


def fetch_from(*bases: str, folder: Path) -> None:
    """Fetches a.bin from the first of these that has it."""
    MIRRORS["test"] = DownloadSource(bases, f"a.bin {len(CONTENT)} {sha256(CONTENT).hexdigest()}")
    try:
        fetch("test", folder)
    finally:
        del MIRRORS["test"]


def test_a_good_file_is_kept_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    server.answers["/a.bin"] = Answer(CONTENT)
    folder = tmp_path / "deep" / "down"
    for _ in range(2):
        fetch_from(server.base, folder=folder)
    assert server.asked == ["/a.bin"]
    assert [path.name for path in folder.iterdir()] == ["a.bin"]
    assert (folder / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, ("404", "Not Found")),
        (Answer(b"", 503), ("503",)),
        (
            Answer(CONTENT[:-1] + b"!"),
            ("3,300,000 bytes with SHA-256", sha256(CONTENT).hexdigest()),
        ),
        (Answer(CONTENT[:1000]), ("got 1,000 bytes",)),
        (Answer(CONTENT[:1000], length=len(CONTENT)), ("a.bin: ",)),
        (Answer(CONTENT + b"more"), ("it has more than the 3,300,000 bytes",)),
    ],
    ids=["404", "503", "wrong sum", "short", "cut off", "long"],
)
def test_a_bad_response_leaves_no_file(
    answer: Answer | None, words: tuple[str, ...], server: Server, tmp_path: Path
) -> None:
    if answer is not None:
        server.answers["/a.bin"] = answer
    with refused(f"{server.base}a.bin", "check the network", "--data-dir", *words):
        fetch_from(server.base, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_second_url_is_tried(server: Server, tmp_path: Path) -> None:
    server.answers["/good/a.bin"] = Answer(CONTENT)
    server.answers["/bad/a.bin"] = Answer(b"damaged")
    fetch_from(f"{server.base}bad/", f"{server.base}good/", folder=tmp_path)
    assert server.asked == ["/bad/a.bin", "/good/a.bin"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.usefixtures("server")
def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with refused(f"{base}a.bin", "refused", "check the network"):
            fetch_from(base, folder=tmp_path)
    with refused("could not download", "unknown url type"):
        fetch_from("nothing:", folder=tmp_path)


def test_load_downloads_what_is_missing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = []
    for stem in (*mnist.TRAIN, *mnist.TEST):
        sides = (3, 2, 2) if "images" in stem else (3,)
        header = bytes((0, 0, 8, len(sides))) + b"".join(n.to_bytes(4, "big") for n in sides)
        packed = gzip.compress(header + bytes(12 if "images" in stem else 3))
        server.answers[f"/{stem}.gz"] = Answer(packed)
        sums.append(f"{stem}.gz {len(packed)} {sha256(packed).hexdigest()}")
    monkeypatch.setitem(MIRRORS, "mnist", DownloadSource((server.base,), "\n".join(sums)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        dataset = data.load("mnist", download=True)
        assert dataset.train.x.shape == (3, 1, 2, 2)
        assert dataset.note == ""
    assert len(server.asked) == 4
    assert len(list((tmp_path / "nnmpi" / "mnist").iterdir())) == 4
    assert len(data.load("mnist").train.y) == 3  # from the cache
