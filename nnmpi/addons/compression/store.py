"""CompressedStore: the memory of parameters for --compress. Each rank has all parameters, and
gradients are compressed before they are summed.

    gradient + residual ─► codec ─┬─► messages ─► sum, in place of the gradient
                                  └─► values that were not sent: the next residual

Residuals are optimizer state with other values on each replica. They are written only when a step
is made, so a step that is skipped, or undone because a rank was lost, does not change them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nnmpi.addons.compression import on_paper, proof
from nnmpi.addons.compression.codecs import CodecInput, added_up, matrix_of
from nnmpi.addons.compression.exchange import Exchange, Phases
from nnmpi.addons.compression.proof import check
from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.io.output.messages import EventFields, EventTexts
from nnmpi.nn.graph import Graph
from nnmpi.optim import Optimizer
from nnmpi.optim.replica_state import RESIDUAL, ReplicaState
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.stores.local import LocalStore, StoreSpec
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.parallel.wire import Transfer, wire_of
from nnmpi.schedules.op import Kind

FACTOR = "compress_factor"
"""The name of the optimizer state with the factors of the last step."""


class CompressedStore(LocalStore):
    """A store that sums gradients over ranks with a codec, but those of tied parameters
    uncompressed."""

    def __init__(self, spec: StoreSpec) -> None:
        self._codec, self._number = proof.find(spec.arrangement.config.compress or "")
        super().__init__(spec)
        self._wire = wire_of(self.dp, self.on)
        self._kept: dict[int, CodecInput] = {}  # by bucket, with the next residuals

    def keep_state(self, optimizer: Optimizer) -> None:
        self._optimizer, at = optimizer, 0
        self._places: dict[int, slice] = {}  # of each parameter in the state
        for p in optimizer.parameters:
            start, end = self.spans[p.index]
            self._places[p.index] = slice(at, at + p.size)
            at += end - start
        optimizer.add_state(RESIDUAL)
        if self._codec.has_factors:
            # every place: another layout finds random numbers, too, where it looks for factors
            factors = optimizer.add_state(FACTOR)
            for p in optimizer.parameters:
                key = keyed.key(FACTOR, p.place.path)
                index = self.on.xp.ones(p.size, "uint32").cumsum(dtype="uint32")
                factors[self._places[p.index]] = keyed.normal(key, index, index[:1])
        optimizer.replica_state = ReplicaState(self.dp.rank, self.dp.size, (RESIDUAL,))

    def start(self, b: int) -> Transfer | None:
        if self.buckets.all[b].comm is not self._wire:
            return super().start(b)
        return Exchange(self._phases(b)) if self._members(b) else None

    def keep_residuals(self) -> None:
        state = self._optimizer.state
        for b, bucket in self._kept.items():
            for i, part in zip(self._members(b), bucket.parts, strict=True):
                state[RESIDUAL][self._places[i]] = bucket.row[part]
                if bucket.factors is not None:
                    state[FACTOR][self._places[i]] = bucket.factors[part]
        self._kept.clear()

    def slot_bytes(self) -> int:
        """Returns the bytes of next residuals and factors, held until the update."""
        n = sum(p.size for p in self.parameters) * (1 + self._codec.has_factors)
        return n * int(self.updated_dtype.itemsize)

    def _members(self, b: int) -> list[int]:
        return [i for i in self.buckets.members[b] if self.parameters[i].size]

    def _phases(self, b: int) -> Phases:
        members = self._members(b)
        gradients = [*map(self._gradient, members)]
        bucket = CodecInput(
            self._state(RESIDUAL, members),
            [matrix_of(self.parameters[i]) for i in members],
            [self.parameters[i].padded_size for i in members],
            self.dtype,
            self._wire,
            self.buckets.algorithm,
            self._state(FACTOR, members) if self._codec.has_factors else None,
        )
        total = yield from added_up(self._codec, self._number, bucket, gradients)
        self._kept[b] = bucket
        return total

    def _state(self, name: str, members: Sequence[int]) -> Array:
        """Returns a copy of residuals or factors of `members`, one after the other."""
        state = self._optimizer.state[name]
        return self.on.xp.concatenate([state[self._places[i]] for i in members])

    def _gradient(self, i: int) -> Array:
        start = self.spans[i][0]
        return self.flat_grad[start : start + self.parameters[i].size]


def check_terms(config: Config, graph: Graph, sharding: Sharding) -> None:
    """Raises ValueError if each rank along tp has only a term of a parameter's gradient, as with
    --sequence-parallel: terms would have to be added up before they are compressed."""
    if sharding.partial_gradients:
        path = graph.variables[min(sharding.partial_gradients)].path
        raise ValueError(
            f"compress {config.compress}: each of the {config.tp} ranks along tp has a term of the "
            f"gradient of {path}, and what they keep would differ: leave out --sequence-parallel, "
            "and terms of --layout that cut samples, positions or rows, or --compress"
        )


def start_fields(a: Arrangement, batches: int) -> dict[str, Any]:
    """Returns the field about compression for the start event; empty if no gradients are sent."""
    return {"compress": a.config.compress} if a.store.packs else {}


def phrases(event: dict[str, Any]) -> Iterator[str]:
    """Yields the phrase for the first lines of a run about its compression of gradients."""
    yield f"gradients compressed by {event['compress']}"


TEXTS = EventTexts(ranks=phrases)


FIELDS = EventFields(start=start_fields)


KIND = StoreKind(
    "compressed",
    CompressedStore,
    scalars=False,
    packs=True,
    exchanges=dict.fromkeys((Kind.SUM, Kind.FINISH), on_paper.exchanges),
    bytes_copied=on_paper.bytes_copied,
)


CHECKS = Checks(ranks=check, graph=check_terms)
