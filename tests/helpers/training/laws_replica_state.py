"""What goes on of the state of replicas: each cell of the tables of PAGES."""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from helpers.mpijob import ROOT
from helpers.once import by_first
from helpers.sample import one_in
from helpers.training.pipelined import BOUND, contents, digits, distance

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.io.output import NullReport
from nnmpi.optim import Optimizer
from nnmpi.optim.state import split
from nnmpi.parallel.agreement import gather_objects

Options = Mapping[str, Any]
Arrays = dict[str, np.ndarray]
COMMON: Options = {
    "model": "mlp:64-20-10", "batch_size": 24, "steps": 4, "epochs": 9, "lr": 0.01,
    "lr_schedule": "constant", "optimizer": "adam", "dtype": "float64", "allreduce": "ring",
    "check_copies": 1,
}  # fmt: skip
LOCAL: Options = {"sync": "local", "every": 2, "outer_lr": 0.5}
MODES: dict[str, Options] = {
    "data parallelism": {},
    "local": LOCAL,
    "fragments": {**LOCAL, "every": 4, "fragments": 2, "apply_after": 1},
    "gossip": {"sync": "gossip", "every": 2},
    **{codec: {"compress": codec} for codec in ("topk:0.1", "sign", "powersgd:3", "int8")},
}
PAGES = "local-steps", "compression"
EVENTS = ("same replicas", "other replicas", "mode without it", "a loss", "by hand")
HEADS = (
    *("resumed on as many replicas", "on more or fewer", "in a mode without this state"),
    *("after a lost rank", "by `load_optimizer_state_dict`"),
)
"""What the tables of docs call these events."""


def table() -> dict[str, dict[str, str]]:
    """What docs say of each state, by event."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for page in PAGES
        for line in (ROOT / "docs" / f"{page}.md").read_text().split("\n")
        if line.startswith("|")
    ]
    heads = [row for row in rows if row[-1] == HEADS[-1]]
    assert [(*head[2:],) for head in heads] == [HEADS] * len(PAGES)
    head = heads[0]
    found = (row for row in rows if len(row) == len(head) and row[2] in WORDS)
    return {row[1]: dict(zip(EVENTS, row[2:], strict=True)) for row in found}


def said(mode: str, name: str, event: str) -> str:
    """What docs say of a state array of a mode."""
    optimizers = (
        "that of each replica's optimizer" if "sync" in MODES[mode] else "that of the optimizer"
    )
    rows = table()
    return rows.get(f"`{name}`", rows[optimizers])[event]


# ---- the words of the table; `left` are the replicas that were not lost


def kept(old: Sequence[np.ndarray], new: Sequence[np.ndarray], left: Sequence[int]) -> bool:
    return all((row == old[left[r % len(left)]]).all() for r, row in enumerate(new))


def firsts(old: Sequence[np.ndarray], new: Sequence[np.ndarray], left: Sequence[int]) -> bool:
    return all((row == old[0]).all() for row in new)


def summed(old: Sequence[np.ndarray], new: Sequence[np.ndarray], left: Sequence[int]) -> bool:
    return bool(np.allclose(np.sum(new, 0), np.sum(old, 0), rtol=1e-12, atol=1e-15))


def dropped(old: Sequence[np.ndarray], new: Sequence[np.ndarray], left: Sequence[int]) -> bool:
    return not np.any(new)


WORDS: dict[str, Callable[..., bool]] = {
    "kept": kept,
    "that of r mod n": kept,
    "the first's": firsts,
    "its sum": summed,
    "dropped": dropped,
}


def check(
    mode: str, event: str, old: Sequence[Arrays], new: Sequence[Arrays], left: Sequence[int] = ()
) -> None:
    """Each state of a mode is what the table says after an event."""
    for name in old[0]:
        rows = [[arrays[name] for arrays in states if name in arrays] for states in (old, new)]
        all_mix = mode == "gossip" and len(old) < 4  # each replica with all others: none differs
        assert np.any(rows[0]) or all_mix, (mode, name)
        word = said(mode, name, event)
        assert WORDS[word](*rows, left or range(len(old))), (mode, name, event, word)


# ---- runs


def trainer_of(comm: Comm, mode: str, **options: Any) -> Trainer:
    return Trainer(Config(**{**COMMON, **MODES[mode], **options}), data=digits(), comm=comm)


def arrays(optimizer: Optimizer) -> Arrays:
    """The state of this rank's optimizer, without padding, and its step counts."""
    found = defaultdict[str, list[np.ndarray]](list)
    for x in optimizer.state_arrays():
        found[split(x.name)[1]].append(x.copied().elements())
    return {name: np.concatenate(rows) for name, rows in found.items()}


