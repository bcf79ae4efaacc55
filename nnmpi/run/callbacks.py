"""Callbacks, which run a user's code between steps and epochs; and settings that they change.

    on_log(trainer, event)       after each step that the log reports (--log-every)
    on_step(trainer, event)      after each step, once its loss is known
    on_evaluate(trainer, event)  after each evaluation: of an epoch, or by --evaluate-every
    on_epoch(trainer, event)     after each epoch and its evaluation
    on_end(trainer, event)       after the run
    state_dict()                 returns its state, for a checkpoint: numbers, texts, arrays, lists,
                                 dicts
    load_state_dict(state)       restores that state in a run that is resumed

A callback is an object with at least one of the first five methods. Every rank calls it with an
event of the same values, except for times and rates, so that all ranks decide alike. An exception
in it ends the run on all ranks. A checkpoint stores the state of rank 0's callback, and all
ranks load it.

Settings are the options of the optimizer's groups, such as the learning rate, and `requires_grad`
of parameters. Callbacks must change them in the same way on all ranks. Ranks compare them when an
epoch begins and after callbacks within it; with the same small message they agree on a stop. With
parameter servers and `pipedream` ranks take steps at different times: then change settings, stop,
evaluate, save and take snapshots in on_epoch only.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from nnmpi.comm import Comm
from nnmpi.io.checkpoints.snapshot import Changes
from nnmpi.optim import Optimizer
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.strategy import AgreedError

OCCASIONS = ("on_log", "on_step", "on_evaluate", "on_epoch", "on_end")


def check_callbacks(objects: Iterable[object]) -> list[object]:
    """Returns the objects as a list; raises ValueError for one without a callback's methods."""
    if not isinstance(objects, Iterable):
        raise ValueError(f"callbacks is a {type(objects).__name__}: give a list of callbacks")
    callbacks = list(objects)
    for callback in callbacks:
        if isinstance(callback, type) or not any(hasattr(callback, name) for name in OCCASIONS):
            raise ValueError(
                f"callback {callback!r:.60} is not an object with one of the methods "
                f"{', '.join(OCCASIONS)}, each of which takes (trainer, event)"
            )
    return callbacks


