"""The bytes that each unit of a model keeps for its backward pass on a rank, by formula.

A border between units is crossed by one tensor. If a vjp reads it, it counts with the unit behind
the border: backward passes need it there first. If none does, nobody keeps it.
"""

from collections.abc import Sequence

from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.memory import besides_edges, edges_read, kept_by_loss, run_together
from nnmpi.parallel.arrangement.partition import Unit


def joined(graph: Graph, units: Sequence[Unit]) -> list[list[Unit]]:
    """Units that stay together: between others one tensor crosses, and no buffer is in both."""
    buffers = [{v for v in u.variables if not graph.variables[v].is_parameter} for u in units]
    last = {v: i for i, own in enumerate(buffers) for v in own}
    found, together = list[list[Unit]](), 0  # up to this unit a buffer is used again
    for i, unit in enumerate(units):
        if found and (i <= together or len(graph.crossing(unit.nodes.start)) != 1):
            found[-1].append(unit)
        else:
            found.append([unit])
        together = max([together, *(last[v] for v in buffers[i])])
    return found


def nodes_of(units: Sequence[Unit]) -> range:
    """The nodes of units that stay together."""
    return range(units[0].nodes.start, units[-1].nodes.stop)


def kept_by_units(
    a: Arrangement, groups: Sequence[range], samples: int, rank: int
) -> list[tuple[float, float]]:
    """(all that a unit keeps, of it its input) for the nodes of each; the samples count nowhere."""
    graph, at = a.graph, a.mesh.coordinates(rank)
    enters = [{graph.edges[e].memory for e in graph.crossing(nodes.start)} for nodes in groups]
    together = [run_together(a, nodes) for nodes in groups]
    read = {graph.edges[e].memory for kept in together for k in kept for e in edges_read(a, k, at)}
    read |= {graph.edges[e].memory for e in graph.loss.edges}
    owner = {
        graph.edges[e].memory: i
        for i, nodes in enumerate(groups)
        for k in nodes
        for e in graph.nodes[k].outputs
    }
    owner |= {memory: i for i, memories in enumerate(enters) for memory in memories}
    for e in graph.inputs:
        owner.pop(graph.edges[e].memory, None)
    found = list[tuple[float, float]]()
    for i, kept in enumerate(together):
        own: float = sum(a.local_bytes(e, samples, at) for e in read if owner.get(e) == i)
        own += sum(besides_edges(a, k, samples, at) for k in kept)
        if i == len(groups) - 1:
            own += kept_by_loss(a, samples, at)
        whole = sum(a.local_bytes(e, samples, at) for e in enters[i] & owner.keys())
        found.append((max(own, whole), float(whole)))
    return found
