"""What is trained under the simulation: small layouts of every strategy that survives a loss."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from helpers.training import laws_language
from helpers.training.recovered import COMMON, PLAIN_MEAN, RING

from nnmpi import Trainer
from nnmpi.arrays.dtypes import HALVES
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event
from nnmpi.options.config import ALLREDUCES

Options = Mapping[str, Any]


class Rearranges:
    """A callback: after these steps the run goes on with other options, if they fit."""

    def __init__(self, at: Mapping[int, Options]) -> None:
        self._at = at

    def on_step(self, trainer: Trainer, event: Event) -> None:
        changes = self._at.get(event["step"])
        if changes and trainer.comm.size > 1:
            with suppress(ValueError):  # too few ranks are left for it
                trainer.rearrange(**changes)


class Restores:
    """A callback: after one step the run goes back to an earlier one, once, by the steps that it
    hears of: a restore that a loss interrupts may have been made or not. It may change options."""

    def __init__(self, earlier: int, later: int, **changes: Any) -> None:
        self._earlier, self._later, self._changes = earlier, later, changes
        self._snapshot: Snapshot | None = None
        self._passes = 0

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == self._earlier:
            self._snapshot = trainer.snapshot()
        self._passes += event["step"] == self._earlier + 1
        if event["step"] == self._later and self._snapshot is not None and self._passes == 1:
            trainer.restore(self._snapshot, **self._changes)


class StopsAfter:
    """A callback: each rank asks to stop after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == self._step:
            trainer.stop()


class Layout(NamedTuple):
    """Ranks and their options; `per_node` consecutive ranks share memory, by default all."""

    ranks: int
    given: Options
    per_node: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {**COMMON, **self.given}

    @property
    def servers(self) -> int:
        """The last ranks, each with the only copy of its part."""
        return self.options.get("servers", 0)

    @property
    def saves(self) -> bool:
        """True if it writes checkpoints."""
        return "save_every" in self.given

    @property
    def arranges_anew(self) -> bool:
        """True if a callback arranges the ranks anew."""
        return "callbacks" in self.given and self.stops_after is None

    @property
    def stops_after(self) -> int | None:
        """The step after which a callback stops the run, if one does."""
        makers = self.given.get("callbacks", ())
        return next((make.args[0] for make in makers if make.func is StopsAfter), None)

    @property
    def heeds_clock(self) -> bool:
        """True if it ends, or writes checkpoints, by the clock."""
        return "time_limit" in self.given or self.options.get("save_every", "").endswith("s")

    @property
    def steps_together(self) -> bool:
        """True if ranks make each step at the same time."""
        return not self.servers and self.options.get("schedule") != "pipedream"

    @property
    def is_ordered(self) -> bool:
        """True if results do not depend on the order in which messages arrive."""
        return self.options.get("sync") not in ("asp", "ssp")

    @property
    def is_exact(self) -> bool:
        """True if fewer ranks train as more: what is left after a loss equals the whole run."""
        averages = self.options.get("every", 1) > 1 or self.options.get("schedule") == "pipedream"
        loses_parts = self.options.get("compress", "topk:1") != "topk:1"
        rounds = self.options["dtype"] in HALVES
        return self.is_ordered and not averages and not loses_parts and not rounds

    @property
    def is_repeatable(self) -> bool:
        """True if fewer ranks give the same bits as more."""
        return bool(self.options.get("reproducible"))

    def copies(self, alive: int) -> int:
        """How many ranks have each part of the model at least, while so many are alive: one in each
        replica without ZeRO, and one more with --backup."""
        callbacks = self.given.get("callbacks", ())
        rearranged = [at for make in callbacks if make.func is Rearranges for at in make.args]
        changes = [{}, *(change for at in rearranged for change in at.values())]
        changes += [make.keywords for make in callbacks]
        return min(_copies({**self.options, **change}, alive) for change in changes)