def saved(comm: Comm, mode: str, **options: Any) -> tuple[str, Arrays, list[Arrays]]:
    """A folder with a checkpoint, the parameters in it, and the state of each rank."""
    folder = by_first(comm, tempfile.mkdtemp)
    with trainer_of(comm, mode, **options) as trainer:
        trainer.fit(NullReport())
        trainer.save_checkpoint(folder)
        return folder, contents(trainer), gather_objects(comm, arrays(trainer.optimizer))


def goes_on(
    comm: Comm, mode: str, run: tuple[str, Arrays, list[Arrays]], **options: Any
) -> tuple[list[Arrays], Arrays]:
    """The state of each rank when a run goes on in a mode, and the parameters four steps later;
    copies are compared after each step."""
    # a run writes to the folder that it goes on from
    copy = by_first(comm, lambda: shutil.copytree(run[0], f"{tempfile.mkdtemp()}/copy"))
    options = {"steps": 8, "checkpoint_dir": copy, "elastic": True, **options}
    with trainer_of(comm, mode, **options) as trainer:
        assert distance(contents(trainer), run[1]) == 0
        found = gather_objects(comm, arrays(trainer.optimizer))
        trainer.fit(NullReport())
        return found, contents(trainer)


# ---- the laws


def other_replicas_take_what_the_table_says(comm: Comm, name: str) -> None:
    few = comm.split(0 if comm.rank < (comm.size + 1) // 2 else None)
    for before, after in ((comm, few), (few, comm)):
        run = gather_objects(comm, saved(before, name) if before else None)[0]
        found = gather_objects(comm, goes_on(after, name, run)[0] if after else None)[0]
        if "compress" in MODES[name] and comm.size < 3:
            continue  # a single rank compresses nothing
        check(name, "other replicas", run[2], found)


def other_modes_take_what_the_table_says(comm: Comm, name: str) -> None:
    """A state that both modes have is kept, but where replicas become copies of one."""
    run = saved(comm, name)
    for mode in {name: 0, **dict.fromkeys(one_in(4, MODES, name))}:
        new, _ = goes_on(comm, mode, run)
        if mode == name:
            check(name, "same replicas", run[2], new)
        is_one = "sync" in MODES[name] and "sync" not in MODES[mode]
        for state in run[2][0]:
            had, has = ([rows[state] for rows in x if state in rows] for x in (run[2], new))
            word = said(name, state, "mode without it") if is_one or not has else "kept"
            assert WORDS[word](had, has, range(len(had))), (name, mode, state, word)


def other_modes_equal_data_parallelism_at_their_limits(comm: Comm) -> None:
    plain = {"optimizer": "sgd", "momentum": 0.8, "lr": 0.05}
    exact: dict[str, Options] = {"topk:0.1": {"compress": "topk:1"}}
    linear = {
        "local": {"every": 1, "outer": "sgd", "outer_lr": 1.0},
        "gossip": {"graph": "complete"},
    }
    limits = {"local": exact, "fragments": exact, "gossip": exact, "topk:0.1": linear}
    for mode, others in limits.items():
        run = saved(comm, mode, **plain)
        _, wanted = goes_on(comm, "data parallelism", run, **plain)
        for other, options in others.items():
            _, found = goes_on(comm, other, run, **plain, **options)
            assert distance(found, wanted) < BOUND, (mode, other)


def a_user_takes_what_the_table_says(comm: Comm, name: str) -> None:
    """A run goes on from the parameters that were loaded, here with a rate of almost 0."""
    outer = {"outer": "sgd"} if MODES[name].get("sync") == "local" else {}
    for options in ({}, outer) if outer else ({},):
        with trainer_of(comm, name, **options) as trainer:
            trainer.fit(NullReport())
            old = gather_objects(comm, arrays(trainer.optimizer))
            found = contents(trainer), trainer.optimizer_state_dict()
            values, state = gather_objects(comm, found)[0]
        with trainer_of(comm, name, **options, lr=1e-12) as trainer:
            trainer.load_optimizer_state_dict(state)
            trainer.model.load_state_dict(values)
            check(name, "by hand", old, gather_objects(comm, arrays(trainer.optimizer)))
            trainer.fit(NullReport())
            if options or not outer:  # an outer momentum goes on to move them
                assert distance(contents(trainer), values) < 1e-9, name