def states_of(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    return [
        (type(callback).__name__, callback.state_dict())
        for callback in callbacks
        if _has_state(callback)
    ]


def load_states(callbacks: Sequence[Any], states: Sequence[tuple[str, Any]]) -> None:
    """Restores the states of callbacks, which must have the same class names."""
    with_state = [callback for callback in callbacks if _has_state(callback)]
    here, saved = [type(callback).__name__ for callback in with_state], [name for name, _ in states]
    if here != saved:
        raise ValueError(
            f"the checkpoint has states of the callbacks {', '.join(saved) or 'none'}, and this "
            f"Trainer has {', '.join(here) or 'none'} with a state_dict: give it the same callbacks"
        )
    for callback, (_, state) in zip(with_state, states, strict=True):
        callback.load_state_dict(state)


def _has_state(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


# ---- settings


PLAIN = (bool, int, float, str, tuple, type(None))
SCHEDULE = "what the schedule returns"


def plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a group that ranks can compare: without `params`, as numbers."""
    options = {name: _of_python(value) for name, value in group.items() if name != "params"}
    return {name: value for name, value in options.items() if isinstance(value, PLAIN)}


def _of_python(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_of_python, value))
    is_number = isinstance(value, np.generic | np.ndarray) and value.ndim == 0
    return value.item() if is_number else value


class Settings:
    """The settings on this rank that callbacks may change, and which of them differ from their
    initial values, so that a snapshot can store the changes."""

    def __init__(self, part: ModelPart, optimizer: Optimizer, changes: Changes) -> None:
        self._parameters, self._held = dict(part.model.named_parameters()), part.held
        self._optimizer, self._count = optimizer, len(optimizer.parameters)
        self._start = self._current()
        self.change(changes)
        self._trained, _ = self._current()
        self._seen: Any = None  # the settings that ranks compared last, and their digest
        self._digest = 0

    def _current(self) -> tuple[list[bool], list[dict[str, Any]]]:
        """Returns (`requires_grad` of each parameter, options of each group), as they are now."""
        trained = [p._requires_grad for p in self._parameters.values()]
        return trained, [plain(group) for group in self._optimizer.param_groups]

    def change(self, changes: Changes) -> None:
        """Applies changes to the settings; all others get their initial values."""
        trained, groups = self._start
        for (path, p), is_trained in zip(self._parameters.items(), trained, strict=True):
            p._requires_grad = is_trained and path not in changes.frozen
        changed = zip(self._optimizer.param_groups, groups, changes.options, strict=False)
        for group, options, others in changed:
            group.update({**options, **others})

    @property
    def trains_others(self) -> bool:
        """True if callbacks have changed which parameters are trained."""
        return self._current()[0] != self._trained

    @property
    def changes(self) -> Changes:
        """The settings that differ from their initial values, as a snapshot stores them."""
        (was, groups), (trained, others) = self._start, self._current()
        both = zip(self._parameters, was, trained, strict=True)
        return Changes(
            tuple(
                {name: value for name, value in b.items() if name not in a or value != a[name]}
                for a, b in zip(groups, others, strict=False)
            ),
            tuple(path for path, was_trained, is_trained in both if was_trained > is_trained),
        )

    @property
    def unchanged(self) -> Changes:
        """The Changes object that says that no setting differs from its initial value."""
        return Changes(tuple({} for _ in self._start[1]))

    def compare(
        self, comm: Comm, when: str = "", factors: Sequence[float] = (), asks: bool = False
    ) -> bool:
        """Raises AgreedError, on all ranks, if the settings of ranks differ. Returns True, on all
        ranks, if some rank `asks`. Every rank calls it.

        `when` is a phrase for the error message; `factors` are the next values of a user's learning
        rate schedule, which are compared too. If nothing differs, this costs one small message.
        """
        settings, added = self._current(), len(self._optimizer.parameters) - self._count
        seen = (settings, factors, added)
        if seen != self._seen:
            self._seen, self._digest = seen, crc32(repr(seen).encode())
        # 8 bytes a rank; only if digests differ do ranks exchange the settings themselves
        row = np.zeros((comm.size, 2), np.uint32)
        row[comm.rank] = self._digest, asks
        comm.all_gather(row.reshape(-1))
        if (row[:, 0] != row[0, 0]).any():
            self._refuse_differences(comm, settings, added, when, factors)
        elif added and comm.size > 1:
            raise AgreedError(
                "add_param_group has given the optimizer parameters whose gradients ranks do "
                "not sum: create them in `build`"
            )
        return bool(row[:, 1].any())

    def _refuse_differences(
        self,
        comm: Comm,
        settings: tuple[list[bool], list[dict[str, Any]]],
        added: int,
        when: str,
        factors: Sequence[float],
    ) -> None:
        """Raises AgreedError if settings of parts differ between ranks. Every rank calls it."""
        values = {
            f"requires_grad of {path}": repr(is_trained)
            for path, is_trained in zip(self._parameters, settings[0], strict=True)
            if self._held(path)
        }
        for i, group in enumerate(settings[1]):
            for name, value in group.items():
                values[f"{name} of group {i} of the optimizer"] = repr(value)
        values[SCHEDULE] = repr(factors)
        values["parameters that add_param_group has added"] = str(added)
        first = defaultdict[str, dict[str, str]](dict)  # by setting and value, the first rank
        for rank, of_rank in enumerate(gather_objects(comm, values)):
            for setting, value in of_rank.items():
                first[setting].setdefault(value, str(rank))
        for setting, of_values in first.items():
            if len(of_values) > 1:
                differing = " and ".join(of_values.values())
                remedy = "return the same" if setting == SCHEDULE else "set the same value"
                where = "" if setting == SCHEDULE else when
                raise AgreedError(
                    f"ranks {differing} differ in {setting}: {remedy} on all ranks{where}"
                )