def _copies(options: Options, alive: int) -> int:
    """How many ranks have each part of the model by these options; spare ranks have none."""
    replicas, cp = alive // (options.get("pp", 1) * options.get("tp", 1)), options.get("cp", 1)
    replicas = replicas // cp * cp or replicas
    is_sharded = options.get("zero") or options.get("servers")
    return (1 if is_sharded else replicas) + ("backup" in options)


ADAM = {"optimizer": "adam", "lr": 0.01}
LAMB = {"optimizer": "lamb", "lr": 0.01}
SMALL_BUCKETS = {"bucket_mb": 0.001}
PIPEDREAM = {"pp": 3, "schedule": "pipedream", "clip_norm": None}
OTHER_ALLREDUCES = [
    name for name in ALLREDUCES if name not in ("ring", "halving", "shared", "hierarchical")
]
PIPELINES = {**RING, "dp": 2, "pp": 2, "micro_batches": 3}
LONGER = {"steps": 12, "epochs": 3}
FRAGMENTS = {**ADAM, "sync": "local", "every": 3, "fragments": 2, "apply_after": 1}
GOSSIP = {"sync": "gossip", "every": 2, "clip_norm": None}
NESTEROV = {"outer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9}
TO_PIPELINES = {"pp": 2, "tp": 1, "micro_batches": 3}
TO_TENSOR_PARALLEL = {"pp": 1, "tp": 2, "micro_batches": 1}


def rearranges(at: Mapping[int, Options]) -> Options:
    """The option of a callback that arranges ranks anew after these steps."""
    return {"callbacks": [partial(Rearranges, at)]}


def of_language(model: str, positions: int = laws_language.POSITIONS, **options: Any) -> Options:
    """The options of a small language model on a few windows of tokens."""
    return {
        **RING, "optimizer": "adamw", "momentum": 0.0, "weight_decay_of": "matrices",
        "batch_size": 20, "steps": 3, "given": partial(laws_language.tokens, positions),
        "build": partial(laws_language.MODELS[model], positions), **options,
    }  # fmt: skip


DRAWN: dict[str, Layout] = {
    "ring": Layout(3, RING),
    "batch norm": Layout(3, {**RING, "model": "digits-cnn"}),
    "halving": Layout(4, {"allreduce": "halving", **ADAM}),
    "memory of a node": Layout(3, {"allreduce": "shared", **ADAM}),
    "two nodes": Layout(4, {"allreduce": "shared"}, per_node=2),
    "pipelines": Layout(4, PIPELINES),
    "naive": Layout(4, {**PIPELINES, "schedule": "naive"}),
    "gpipe": Layout(4, {**PIPELINES, "schedule": "gpipe"}),
    "interleaved": Layout(4, {**PIPELINES, "schedule": "interleaved", "micro_batches": 4}),
    "zb-h1": Layout(4, {**PIPELINES, "schedule": "zb-h1"}),
    "tensor parallel": Layout(4, {**RING, "dp": 2, "tp": 2}),
    "norms over tp": Layout(4, {**RING, **LAMB, "dp": 2, "tp": 2}),
    "norms of shards, backups": Layout(3, {**RING, **LAMB, "zero": 1, "backup": 1}),
    "ways of layers": Layout(4, {**RING, "dp": 2, "tp": 2, "layout": "1=column,3=row,5=samples"}),
    "sequence parallel": Layout(
        4, of_language("llama", dp=2, tp=2, sequence_parallel=True, steps=2)
    ),
    "context parallel": Layout(4, of_language("gpt", laws_language.UNEVEN, dp=2, cp=2, steps=2)),
    "experts": Layout(2, of_language("routed", tp=2, sequence_parallel=True, backup=1)),
    "mixture": Layout(4, of_language("mixture", dp=2, tp=2, steps=2)),
    "tied, recompute block": Layout(
        4, of_language("gpt", dp=2, pp=2, micro_batches=3, recompute="block", steps=2)
    ),
    "recompute stage": Layout(4, {**PIPELINES, "recompute": "stage"}),
    "swapping": Layout(3, {**RING, "memory": "300kB"}),
    "helper threads": Layout(3, {**RING, **SMALL_BUCKETS, "progress": "thread"}),
    "evaluations, copies": Layout(3, {**RING, "evaluate_every": 2, "check_copies": 2}),
    "16 bits": Layout(3, {**RING, "dtype": "bfloat16", "reduce_dtype": "bfloat16"}),
    "float16, zero 1, backups": Layout(3, {**RING, "zero": 1, "backup": 1, "dtype": "float16"}),
    "slices": Layout(3, {"reproducible": True, "slices": 4, "clip_norm": None}),
    "verify": Layout(3, {**RING, "verify": True}),
    "zero 1, backups": Layout(3, {**RING, "zero": 1, "backup": 2}),
    "zero 1 adam, backups": Layout(3, {**RING, **ADAM, "zero": 1, "backup": 1}),
    "zero 1 pp 2, backups": Layout(4, {**PIPELINES, "zero": 1, "backup": 2}),
    "zero 2, backups": Layout(3, {**RING, **SMALL_BUCKETS, "zero": 2, "backup": 2}),
    "zero 3, backups": Layout(3, {**RING, **SMALL_BUCKETS, "zero": 3, "backup": 2}),
    "zero 3 by p2p, backups": Layout(
        3, {"allreduce": "p2p", **SMALL_BUCKETS, "zero": 3, "backup": 2}
    ),
    "zero 2 zb-h1, backups": Layout(
        4, {**PIPELINES, **SMALL_BUCKETS, "schedule": "zb-h1", "zero": 2, "backup": 2}
    ),
    "zero 3, recompute, backups": Layout(
        3, of_language("llama", zero=3, bucket_mb=0.01, recompute="selective", backup=2)
    ),
    "zero 3 tp 2, backups": Layout(4, {**RING, "dp": 2, "tp": 2, "zero": 3, "backup": 2}),
    "one pipeline, backups": Layout(3, {"pp": 3, "micro_batches": 3, "backup": 1}),
    "local, plain mean": Layout(4, PLAIN_MEAN),
    "local": Layout(3, {**RING, **ADAM, "sync": "local", "every": 3}),
    "local pp 2": Layout(4, {**PIPELINES, "sync": "local", "every": 2}),
    "local nesterov": Layout(3, {**RING, "sync": "local", "every": 2, **NESTEROV}),
    "fragments": Layout(3, {**RING, **FRAGMENTS}),
    "fragments in 8 bits": Layout(3, {**RING, **FRAGMENTS, "outer_dtype": "int8"}),
    "gossip": Layout(4, {**RING, **GOSSIP, "graph": "ring"}),
    **{
        f"gossip over {graph}": Layout(4, {**RING, **GOSSIP, "graph": graph})
        for graph in ("torus", "exponential", "complete")
    },
    **{
        f"codec {codec}": Layout(3, {**RING, "compress": codec})
        for codec in ("sign", "powersgd:1", "int8")
    },
    "topk of all": Layout(3, {**RING, "compress": "topk:1"}),
    "topk": Layout(3, {**RING, "compress": "topk:0.1"}),
    "one worker": Layout(2, {"servers": 1, "model": "digits-cnn", **LONGER}),
    "servers": Layout(4, {"servers": 2, "model": "digits-cnn", **LONGER}),
    "ssp": Layout(4, {"servers": 1, "sync": "ssp", "staleness": 1, **LONGER}),
    "asp": Layout(4, {"servers": 2, "sync": "asp", **LONGER}),
    "time limit, checkpoints": Layout(
        3, {**RING, "zero": 1, "save_every": "2", "time_limit": "500s"}
    ),
    "by the clock, checkpoints": Layout(3, {**RING, "zero": 1, "save_every": "100s"}),
    "ring, checkpoints": Layout(3, {**RING, "save_every": "2", "keep_best": "accuracy"}),
    "zero 1, checkpoints": Layout(3, {**RING, "zero": 1, "save_every": "2"}),
    "zero 3, backups, checkpoints": Layout(
        3, {**RING, **SMALL_BUCKETS, "zero": 3, "backup": 2, "save_every": "1"}
    ),
    "servers, checkpoints": Layout(4, {"servers": 2, **LONGER, "save_every": "1 epochs"}),
    "ssp, checkpoints": Layout(
        4, {"servers": 1, "sync": "ssp", "staleness": 1, **LONGER, "save_every": "1 epochs"}
    ),
    "local, checkpoints": Layout(
        3, {**RING, **ADAM, "sync": "local", "every": 2, "save_every": "2"}
    ),
    "topk, checkpoints": Layout(3, {**RING, "compress": "topk:0.1", "save_every": "2"}),
    "slices, checkpoints": Layout(
        3, {"reproducible": True, "slices": 4, "clip_norm": None, "save_every": "2"}
    ),
    "pipedream": Layout(3, PIPEDREAM),
    "pipedream, checkpoints": Layout(3, {**PIPEDREAM, "save_every": "1 epochs"}),
    "stopped": Layout(3, {**RING, "callbacks": [partial(StopsAfter, 4)]}),
    "restored": Layout(3, {**RING, "callbacks": [partial(Restores, 2, 4)]}),
    "restored, checkpoints": Layout(
        3, {**RING, "save_every": "5", "callbacks": [partial(Restores, 2, 4)]}
    ),
    "restored with zero 1, checkpoints": Layout(
        3, {**RING, "save_every": "1", "callbacks": [partial(Restores, 2, 4, zero=1)]}
    ),
    "rearranged": Layout(3, {**RING, **rearranges({2: {"zero": 1}, 4: {"zero": 0}})}),
    "rearranged, checkpoints": Layout(
        3, {**RING, "zero": 1, "save_every": "1", **rearranges({4: {"zero": 3}})}
    ),
    "rearranged, backups": Layout(
        3, {**RING, "zero": 1, "backup": 2, **rearranges({2: {"zero": 3}, 4: {"zero": 1}})}
    ),
    "rearranged pp, tp": Layout(
        4, {**PIPELINES, **rearranges({2: TO_TENSOR_PARALLEL, 4: TO_PIPELINES})}
    ),
    "elastic": Layout(5, {**PIPELINES, "elastic": True, "save_every": "2"}),
    "elastic tp 2": Layout(5, {**RING, "dp": 2, "tp": 2, "elastic": True, "save_every": "2"}),
    "elastic zero 3, backups": Layout(
        3, {**RING, **SMALL_BUCKETS, "zero": 3, "backup": 2, "elastic": True, "save_every": "2"}
    ),
    "elastic, no checkpoint in time": Layout(5, {**PIPELINES, "elastic": True, "save_every": "99"}),
    **{f"all-reduce {name}": Layout(3, {"allreduce": name}) for name in OTHER_ALLREDUCES},
    "all-reduce hierarchical": Layout(4, {"allreduce": "hierarchical"}, per_node=2),
}
"""Layouts of which seeds draw one."""

TWO_STEPS = {"model": "mlp:64-8-8-10", "steps": 2, "epochs": 1}
EXHAUSTED: dict[str, Layout] = {
    "short ring": Layout(3, {**RING, **TWO_STEPS}),
    "short zero 3": Layout(3, {**RING, **TWO_STEPS, **SMALL_BUCKETS, "zero": 3, "backup": 1}),
    "short pipelines": Layout(4, {**RING, **TWO_STEPS, "dp": 2, "pp": 2, "micro_batches": 2}),
    "short servers": Layout(3, {**TWO_STEPS, "servers": 1}),
    "short local": Layout(3, {**RING, **TWO_STEPS, "sync": "local", "every": 2}),
    "short checkpoints": Layout(3, {**RING, **TWO_STEPS, "save_every": "1"}),
}
"""Small ones, of which each operation is tried; a pipeline of two stages twice needs four ranks."""

LAYOUTS = {**DRAWN, **EXHAUSTED}
