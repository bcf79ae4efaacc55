"""The network of scripts/cluster: namespaces, links with a capped rate, and what runs in them."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

SWITCH = "nnmpi0"  # its namespace, where mpirun runs too; the hosts are nnmpi1, nnmpi2, ...
OURS = re.compile(r"nnmpi\d+")
NETNS = Path("/var/run/netns")  # where ip keeps them
UNITS = {"": 1, "k": 10**3, "ki": 2**10, "m": 10**6, "mi": 2**20, "g": 10**9, "gi": 2**30}
UNITS |= {"t": 10**12, "ti": 2**40}
# The bucket of tbf holds 8 ms. The kernel may refill it as seldom as every 4 ms, so that
# a smaller one throttles; with a larger one short messages escape the cap.
BURST = 0.008  # seconds
LEAST_BURST = 4000  # bytes: two full frames and a bit
PATIENCE = 3.0  # seconds that processes get to end by themselves
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ClusterError(Exception):
    """Ends the script with one line and a status: 2 where it cannot begin."""

    def __init__(self, words: str, status: int = 1) -> None:
        super().__init__(words)
        self.status = status


class Interrupted(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number


class Cluster(NamedTuple):
    """What `up` was asked for; it notes this on the switch when all is done."""

    hosts: int
    rate: str
    delay: str | None

    def __str__(self) -> str:
        delay = f", {self.delay} of added delay" if self.delay else ""
        return f"{self.hosts} hosts, {self.rate} each way{delay}"


def interrupt(number: int, frame: object) -> NoReturn:
    raise Interrupted(number)


def heed(signals: bool) -> None:
    """Whether signals interrupt; not while something is being removed."""
    for number in SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # nohup's wish
        signal.signal(number, interrupt if signals else signal.SIG_IGN)


def call(*command: str) -> str:
    told = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if told.returncode:
        said = (told.stderr.strip() or f"status {told.returncode}").splitlines()[0]
        raise ClusterError(f"`{shlex.join(command)}` failed: {said}")
    return told.stdout


def namespaces() -> list[str]:
    names = (path.name for path in NETNS.glob("nnmpi*"))
    return sorted((n for n in names if OURS.fullmatch(n)), key=lambda n: int(n[5:]))


def processes(run: str | None = None) -> list[int]:
    """The processes in our namespaces, or only those that a run started.

    A run goes by its mark in the environment, so that other runs and a shell that
    somebody opened on a host are left alone.
    """
    places, found = [], []
    for name in namespaces():
        with suppress(OSError):  # somebody removed it
            places.append((NETNS / name).stat())
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            inside = (folder / "ns/net").stat()
            if not any(os.path.samestat(inside, place) for place in places):
                continue
            if run is None or run.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end(run: str | None = None) -> None:
    """Waits for these processes to end, and ends those that do not."""
    deadline = time.monotonic() + PATIENCE
    while (left := processes(run)) and time.monotonic() < deadline + PATIENCE:
        if time.monotonic() > deadline:
            send(signal.SIGKILL, left)
        time.sleep(0.02)


def send(number: int, to: list[int]) -> None:
    for process in to:
        with suppress(ProcessLookupError):
            os.kill(process, number)


@contextmanager
def alone() -> Iterator[None]:
    """One up or down at a time; the name of this socket goes when its process does."""
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind("\0nnmpi-cluster")
        except OSError:
            words = "another scripts/cluster up or down is at work: wait until it is done"
            raise ClusterError(words) from None
        yield


def state() -> Cluster | None:
    """The cluster that is up; None where there is none, or only a part of one."""
    try:
        (link,) = json.loads(call("ip", "-n", SWITCH, "-json", "link", "show", "eth0"))
        return Cluster(**json.loads(link["ifalias"]))
    except (ClusterError, KeyError, ValueError):
        return None


def up(cluster: Cluster) -> None:
    bits(cluster.rate)
    if cluster.delay and not re.fullmatch(r"\d+(\.\d+)?(s|ms|us)", cluster.delay):
        raise ClusterError(f"unusable delay {cluster.delay!r}: give one such as 1ms or 500us", 2)
    with alone():
        if namespaces():
            raise ClusterError("a cluster, or a part of one, is up: scripts/cluster down first")
        try:
            build(cluster)
        except BaseException as error:
            heed(signals=False)
            remove()
            if isinstance(error, ClusterError):
                raise ClusterError(f"{error}; nothing is left of it", error.status) from None
            raise


def build(cluster: Cluster) -> None:
    """The switch needs an address for mpirun only; there is nowhere that it could route."""
    call("ip", "netns", "add", SWITCH)
    inside = ("ip", "-n", SWITCH)
    call(*inside, "link", "set", "lo", "up")
    call(*inside, "link", "add", "eth0", "type", "bridge")
    call(*inside, "address", "add", "10.99.0.254/24", "dev", "eth0")
    call(*inside, "link", "set", "eth0", "up")
    for i in range(1, cluster.hosts + 1):
        host, port = f"nnmpi{i}", f"port{i}"
        call("ip", "netns", "add", host)
        veth = ("type", "veth", "peer", "name", "eth0", "netns", host)
        call(*inside, "link", "add", port, *veth)
        call("ip", "-n", host, "address", "add", f"10.99.0.{i}/24", "dev", "eth0")
        shape(host, "eth0", cluster.rate, cluster.delay)
        shape(SWITCH, port, cluster.rate, None)
        call("ip", "-n", host, "link", "set", "lo", "up")
        call("ip", "-n", host, "link", "set", "eth0", "up")
        call(*inside, "link", "set", port, "master", "eth0", "up")
    note = json.dumps(cluster._asdict())
    call(*inside, "link", "set", "eth0", "alias", note)


def shape(namespace: str, link: str, rate: str, delay: str | None) -> None:
    where = ["root", "handle", "1:"]
    add = ("tc", "-n", namespace, "qdisc", "add", "dev", link)
    if delay is not None:
        try:
            call(*add, *where, "netem", "delay", delay, "limit", "100000")
        except ClusterError as failure:
            words = f"--delay needs a kernel with netem: {failure}; leave --delay out"
            raise ClusterError(words, 2) from None
        where = ["parent", "1:1"]
    burst = max(LEAST_BURST, round(bits(rate) / 8 * BURST))
    call(*add, *where, "tbf", "rate", rate, "burst", str(burst), "latency", "100ms")


def bits(rate: str) -> float:
    """Bits a second. tc's bps are bytes, and a bare number is bits."""
    match = re.fullmatch(r"(\d+\.?\d*)(?:([kmgt]i?)?(bit|bps))?", rate.lower())
    if not match or not float(match[1]):
        raise ClusterError(f"unusable rate {rate!r}: give one such as 100mbit or 1gbit", 2)
    return float(match[1]) * UNITS[match[2] or ""] * (8 if match[3] == "bps" else 1)


def remove() -> None:
    """Links go with their namespaces, and namespaces with their last process."""
    send(signal.SIGTERM, processes())
    end()
    failures = []
    for name in namespaces():
        try:
            call("ip", "netns", "delete", name)
        except ClusterError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def down() -> None:
    with alone():
        heed(signals=False)
        remove()
