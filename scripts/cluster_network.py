"""The network of scripts/cluster: namespaces, links of limited rate, and their processes."""

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

SWITCH = "nnmpi0"  # the namespace of the switch and of mpirun; the hosts are nnmpi1, nnmpi2, ...
OURS = re.compile(r"nnmpi\d+")
NETNS = Path("/var/run/netns")  # of `ip netns`
UNITS = {"": 1, "k": 10**3, "ki": 2**10, "m": 10**6, "mi": 2**20, "g": 10**9, "gi": 2**30}
UNITS |= {"t": 10**12, "ti": 2**40}
# Seconds of traffic that the bucket of tbf holds. A larger bucket lets short messages exceed the
# rate after a pause; a smaller one throttles, since a packet waits for a timer. Without timers of
# high resolution, the kernel refills it at its ticks only.
BURST = max(0.0005, 2 * time.clock_getres(time.CLOCK_MONOTONIC))
LEAST_BURST = 4000  # bytes: two full frames and a bit
PATIENCE = 3.0  # seconds for processes to end by themselves
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ClusterError(Exception):
    """Ends the script with a one-line message and a status: 2 if it could not start."""

    def __init__(self, words: str, status: int = 1) -> None:
        super().__init__(words)
        self.status = status


class Interrupted(BaseException):
    """A signal asked the script to end."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number


class Cluster(NamedTuple):
    """The options of `up`; they are stored on the switch once the cluster is complete."""

    hosts: int
    rate: str
    delay: str | None

    def __str__(self) -> str:
        delay = f", {self.delay} of added delay" if self.delay else ""
        return f"{self.hosts} hosts, {self.rate} each way{delay}"


def interrupt(number: int, frame: object) -> NoReturn:
    raise Interrupted(number)


def handle_signals(interrupting: bool) -> None:
    """Lets signals interrupt the script, or ignores them during clean-up."""
    for number in SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # set by nohup
        signal.signal(number, interrupt if interrupting else signal.SIG_IGN)


def call(*command: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip() or f"status {done.returncode}").splitlines()[0]
        raise ClusterError(f"`{shlex.join(command)}` failed: {reason}")
    return done.stdout


def namespaces() -> list[str]:
    names = (path.name for path in NETNS.glob("nnmpi*"))
    return sorted((n for n in names if OURS.fullmatch(n)), key=lambda n: int(n[5:]))


def processes(run: str | None = None) -> list[int]:
    """The processes in our namespaces, or only those of a run.

    A run is identified by a variable in the environment, so other runs, and shells that a
    user opened on a host, are not affected.
    """
    places, found = [], []
    for name in namespaces():
        with suppress(OSError):  # removed meanwhile
            places.append((NETNS / name).stat())
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            inside = (folder / "ns/net").stat()
            if not any(os.path.samestat(inside, place) for place in places):
                continue
            if run is None or run.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end(run: str | None = None) -> None:
    """Waits for these processes to end, and kills those that do not."""
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
def exclusive() -> Iterator[None]:
    """A lock for `up` and `down`: a socket name, which is released when its process ends."""
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind("\0nnmpi-cluster")
        except OSError:
            words = "another scripts/cluster up or down is running: wait until it has finished"
            raise ClusterError(words) from None
        yield


def state() -> Cluster | None:
    """The cluster that is up; None if there is none or it is incomplete."""
    try:
        (link,) = json.loads(call("ip", "-n", SWITCH, "-json", "link", "show", "eth0"))
        return Cluster(**json.loads(link["ifalias"]))
    except (ClusterError, KeyError, ValueError):
        return None


def up(cluster: Cluster) -> None:
    bits(cluster.rate)
    if cluster.delay and not re.fullmatch(r"\d+(\.\d+)?(s|ms|us)", cluster.delay):
        raise ClusterError(f"unusable delay {cluster.delay!r}: use a form like 1ms or 500us", 2)
    with exclusive():
        if namespaces():
            raise ClusterError("a cluster, or part of one, is up: scripts/cluster down first")
        try:
            build(cluster)
        except BaseException as error:
            handle_signals(False)
            remove()
            if isinstance(error, ClusterError):
                raise ClusterError(f"{error}; everything was removed again", error.status) from None
            raise


def build(cluster: Cluster) -> None:
    """Creates the switch, hosts and links; the switch has an address for mpirun only."""
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
    """Bits per second; in the units of tc, bps are bytes per second, and a plain number is bits."""
    match = re.fullmatch(r"(\d+\.?\d*)(?:([kmgt]i?)?(bit|bps))?", rate.lower())
    if not match or not float(match[1]):
        raise ClusterError(f"unusable rate {rate!r}: use a form like 100mbit or 1gbit", 2)
    return float(match[1]) * UNITS[match[2] or ""] * (8 if match[3] == "bps" else 1)


def remove() -> None:
    """Ends the processes and deletes the namespaces, and their links with them."""
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
    with exclusive():
        handle_signals(False)
        remove()
