"""Compressed sums and gradients: what is sent and what is kept add up, all ranks have the same
bits, and training equals its simulation in one process."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise, product
from math import prod
from typing import Any

import numpy as np
from helpers.once import once
from helpers.sample import one_in
from helpers.training.laws_averaging import (
    arranged,
    layouts,
    replicas,
    resumes_with_the_same_bits,
    trained,
)
from helpers.training.pipelined import BOUND, contents, digits, distance

from nnmpi import Config, Trainer, nn
from nnmpi.addons.compression.blocks import PACKINGS, start_mean, summed
from nnmpi.addons.compression.codecs import CODECS, CodecInput
from nnmpi.addons.compression.compressed import BLOCK, BYTES_OF, WIDTHS
from nnmpi.addons.compression.exchange import Exchange
from nnmpi.arrays import keyed
from nnmpi.comm import Comm, comm_self
from nnmpi.data import Dataset
from nnmpi.data.loader import BatchSplit
from nnmpi.io.output import NullReport
from nnmpi.parallel.agreement import gather_objects

Options = Mapping[str, Any]
Rows = list[np.ndarray]

RATIOS = {"bfloat16": 2.0**-8, "int8": 1 / 254}
"""The most that a number is rounded by, over the largest of its block."""

COMMON: Options = {
    "model": "mlp:64-20-10", "batch_size": 8, "steps": 6, "lr": 0.05, "momentum": 0.8,
    "optimizer": "sgd", "dtype": "float64", "check_copies": 1,
}  # fmt: skip
LOSSY = ("topk:0.1", "sign", "powersgd:3", "int8")
EXACT = ("topk:1", "powersgd:10")
"""With 8 samples no matrix of gradients has a larger rank than 8."""


@once
def blurred() -> Dataset:
    """Digits with noise: of equal pixels any may be the largest."""
    few = digits()
    noise = np.random.default_rng(0).standard_normal(few.train.x.shape)
    return few._replace(train=few.train._replace(x=few.train.x + noise.astype(np.float32)))


# ---- sums


def means_in_blocks_are_rounded_twice(comm: Comm) -> None:
    for form, n in product(PACKINGS, (1, 700, 3 * BLOCK, 5000)):
        rng = np.random.default_rng([comm.rank, n])
        row = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)).astype(np.float32)
        rows = gather_objects(comm, row)
        row, before = row.copy(), sum(comm.ledger.sent_bytes)
        work = start_mean(row, comm, form)
        while not work.poll():
            pass
        sent = sum(comm.ledger.sent_bytes) - before
        assert all((mean == row).all() for mean in gather_objects(comm, row))
        most = sum(np.abs(terms).max() for terms in [*rows, sum(rows)]) * RATIOS[form]
        assert np.abs(row - np.mean(rows, 0)).max() <= 1.01 * most / comm.size
        blocks = -(-n // BLOCK)
        assert sum(gather_objects(comm, sent)) == 2 * (comm.size - 1) * blocks * WIDTHS[form]


def sums_in_blocks_keep_what_they_leave_out(comm: Comm) -> None:
    for form, packing in PACKINGS.items():
        row = np.random.default_rng(comm.rank).standard_normal(12 * BLOCK)
        before = np.sum(gather_objects(comm, row), 0)
        work = Exchange(summed(row, comm, packing, keeps=True))
        work.wait()
        after = np.sum(gather_objects(comm, row), 0)
        assert 0 < np.abs(after).max() < 0.1
        np.testing.assert_allclose(work.result + after, before, atol=1e-12, err_msg=form)


def sums_of_codecs_and_what_they_keep_are_those_of_gradients(comm: Comm) -> None:
    """Bytes and messages are those of the formula, by which `simulate sync` prices."""
    shapes, numbers = [(30, 70), (1, 7), (4, 90), (3, 2)], {"topk": 0.05, "powersgd": 2}
    sizes = [*map(prod, shapes)]
    for (name, codec), dtype in product(CODECS.items(), ("float32", "float64")):
        row = np.random.default_rng(comm.rank).standard_normal(sum(sizes)).astype(dtype)
        factors = np.random.default_rng(9).standard_normal(sum(sizes)).astype(dtype)
        whole = np.sum(gather_objects(comm, row), 0)
        for _ in range(3):
            bucket = CodecInput(row, shapes, sizes, row.dtype, comm, "ring", factors)
            before = sum(comm.ledger.sent_bytes), sum(comm.ledger.sent_messages)
            work = Exchange(codec.sum(bucket, numbers.get(name, 0)))
            work.wait()
            sent = sum(comm.ledger.sent_bytes), sum(comm.ledger.sent_messages)
            kept = np.sum(gather_objects(comm, row), 0)
            near = 1e-5 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(work.result + kept, whole, rtol=near, atol=near * 30)
            assert all((x == work.result).all() for x in gather_objects(comm, work.result))
            traffics = np.subtract(gather_objects(comm, sent), gather_objects(comm, before))
            said = BYTES_OF[name](shapes, numbers.get(name, 0), row.itemsize, comm.size)
            assert sum(traffics[:, 0]) == round(said.nbytes * comm.size), name
            assert {*traffics[:, 1]} == {said.messages}, name
            assert np.abs(kept).max() > 0
            whole = kept  # of what was kept, a part is sent
        assert np.abs(kept).max() < 20


# ---- training


def _topk(terms: Rows, size: int) -> tuple[np.ndarray, Rows]:
    least = [np.sort(abs(x).reshape(-1))[-max(1, round(0.1 * size))] for x in terms]
    sent = [np.where(abs(x) >= y, x, 0) for x, y in zip(terms, least, strict=True)]
    return np.sum(sent, 0), [x - s for x, s in zip(terms, sent, strict=True)]


def _sign(terms: Rows, size: int) -> tuple[np.ndarray, Rows]:
    sent = [np.where(x >= 0, 1, -1) * float(np.float32(abs(x).mean())) for x in terms]
    return np.sum(sent, 0), [x - s for x, s in zip(terms, sent, strict=True)]


class Factors:
    """PowerSGD of rank 3; a basis of the same columns by Householder reflections gives the same."""

    def __init__(self) -> None:
        self._q: dict[str, np.ndarray] = {}

    def __call__(self, terms: Rows, path: str) -> tuple[np.ndarray, Rows]:
        total, r = np.sum(terms, 0), 3
        if total.ndim < 2 or r * sum(total.shape) >= total.size:
            return total, [np.zeros_like(x) for x in terms]
        index = np.arange(1, total.size + 1)
        drawn = keyed.normal(keyed.key("compress_factor", path), index, index[:1])
        q = self._q.get(path, drawn[: r * total.shape[1]].reshape(r, -1).T)
        p = np.linalg.qr(total @ q)[0]
        self._q[path] = total.T @ p
        return p @ p.T @ total, [x - p @ p.T @ x for x in terms]


def _rounded(x: np.ndarray) -> np.ndarray:
    scale = (abs(x).max(1, keepdims=True) / 127).astype(np.float32).astype(float)
    return np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)) * scale


def _int8(terms: list[Rows]) -> tuple[Rows, list[Rows]]:
    """The sums of all tensors, and what each replica keeps of each tensor."""
    counts, n = [-(-x.size // BLOCK) for x in terms[0]], len(terms)
    ends, bounds = np.cumsum(counts), [k * sum(counts) // n for k in range(n + 1)]
    blocks = [
        np.concatenate([np.pad(x.reshape(-1), (0, -x.size % BLOCK)) for x in xs]).reshape(-1, BLOCK)
        for xs in terms
    ]
    sent = [*map(_rounded, blocks)]
    total = np.sum(sent, 0)
    kept = [b - s for b, s in zip(blocks, sent, strict=True)]
    for r, (lo, hi) in enumerate(pairwise(bounds)):
        kept[r][lo:hi] += total[lo:hi] - _rounded(total[lo:hi])
    total = _rounded(total)

    def tensors(rows: np.ndarray) -> Rows:
        pairs = zip(np.split(rows, ends[:-1]), terms[0], strict=True)
        return [part.reshape(-1)[: x.size].reshape(x.shape) for part, x in pairs]

    return tensors(total), [*map(tensors, kept)]


def _each(codec: Callable[[Rows, Any], tuple[np.ndarray, Rows]], names: Sequence[Any]) -> Any:
    """The sums of tensors that are compressed one by one."""

    def sums(terms: list[Rows]) -> tuple[Rows, list[Rows]]:
        pairs = [codec([*xs], name) for *xs, name in zip(*terms, names, strict=True)]
        kept = zip(*(of_tensor for _, of_tensor in pairs), strict=True)
        return [total for total, _ in pairs], [*map(list, kept)]

    return sums


def simulated(n: int, options: Options, micro: int = 1) -> dict[str, np.ndarray]:
    """The parameters after a run of n replicas, one after the other in this process."""
    config = Config(**options)
    plain = {name: value for name, value in options.items() if name != "compress"}
    with Trainer(Config(**plain), data=blurred(), comm=comm_self()) as run:
        loss, named = nn.CrossEntropyLoss(), [*run.model.named_parameters()]
        sums = {
            "topk:0.1": _each(_topk, [p.size for _, p in named]),
            "sign": _each(_sign, [p.size for _, p in named]),
            "powersgd:3": _each(Factors(), [name for name, _ in named]),
            "int8": _int8,
        }[str(config.compress)]
        kept = [[np.zeros(p.shape) for _, p in named] for _ in range(n)]
        for step, rows in enumerate(islice(run.train.batches(0), config.steps)):
            terms = []
            for r in range(n):
                batch = run.train.gather(np.concatenate(BatchSplit(micro, n, r)(rows)))
                run.optimizer.zero_grad()
                (loss(run.model(batch.x), batch.y) * (len(batch.y) / len(rows))).backward()
                terms.append([p.grad_array + e for (_, p), e in zip(named, kept[r], strict=True)])
            totals, kept = sums(terms)
            for (_, p), total in zip(named, totals, strict=True):
                p.grad_memory[...] = total
            run.optimizer.step(lr_factor=run.lr_factor(step))
        return contents(run)


def compressed_training_equals_a_simulation_in_one_process(comm: Comm) -> None:
    """In a pipeline int8 divides the blocks of each stage, unlike the simulation."""
    for compress, layout in product(LOSSY, layouts(comm.size)[: 3 if comm.size < 8 else 1]):
        n, is_cut = replicas(comm.size, layout), "pp" in layout and compress == "int8"
        if n == 1 or "tp" in layout or is_cut:
            continue
        options = {**COMMON, "compress": compress}
        whole = simulated(n, options, layout.get("micro_batches", 1))
        found = trained(comm, {**options, **layout}, blurred, sends=True)
        assert distance(found, whole) < BOUND, (compress, layout)


def what_leaves_out_nothing_equals_one_rank(comm: Comm) -> None:
    plain = {**COMMON, "check_copies": 0}
    whole = trained(comm_self(), plain, blurred)
    for compress, layout in arranged(EXACT, comm.size, "exact"):
        options = {**COMMON, "compress": compress, **layout}
        assert distance(trained(comm, options, blurred), whole) < 1e-9


def a_checkpoint_resumes_with_the_same_bits(comm: Comm) -> None:
    some = one_in(2, product(LOSSY, ({},)), f"resumed {comm.size}")
    ways: list[tuple[str, Options]] = [*some, ("powersgd:3", layouts(comm.size)[-1])]
    for compress, layout in ways:
        options = {**COMMON, "dtype": "float32", "compress": compress, **layout}
        resumes_with_the_same_bits(comm, {**options, "lr_schedule": "constant"}, 3, blurred)


def what_was_kept_is_kept_by_other_numbers_of_replicas(comm: Comm) -> None:
    """The sum over the replicas: it is what parameters have not got yet."""

    def kept(trainer: Trainer) -> dict[str, float]:
        sums: dict[str, float] = {}
        parameters = enumerate(trainer.optimizer.parameters)
        rows = {p.place.path: residual(trainer, j, p.size) for j, p in parameters}
        for of_rank in gather_objects(comm, rows):
            for path, row in of_rank.items():
                sums[path] = sums.get(path, 0) + row
        return sums

    if comm.size % 2:
        return
    options = {**COMMON, "compress": "topk:0.1", "steps": 3}
    with Trainer(Config(**options), data=blurred(), comm=comm) as trainer:
        trainer.fit(NullReport())
        before = kept(trainer)
        assert all(np.any(row) for row in before.values())
        if comm.size > 2:
            for layout in ({"pp": 2, "micro_batches": 2}, {"pp": 1, "micro_batches": 1}):
                trainer.restore(trainer.snapshot(), **layout)
                assert distance(kept(trainer), before) < 1e-12, layout
        trainer.restore(trainer.snapshot(), compress="sign")
        assert distance(kept(trainer), before) < 1e-12


def residual(trainer: Trainer, j: int, size: int) -> np.ndarray:
    name = f"{trainer.optimizer.parameters[j].place.path}.compress_residual"
    (x,) = (x for x in trainer.optimizer.state_arrays() if x.name == name)
    assert x.size == size
    return x.copied().elements()
