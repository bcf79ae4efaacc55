"""Measures the speed of a machine, and of a model's units on it, until a deadline.

    links between nodes      by the first ranks of all nodes
    the first node, twice    links, units of the model, update, overheads of a step; then sums, and
                             units that ranks along tp divide

All of it is measured twice, at some distance in time, and averaged. The times of sums and updates
vary most beside other programs: the first measurement takes their lower quartile, the second one
the upper quartile. Figures for which there was no time are those of a typical machine; the Machine
lists them as `missing`."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial

import numpy as np

from nnmpi.addons.planning.machine import TYPICAL, Machine, averaged, codec_of
from nnmpi.addons.planning.run import measurements as m
from nnmpi.addons.planning.run import unit_measurements
from nnmpi.addons.planning.run.deadline import Deadline, OutOfTimeError
from nnmpi.addons.planning.run.network_fit import fitted_network
from nnmpi.addons.simulator.codecs import CODECS
from nnmpi.collectives.price import Link
from nnmpi.comm import Comm, comm_self
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.run.setup.setup import Setup

WITHIN = 120.0
"""The default time limit for measuring, in seconds."""

POLL_SECONDS = 0.01
"""Seconds between two polls of a rank that waits for the first node."""

QUARTILES = 0.25, 0.75
"""The quantile that counts of times, in the first and second measurement."""


def measure(setup: Setup, comm: Comm, deadline: Deadline) -> Machine:
    """Measures the machine on which the ranks of a Comm run, with the units of the run's model,
    until the deadline. Every rank calls it. Nodes are assumed to be equal; the links between them
    are those of a typical machine if there is only one."""
    here, load, missing = comm.node(), os.getloadavg()[0], dict[str, str]()
    far: Link | None = TYPICAL.far
    if len(here) < comm.size:
        far = _links(comm, here[0], deadline)
        missing |= {} if far else {"far": "links between nodes"}
    node = comm.split(here[0])
    assert node is not None

    def own() -> Machine | None:
        try:
            return all_or_none(node, lambda: _twice(setup, node, deadline) if not here[0] else None)
        finally:
            node.free()
            _wait(comm)

    machine = gather_objects(comm, all_or_none(comm, own))[0]
    assert machine is not None
    missing |= machine.missing
    return machine._replace(far=far or TYPICAL.far, load=load, missing=missing)


def _links(comm: Comm, leader: int, deadline: Deadline) -> Link | None:
    """Returns the measured speed of the link between nodes, on all ranks; None if the deadline came
    first. `leader` is the first rank of this rank's node; only these first ranks measure."""
    first, link = comm.split(0 if comm.rank == leader else None), None
    if first is not None:
        with suppress(OutOfTimeError):  # of these ranks: the others do not know yet
            link = fitted_network(first, deadline).link
        first.free()
    return gather_objects(comm, link)[0]


def _wait(comm: Comm) -> None:
    """Returns when all ranks have called it. Until then it sleeps most of the time: ranks that
    still measure may use the same cores, if nodes are containers on one computer."""
    met = comm.start(np.zeros(1), "doubling")
    while not met.poll():
        comm.system.sleep(POLL_SECONDS)


def _twice(setup: Setup, comm: Comm, deadline: Deadline) -> Machine:
    """Returns the average of two measurements of a node; figures measured only once are kept."""
    (first, missing), (second, later) = (
        _measure_node(setup, m.Node(comm, deadline, quantile)) for quantile in QUARTILES
    )
    if once := [words for name, words in later.items() if name not in missing]:
        missing["spread"] = f"a second time for {', '.join(once) if second else 'all'}"
    typical = TYPICAL._replace(
        cpu=m.processor(),
        ranks=comm.size,
        updates={setup.config.optimizer: max(TYPICAL.updates.values())},
    )
    return typical._replace(**averaged(first, second), missing=missing)


def _measure_node(setup: Setup, node: m.Node) -> tuple[m.Fields, dict[str, str]]:
    """Returns the measured fields of a Machine and, by name, what there was no time for."""
    fields, missing = m.Fields(), dict[str, str]()
    for name, words, measurement in _measurements(setup, node):
        try:
            node.check()
            measurement(fields)
        except OutOfTimeError as error:
            missing[name] = str(error) or words
    return fields, missing


def _measurements(
    setup: Setup, node: m.Node
) -> Iterator[tuple[str, str, Callable[[m.Fields], None]]]:
    """Yields (name, description, function) of measurements, in order."""
    config, tp_sizes = setup.config, m.group_sizes(node.comm)
    sizes, units = m.micro_batches(m.samples(setup)), f"units of {config.model}"
    yield "near", "messages within a node", partial(m.messages, node)
    with closing(m.session_of(setup, comm_self())) as session:
        yield "models", units, partial(unit_measurements.whole_units, node, session, sizes)
        yield "updates", f"the update by {config.optimizer}", partial(m.update, node, session)
        yield "step", "the rest of a step", partial(m.overheads, node, session)
        yield "moving", "reading and writing of arrays", partial(m.moving, node, session)
        option, codec = codec_of(config)
        if codec:
            call = partial(CODECS.needed(option).codec_call, codec)
            yield "coding", f"--{option} {codec}", partial(m.coding, node, codec, call, session)
    for p in tp_sizes:
        yield f"sums {p}", f"sums of {p} ranks", partial(m.sums, node, p)
    for p in tp_sizes:
        of_parts = partial(unit_measurements.tp_units, node, setup, p, sizes)
        yield f"models {p}", f"{units} with --tp {p}", of_parts
