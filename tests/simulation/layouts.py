"""What is trained under the simulation: small layouts of every strategy that survives a loss."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from helpers.training.recovered import COMMON, PLAIN_MEAN, RING

from nnmpi import Trainer
from nnmpi.io.output import Event

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
        return "callbacks" in self.given

    @property
    def is_ordered(self) -> bool:
        """True if results do not depend on the order in which messages arrive."""
        return self.options.get("sync") not in ("asp", "ssp")

    @property
    def is_exact(self) -> bool:
        """True if fewer ranks train as more: what is left after a loss equals the whole run."""
        averages = self.options.get("every", 1) > 1
        loses_parts = self.options.get("compress") == "topk:0.1"
        return self.is_ordered and not averages and not loses_parts

    @property
    def is_repeatable(self) -> bool:
        """True if fewer ranks give the same bits as more."""
        return bool(self.options.get("reproducible"))

    def copies(self, alive: int) -> int:
        """How many ranks have each part of the model, while so many are alive: one in each replica
        without ZeRO, and one more with --backup."""
        options = self.options
        replicas = alive // (options.get("pp", 1) * options.get("tp", 1))
        is_sharded = options.get("zero") or self.arranges_anew or self.servers
        return (1 if is_sharded else replicas) + ("backup" in options)


ADAM = {"optimizer": "adam", "lr": 0.01}
SMALL_BUCKETS = {"bucket_mb": 0.001}
PIPELINES = {**RING, "dp": 2, "pp": 2, "micro_batches": 3}
LONGER = {"steps": 12, "epochs": 3}
NESTEROV = {"outer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9}
TO_PIPELINES = {"pp": 2, "tp": 1, "micro_batches": 3}
TO_TENSOR_PARALLEL = {"pp": 1, "tp": 2, "micro_batches": 1}


def rearranges(at: Mapping[int, Options]) -> Options:
    """The option of a callback that arranges ranks anew after these steps."""
    return {"callbacks": [Rearranges(at)]}


DRAWN: dict[str, Layout] = {
    "ring": Layout(3, RING),
    "batch norm": Layout(3, {**RING, "model": "digits-cnn"}),
    "halving": Layout(4, {"allreduce": "halving", **ADAM}),
    "memory of a node": Layout(3, {"allreduce": "shared", **ADAM}),
    "two nodes": Layout(4, {"allreduce": "shared"}, per_node=2),
    "pipelines": Layout(4, PIPELINES),
    "gpipe": Layout(4, {**PIPELINES, "schedule": "gpipe"}),
    "interleaved": Layout(4, {**PIPELINES, "schedule": "interleaved", "micro_batches": 4}),
    "zb-h1": Layout(4, {**PIPELINES, "schedule": "zb-h1"}),
    "tensor parallel": Layout(4, {**RING, "dp": 2, "tp": 2}),
    "slices": Layout(3, {"reproducible": True, "slices": 4, "clip_norm": None}),
    "verify": Layout(3, {**RING, "verify": True}),
    "zero 1, backups": Layout(3, {**RING, "zero": 1, "backup": 2}),
    "zero 1 adam, backups": Layout(3, {**RING, **ADAM, "zero": 1, "backup": 1}),
    "zero 1 pp 2, backups": Layout(4, {**PIPELINES, "zero": 1, "backup": 2}),
    "zero 2, backups": Layout(3, {**RING, **SMALL_BUCKETS, "zero": 2, "backup": 2}),
    "zero 3, backups": Layout(3, {**RING, **SMALL_BUCKETS, "zero": 3, "backup": 2}),
    "zero 3 tp 2, backups": Layout(4, {**RING, "dp": 2, "tp": 2, "zero": 3, "backup": 2}),
    "one pipeline, backups": Layout(3, {"pp": 3, "micro_batches": 3, "backup": 1}),
    "local, plain mean": Layout(4, PLAIN_MEAN),
    "local": Layout(3, {**RING, **ADAM, "sync": "local", "every": 3}),
    "local pp 2": Layout(4, {**PIPELINES, "sync": "local", "every": 2}),
    "local nesterov": Layout(3, {**RING, "sync": "local", "every": 2, **NESTEROV}),
    "fragments": Layout(
        3, {**RING, **ADAM, "sync": "local", "every": 3, "fragments": 2, "apply_after": 1}
    ),
    "gossip": Layout(4, {**RING, "sync": "gossip", "every": 2, "graph": "ring", "clip_norm": None}),
    "topk of all": Layout(3, {**RING, "compress": "topk:1"}),
    "topk": Layout(3, {**RING, "compress": "topk:0.1"}),
    "one worker": Layout(2, {"servers": 1, "model": "digits-cnn", **LONGER}),
    "servers": Layout(4, {"servers": 2, "model": "digits-cnn", **LONGER}),
    "ssp": Layout(4, {"servers": 1, "sync": "ssp", "staleness": 1, **LONGER}),
    "asp": Layout(4, {"servers": 2, "sync": "asp", **LONGER}),
    "ring, checkpoints": Layout(3, {**RING, "save_every": "2", "keep_best": "accuracy"}),
    "zero 1, checkpoints": Layout(3, {**RING, "zero": 1, "save_every": "2"}),
    "zero 3, backups, checkpoints": Layout(
        3, {**RING, **SMALL_BUCKETS, "zero": 3, "backup": 2, "save_every": "1"}
    ),
    "servers, checkpoints": Layout(4, {"servers": 2, **LONGER, "save_every": "1 epochs"}),
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
