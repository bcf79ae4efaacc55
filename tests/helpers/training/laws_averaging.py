"""Local steps and gossip: replicas with steps of their own train as their simulation in one process
does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any, TypeVar

import numpy as np
from helpers.once import folder, once
from helpers.sample import one_in
from helpers.training.pipelined import BOUND, contents, digits, distance

from nnmpi import Config, Trainer, data, nn
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.collectives.gossip import GRAPHS
from nnmpi.comm import Comm, comm_self
from nnmpi.data import Dataset, Split
from nnmpi.data.loader import BatchSplit
from nnmpi.io.output import NullReport

Way = TypeVar("Way")
Options = Mapping[str, Any]
COMMON: Options = {
    "model": "mlp:64-20-10", "batch_size": 24, "steps": 8, "epochs": 2, "lr": 0.05,
    "lr_schedule": "cosine", "optimizer": "sgd", "dtype": "float64", "allreduce": "ring",
}  # fmt: skip
LOCAL: Options = {**COMMON, "sync": "local", "every": 3, "check_copies": 1}
AVERAGING = (
    *("sync", "every", "graph", "outer", "outer_lr", "outer_momentum"),
    *("fragments", "apply_after", "outer_dtype"),
)
GOSSIP: Options = {**COMMON, "sync": "gossip", "every": 3, "momentum": 0.8}
RULES: tuple[Options, ...] = (
    {"outer": "sgd", "outer_lr": 1.0},
    {"outer": "sgd", "outer_lr": 0.5, "optimizer": "adam", "lr": 0.01},
    {"outer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.6, "momentum": 0.8},
)
STREAMING: tuple[Options, ...] = (
    {"every": 3, "fragments": 2},
    {"every": 3, "fragments": 2, "apply_after": 1},
    {"every": 4, "fragments": 1, "apply_after": 3},
)
"""Schedules of which the first epoch, of 5 steps, ends within a period."""


def layouts(ranks: int) -> list[Options]:
    """Layouts of replicas on so many ranks: a rank each, or several."""
    several: tuple[tuple[int, Options], ...] = (
        (2, {"tp": 2}),
        (2, {"pp": 2, "micro_batches": 2}),
        (4, {"tp": 2, "pp": 2, "micro_batches": 2, "schedule": "zb-h1"}),
    )
    return [{}, *(options for n, options in several if not ranks % n)]


def arranged(ways: Iterable[Way], ranks: int, name: str) -> list[tuple[Way, Options]]:
    """Ways in layouts of so many ranks: each layout with some ways, and all of them with --all."""
    found = layouts(ranks)
    return one_in(max(len(found) - 1, 1), product(ways, found), name)


def replicas(ranks: int, layout: Options) -> int:
    return ranks // (layout.get("tp", 1) * layout.get("pp", 1))


def trained(
    comm: Comm,
    options: Options,
    given: Callable[[], Dataset] = digits,
    *callbacks: object,
    sends: bool = False,
) -> dict[str, np.ndarray]:
    """The parameters after a run; with `sends`, it has sent what is said on paper."""
    config = Config(**options)
    with Trainer(config, data=given(), comm=comm, callbacks=callbacks) as trainer:
        trainer.fit(NullReport())
        if sends:
            said = traffic(trainer.arrangement, comm.rank, config.batch_size)
            assert trainer.strategy.traffic.sent == said, options
        return contents(trainer)


def resumes_with_the_same_bits(
    comm: Comm, options: Options, steps: int, given: Callable[[], Dataset] = digits
) -> None:
    """From a checkpoint after so many steps."""
    whole = trained(comm, options, given)
    with folder(comm) as name:
        saving = {**options, "checkpoint_dir": name, "keep": 9}
        trained(comm, {**saving, "save_every": str(steps), "steps": steps}, given)
        assert distance(trained(comm, {**saving, "resume": True}, given), whole) == 0, options


def simulated(n: int, options: Options, micro: int = 1) -> dict[str, np.ndarray]:
    """The parameters after a run of n replicas, one after the other in this process."""
    config = Config(**options)
    loss = nn.CrossEntropyLoss()
    plain = {name: value for name, value in options.items() if name not in AVERAGING}
    with ExitStack() as stack:
        runs = [
            stack.enter_context(Trainer(Config(**plain), data=digits(), comm=comm_self()))
            for _ in range(n)
        ]
        streaming, step = Streaming(config, runs), 0
        for epoch in range(2):
            batches = list(runs[0].train.batches(epoch))[: config.steps - step]
            for k, rows in enumerate(batches, 1):
                for r, run in enumerate(runs):
                    batch = run.train.gather(np.concatenate(BatchSplit(micro, n, r)(rows)))
                    run.optimizer.zero_grad()
                    share = n * len(batch.y) / len(rows)  # parts of a batch may be unequal
                    (loss(run.model(batch.x), batch.y) * share).backward()
                    run.optimizer.step(lr_factor=run.lr_factor(step))
                step += 1
                if config.sync == "gossip":
                    mixed(runs, config.graph)
                else:
                    streaming.after(step, is_last=k == len(batches))
        if config.sync == "local":
            streaming.show()
        if config.sync == "gossip":
            mixed(runs, "complete")
        return contents(runs[0])


class Streaming:
    """The exchanges of replicas in one process; layer j of the model is in fragment j % P."""

    def __init__(self, config: Config, runs: Sequence[Trainer]) -> None:
        self.config, self.models = config, [[*run.model.parameters()] for run in runs]
        self.theta = [p.array.copy() for p in self.models[0]]
        self.momentum = [np.zeros_like(p) for p in self.theta]
        self.sent = dict[int, list[list[np.ndarray]]]()  # by fragment: what each replica has sent
        self.done = set[int]()

    def after(self, step: int, is_last: bool) -> None:
        c = self.config
        for i in range(c.fragments):
            to_apply = -((i + 1) * c.every // -c.fragments) - (step - 1) % c.every - 1
            ends = is_last or step % c.every == 0
            if i not in self.sent and (to_apply == c.apply_after or ends):
                self.sent[i] = [[p.array.copy() for p in model] for model in self.models]
            if i in self.sent and i not in self.done and (to_apply == 0 or ends):
                self.apply(i)
            if ends:
                del self.sent[i]
                self.done.discard(i)

    def apply(self, i: int) -> None:
        c, sent = self.config, self.sent[i]
        self.done.add(i)
        for j, (theta, m) in enumerate(zip(self.theta, self.momentum, strict=True)):
            if j // 2 % c.fragments != i:  # a layer has a weight and a bias
                continue
            g = np.mean([theta - values[j] for values in sent], axis=0)
            if c.outer == "nesterov":
                m[...] = c.outer_momentum * m + g
                g = g + c.outer_momentum * m
            theta -= c.outer_lr * g
            for model, values in zip(self.models, sent, strict=True):
                model[j].array[...] = theta + (model[j].array - values[j])

    def show(self) -> None:
        for p, theta in zip(self.models[0], self.theta, strict=True):
            p.array[...] = theta


def mixed(runs: Sequence[Trainer], graph: str) -> None:
    """Multiplies the parameters of all replicas by the mixing matrix of a graph."""
    matrix = np.array(GRAPHS[graph](len(runs)).mixing(), float)
    for parameters in zip(*(run.model.parameters() for run in runs), strict=True):
        rows = np.tensordot(matrix, np.stack([p.array for p in parameters]), 1)
        for p, row in zip(parameters, rows, strict=True):
            p.array[...] = row


def _equals_a_simulation(comm: Comm, options: Options, layout: Options) -> None:
    whole = simulated(replicas(comm.size, layout), options, layout.get("micro_batches", 1))
    assert distance(trained(comm, {**options, **layout}), whole) < BOUND, (options, layout)


def steps_alone_equal_a_simulation_in_one_process(comm: Comm) -> None:
    for rule, layout in arranged(RULES, comm.size, "rules"):
        _equals_a_simulation(comm, {**LOCAL, **rule}, layout)


def fragments_equal_a_simulation_in_one_process(comm: Comm) -> None:
    for streaming, layout in arranged(STREAMING, comm.size, "streaming"):
        _equals_a_simulation(comm, {**LOCAL, **RULES[2], **streaming}, layout)


def changes_are_sent_in_other_types(comm: Comm) -> None:
    """float32 is exact for float32; sums of blocks are rounded, to the same bits everywhere."""
    options = {**LOCAL, **RULES[2], **STREAMING[1], "dtype": "float32", "lr_schedule": "constant"}
    whole = trained(comm, options)
    assert distance(trained(comm, {**options, "outer_dtype": "float32"}), whole) == 0
    for dtype, most in (("bfloat16", 1e-2), ("int8", 2e-2)):
        difference = distance(trained(comm, {**options, "outer_dtype": dtype}), whole)
        assert 0 < difference < most or (comm.size == 1 and difference == 0), dtype


def one_replica_goes_on_as_one_rank(comm: Comm) -> None:
    """Its own values are those of one rank; what it shows of a fragment is older."""
    rows, alone = list[np.ndarray](), comm.split(comm.rank)
    for options in (COMMON, {**LOCAL, **RULES[0], **STREAMING[1]}):
        with Trainer(Config(**{**options, "steps": 9}), data=digits(), comm=alone) as trainer:
            trainer.fit(NullReport())
            rows.append(np.concatenate([x.values for _, x in trainer.optimizer.operands()]))
            difference = trainer.optimizer.state.get("replica_difference")
    own = rows[1] + difference
    assert abs(rows[0] - own).max() < BOUND * abs(own).max()
    assert abs(rows[1] - own).max() > 1e-4 * abs(own).max()


def gossip_equals_a_simulation_in_one_process(comm: Comm) -> None:
    for graph, layout in product(GRAPHS, layouts(comm.size)[:3]):
        _equals_a_simulation(comm, {**GOSSIP, "graph": graph}, layout)


@once
def few_words() -> Dataset:
    """Windows of text, of which few are evaluated."""
    whole = data.load("text", context=8)
    train, test = whole.train, whole.test
    return whole._replace(
        train=Split(train.x[:100], train.y[:100]), test=Split(test.x[:10], test.y[:10])
    )


def replicas_cut_along_cp_equal_whole_ones(comm: Comm) -> None:
    """Ranks along cp may share their values in memory, of which each writes a part."""
    if comm.size % 2:
        return
    options = {
        "model": "gpt:1x2x16", "context": 8, "batch_size": 8, "steps": 4,
        "dtype": "float64", "lr_schedule": "constant", "optimizer": "sgd", "every": 2,
    }  # fmt: skip
    half = comm.split(int(comm.rank >= comm.size // 2))
    for sync, allreduce in product(("local", "gossip"), ("shared", "ring")):
        one = {**options, "sync": sync, "allreduce": allreduce}
        whole, cut = trained(half, one, few_words), trained(comm, {**one, "cp": 2}, few_words)
        assert distance(cut, whole) < BOUND, (sync, allreduce)
    half.free()


def what_a_user_sets_between_rounds_is_kept(comm: Comm) -> None:
    class Halves:
        def on_epoch(self, trainer: Trainer, event: object) -> None:
            for p in trainer.model.parameters():
                p.array[...] *= 0.5

    for sync, dtype in product(("local", "gossip"), ("float32", "bfloat16")):
        options = {**COMMON, "sync": sync, "every": 2, "dtype": dtype, "lr": 1e-12}
        ends = trained(comm, options), trained(comm, options, digits, Halves())
        before, after = (sum(float(abs(x).sum()) for x in end.values()) for end in ends)
        assert abs(after / before - 0.25) < 1e-2, (sync, dtype)


def a_run_sends_what_is_said(comm: Comm) -> None:
    ways = [LOCAL, {**LOCAL, "fragments": 2}, {**LOCAL, "apply_after": 1}]
    ways.append({**ways[2], "outer_dtype": "int8"})
    ways += [{**GOSSIP, "graph": graph} for graph in GRAPHS]
    for way, layout in arranged(ways, comm.size, "traffic"):
        trained(comm, {**way, **layout, "every": 2}, sends=True)


def a_checkpoint_resumes_with_the_same_bits(comm: Comm) -> None:
    """Each replica has the state of its own optimizer; replicas that are new take another's."""
    rule = {**RULES[2], "optimizer": "adam", "lr": 0.01, "dtype": "float32", "every": 2}
    rule |= {"lr_schedule": "constant"}
    ways = [{**LOCAL, **rule}, {**GOSSIP, "lr_schedule": "constant", "every": 2}]
    ways.append({**ways[0], "every": 4, "fragments": 2, "apply_after": 1, "outer_dtype": "int8"})
    for way, layout in arranged(ways, comm.size, "resumed"):
        resumes_with_the_same_bits(comm, {**way, **layout}, 4)


def a_snapshot_goes_on_with_another_number_of_replicas(comm: Comm) -> None:
    """From a round on, all have the model; a new replica takes the optimizer state of another."""
    options = {**LOCAL, **RULES[2], "optimizer": "adam", "lr": 0.01, "steps": 4}
    for layout in layouts(comm.size):
        with Trainer(Config(**options), data=digits(), comm=comm) as trainer:
            trainer.fit(NullReport())
            values, snapshot = contents(trainer), trainer.snapshot()
            trainer.restore(snapshot, **layout)
            assert distance(contents(trainer), values) == 0
            state = trainer.optimizer.state
            assert all(state[name].any() for name in state), layout
            assert len(state) == 2 + (trainer.config.outer == "nesterov")
            trainer.fit(NullReport(), epochs=1)
            plain = {name: getattr(Config(), name) for name in AVERAGING}
            trainer.restore(snapshot, **{**plain, **layout})  # that of the first replica
            assert all(array.any() for array in trainer.optimizer.state.values())
