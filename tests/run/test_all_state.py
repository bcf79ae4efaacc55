"""Everything that a step depends on and changes is in the list of state: what else changes in a
step may hold anything between two steps."""

import gc
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.training.pipelined import digits

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.arrays.backend import to_host
from nnmpi.arrays.meta import owner
from nnmpi.comm import Comm, OtherRankError
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.nn.place import StateArray
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.run.end import DivergedError

COMMON: dict[str, Any] = {
    "model": "mlp:64-20-10", "batch_size": 24, "steps": 6, "seed": 3, "lr": 0.05,
    "optimizer": "adam", "allreduce": "ring", "check_copies": 0,
}  # fmt: skip
LOCAL = {"sync": "local", "every": 1, "outer_lr": 0.5}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "as written": (1, {"compile": False}),
    "float16": (2, {"dtype": "float16"}),
    "copies": (2, {}),
    "on a node": (2, {"allreduce": "shared"}),
    **{f"zero {n}": (2, {"zero": n}) for n in (1, 2, 3)},
    "stages": (2, {"pp": 2, "cut": "2", "micro_batches": 2}),
    "layers": (2, {"tp": 2}),
    "all": (4, {"pp": 2, "cut": "2", "dp": 2, "zero": 1, "micro_batches": 2}),
    **{codec: (2, {"compress": codec}) for codec in ("topk:0.1", "sign", "powersgd:3", "int8")},
    "local": (2, LOCAL),
    "nesterov": (2, {**LOCAL, "outer": "nesterov", "outer_momentum": 0.9}),
    "gossip": (2, {"sync": "gossip", "every": 1}),
}


def arrays_of(*roots: object) -> dict[int, np.ndarray]:
    """The memory of all arrays that objects refer to, by id; without what Comms refer to, as the
    messages of other ranks."""
    spaces = {id(vars(module)) for module in [*sys.modules.values()] if module is not None}
    seen, found, things = spaces, dict[int, np.ndarray](), [*roots]
    while things:
        thing = things.pop()
        is_comm = type(thing).__module__.startswith("nnmpi.comm.")
        if id(thing) in seen or is_comm or isinstance(thing, type | ModuleType):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            memory = owner(thing)
            if type(memory) is np.ndarray:  # not one without data
                found[id(memory)] = memory
        if isinstance(thing, FunctionType):  # not its globals
            things += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        else:
            things += gc.get_referents(thing)
    return found


def span(array: np.ndarray) -> tuple[int, int]:
    """The addresses between which the elements of an array are."""
    return np.lib.array_utils.byte_bounds(array)


def kept(trainer: Trainer, but: str = "") -> list[tuple[int, int]]:
    """The addresses of what is in the list of state, and of what parameters show of it."""
    arrays = [x.elements() for x in trainer.session.state() if not but or but not in x.name]
    for p in trainer.optimizer.parameters:
        store = p.store
        assert isinstance(store, LocalStore)
        with store.reading():
            arrays.append(to_host(p._array))
        arrays += [] if store.masters is None else [store.masters]
    return [span(array) for array in arrays if array.size]


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The bytes of each element, as rows."""
    return array.reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)


def spoil(array: np.ndarray, before: np.ndarray, but: Iterable[tuple[int, int]]) -> int:
    """Fills what has changed in an array with ones, but what is at some addresses; returns the
    number of its elements."""
    now, start = bytes_of(array), span(array)[0]
    is_spoilt = (now != bytes_of(before)).any(axis=1)
    for a, b in but:
        first, stop = (at - start for at in (a, b))
        is_spoilt[max(first // array.itemsize, 0) : max(-(-stop // array.itemsize), 0)] = False
    now[is_spoilt] = 255
    return int(is_spoilt.sum())


class Spoils:
    """Spoils after step 3 all memory that step 3 has changed, but the list of state."""

    def __init__(self, but: str = "") -> None:
        self._but, self.changed = but, 0

    def on_step(self, trainer: Trainer, event: Event) -> None:
        session = trainer.session
        found = arrays_of(session.strategy, session.part.model, session.optimizer, session.task)
        if event["step"] == 2:
            self._before = {key: (array, array.copy()) for key, array in found.items()}
        if event["step"] == 3:
            known, state = self._before, kept(trainer, self._but)
            trainer.comm.barrier()  # values are gathered, and nothing of step 4 has been sent yet
            for array, before in (known[key] for key in found if key in known):
                if array.size and array.flags.c_contiguous and array.flags.writeable:
                    self.changed += spoil(array, before, state)
            trainer.comm.barrier()


def trained(
    ranks: int, options: dict[str, Any], callbacks: Callable[[], list[Any]] = list
) -> list[list[bytes]]:
    """The list of state of each rank after a run, in bytes."""

    def rank(comm: Comm) -> list[bytes]:
        config, given = Config(**{**COMMON, **options}), callbacks()
        with Trainer(config, data=digits(), comm=comm, callbacks=given) as trainer:
            trainer.fit(NullReport())
            for spoils in given:
                assert spoils.changed
            return [x.elements().tobytes() for x in trainer.snapshot().arrays]

    return threads.run(ranks, rank)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_not_in_the_list_is_of_no_use_after_a_step(name: str) -> None:
    ranks, options = LAYOUTS[name]
    assert trained(ranks, options, lambda: [Spoils()]) == trained(ranks, options)


def test_what_would_be_missing_in_the_list_is_noticed() -> None:
    with pytest.raises(DivergedError):
        trained(1, {}, lambda: [Spoils("squared_gradient_sum")])


# ---- what modules say is their state


class Noisy(nn.Module):
    """Adds noise of a generator of its own, and assigns a buffer anew."""

    def __init__(self) -> None:
        self.rng, self.shift = np.random.default_rng(7), nn.Parameter(np.zeros(1, "float32"))
        self.register_buffer("scale", np.ones(1, "float32"), combine="mean")

    def forward(self, x: Any) -> Any:
        if self.training:
            self.scale = self.scale * np.float32(0.9)
            noise = self.rng.standard_normal(x.shape).astype("float32")
            x = x + nnmpi.tensor(noise * self.scale)
        return x + self.shift

    def state_arrays(self) -> list[StateArray]:
        return [nnmpi.generator_state("rng", self.rng)]


class Restores:
    """Writes a checkpoint after step 3, and goes on from it when two more steps are made."""

    def __init__(self, directory: str) -> None:
        self._directory, self._snapshot = directory, None

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == 3 and self._snapshot is None:
            trainer.save_checkpoint(self._directory)
            self._snapshot = trainer.snapshot()
        elif event["step"] == 5 and self._snapshot:
            snapshot, self._snapshot = self._snapshot, ()
            trainer.restore(snapshot)


class Around(nn.Sequential):
    """A model with state of its own, around its layers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.rng = np.random.default_rng(3)

    def state_arrays(self) -> list[StateArray]:
        return [nnmpi.generator_state("rng", self.rng)]


