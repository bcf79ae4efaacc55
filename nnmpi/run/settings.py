"""Settings: what a callback may change between two steps, alike on all ranks.

These are the options of the optimizer's groups, such as the learning rate, and `requires_grad` of
parameters. Ranks compare them when they have changed on one of them.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.optim import Optimizer
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.strategy import AgreedError


class Changes(NamedTuple):
    """Settings that are others than at the start.

    options  of each group of the optimizer
    frozen   the paths of parameters that were trained at the start
    """

    options: tuple[dict[str, Any], ...] = ()
    frozen: tuple[str, ...] = ()


class Settings:
    """The settings of this rank, and what they were when ranks compared them last."""

    def __init__(self, part: ModelPart, optimizer: Optimizer, changes: Changes) -> None:
        self._parameters, self._held = dict(part.model.named_parameters()), part.held
        self._optimizer = optimizer
        self._trained, self._options = self._now()
        for path in changes.frozen:
            self._parameters[path].requires_grad = False
        for group, options in zip(optimizer.param_groups, changes.options, strict=False):
            group.update(options)
        self._seen = self._now()

    def _now(self) -> tuple[list[bool], list[dict[str, Any]]]:
        trained = [p.requires_grad for p in self._parameters.values()]
        return trained, [{**group, "params": ()} for group in self._optimizer.param_groups]

    @property
    def have_changed(self) -> bool:
        """Whether they are others than those that ranks have compared."""
        return self._now() != self._seen

    @property
    def changes(self) -> Changes:
        """What is another than at the start."""
        trained, options = self._now()
        both = zip(self._parameters, self._trained, trained, strict=True)
        return Changes(
            tuple(
                {name: value for name, value in now.items() if value != before[name]}
                for now, before in zip(options, self._options, strict=True)
            ),
            tuple(path for path, before, now in both if before and not now),
        )

    def compare(self, comm: Comm) -> None:
        """Raises AgreedError, on all ranks, if ranks differ. Every rank calls it."""
        self._seen = trained, options = self._now()
        values: dict[str, Any] = {
            f"requires_grad of {path}": is_trained
            for path, is_trained in zip(self._parameters, trained, strict=True)
            if self._held(path)
        }
        for i, group in enumerate(options):
            values |= {f"{name} of group {i} of the optimizer": group[name] for name in group}
        ranks: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, found in enumerate(gather_objects(comm, values)):
            for what, value in found.items():
                ranks[what][repr(value)].append(rank)
        for what, sides in ranks.items():
            if len(sides) > 1:
                differing = " and ".join(map(_listed, sides.values()))
                raise AgreedError(f"ranks {differing} differ in {what}: set it alike on all")


def _listed(ranks: Iterable[int]) -> str:
    """The numbers of ranks, of many the first ones."""
    first, *rest = ranks
    return f"{first}" if not rest else f"{first}, {rest[0]}{', ...' if rest[1:] else ''}"