class Empty(nn.Module):
    """A parameter and a buffer without elements."""

    def __init__(self) -> None:
        self.none = nn.Parameter(np.zeros((0,), "float32"))
        self.register_buffer("nothing", np.zeros((0,), "float32"))

    def forward(self, x: Any) -> Any:
        return x


class Clashes(nn.Module):
    """A buffer and an array of state with one name."""

    def __init__(self) -> None:
        self.register_buffer("rng", np.zeros(1, "float32"))

    def forward(self, x: Any) -> Any:
        return x

    def state_arrays(self) -> list[StateArray]:
        return [nnmpi.generator_state("rng", np.random.default_rng(0))]


GENERATORS = (np.random.PCG64, np.random.Philox, np.random.MT19937, np.random.SFC64)


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_goes_on_from_its_state(kind: type[np.random.BitGenerator]) -> None:
    one, other = (np.random.Generator(kind(seed)) for seed in (1, 2))  # type: ignore[call-arg]
    one.integers(0, 9, 5, dtype=np.uint32)  # half of a word is left
    state = nnmpi.generator_state("rng", one)
    nnmpi.generator_state("rng", other).put(state.elements())
    drawn, again = (g.standard_normal(9).tolist() for g in (one, other))
    assert drawn == again


def layers() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(64, 12), nn.Linear(12, 10)]


MODELS = {
    "a generator": lambda: nn.Sequential(*layers(), Noisy()),
    "around layers": lambda: Around(*layers()),
    "no elements": lambda: nn.Sequential(*layers(), Empty()),
}
SAVED: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (2, {"pp": 2, "cut": "2"}),
    (2, {"zero": 2}),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("ranks", "options"), SAVED)
def test_state_of_modules_is_saved_and_restored(
    model: str, ranks: int, options: dict[str, Any], tmp_path: Any
) -> None:
    def run(comm: Comm, *callbacks: object, **more: Any) -> list[Any]:
        config = Config(**{**COMMON, "model": "build", **options, **more})
        with Trainer(config, MODELS[model], digits(), comm, callbacks=callbacks) as trainer:
            trainer.fit(NullReport())
            return [(x.name, x.elements().tobytes()) for x in trainer.snapshot().arrays]

    def rank(comm: Comm) -> None:
        wanted = run(comm)
        assert run(comm, Restores(str(tmp_path))) == wanted
        assert run(comm, resume=True, checkpoint_dir=str(tmp_path)) == wanted
        names = [name for name, _ in wanted]
        has_last_stage = "pp" not in options or comm.rank == 1
        assert ("3.rng" in names) == (model == "a generator" and has_last_stage)
        assert ("rng" in names) == (model == "around layers")

    threads.run(ranks, rank)


def test_two_arrays_with_one_name_are_refused() -> None:
    config = Config(**{**COMMON, "model": "build"})
    with pytest.raises(ValueError, match=r"3\.rng: state_arrays gives it a name that is in use"):
        Trainer(config, lambda: nn.Sequential(*layers(), Clashes()), digits())


def test_a_rank_that_cannot_write_fails_on_all() -> None:
    def rank(comm: Comm) -> None:
        def refuses(*_: object) -> None:
            raise ValueError("no words are left")

        config = Config(**{**COMMON, "model": "build", "check_copies": 0})
        trainer = Trainer(config, MODELS["a generator"], digits(), comm)
        snapshot = trainer.snapshot()
        if comm.rank == 1:
            snapshot = snapshot._replace(
                arrays=tuple(x._replace(read=refuses) for x in snapshot.arrays)
            )
        with pytest.raises((ValueError, OtherRankError), match="no words are left"):
            trainer.restore(snapshot)
        comm.barrier()

    threads.run(2, rank)
