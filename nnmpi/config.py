"""Config: everything a run depends on, in one frozen value.

The fields are the flags of `python -m nnmpi.train` and the keys of a TOML file;
each says in its metadata what it means, so that there is one list of them.
"""

import math
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from nnmpi.backend import DEVICES

DTYPES = ("float32", "float64")
CONVOLUTIONS = ("auto", "winograd2", "winograd4", "im2col")
OPTIMIZERS = ("sgd", "adam", "adamw")
ALLREDUCES = (
    *("auto", "mpi", "shared", "ring", "tree", "ps"),
    *("p2p", "doubling", "halving", "hierarchical"),
)
PROGRESS = ("auto", "poll", "thread")
SYNCS = ("bsp", "ssp", "asp")
_NUMBERS: dict[type, type] = {int: Integral, float: Real}  # what is taken for one, NumPy's too


def _option(
    group: str,
    default: Any,
    kind: type,
    text: str,
    choices: tuple[str, ...] = (),
    alias: str | None = None,
) -> Any:
    """A field with what the command line and the TOML reader need; `alias` is an older name."""
    metadata = {"group": group, "kind": kind, "help": text, "choices": choices, "alias": alias}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """A run: model, data, training, files. Unusable values raise ValueError, one line each."""

    model: str = _option(
        "model",
        "digits-cnn",
        str,
        "iris-mlp, digits-cnn, mnist-cnn, cifar-cnn, "
        "mlp:784-1024-10 (flattens images) or package.module:function",
    )
    data: str = _option(
        "data",
        "digits",
        str,
        "iris, digits, mnist, fashion-mnist, cifar10, FILE.npz "
        "or synthetic:1x28x28:10:12800 (shape, classes, samples)",
    )
    data_dir: str | None = _option("data", None, str, "where the files of a data set are")
    download: bool = _option("data", False, bool, "fetch missing files of a data set")
    epochs: int = _option("training", 10, int, "passes over the training data")
    steps: int | None = _option("training", None, int, "stop after so many steps")
    batch_size: int = _option("training", 64, int, "samples in a step, over all ranks")
    lr: float = _option("training", 2e-3, float, "learning rate")
    optimizer: str = _option("training", "adam", str, "how parameters are moved", OPTIMIZERS)
    momentum: float = _option("training", 0.9, float, "of sgd; 0 for none")
    weight_decay: float = _option("training", 0.0, float, "pull towards zero")
    lr_schedule: str = _option(
        "training",
        "constant",
        str,
        "constant, cosine, step:EVERY[:FACTOR], and warmup:STEPS+ one of these",
    )
    clip_norm: float | None = _option("training", None, float, "largest norm of a gradient")
    seed: int = _option("training", 0, int, "of weights, order, dropout and held-out data")
    dtype: str = _option("training", "float32", str, "type of parameters", DTYPES)
    device: str = _option("training", "cpu", str, "where to compute", DEVICES)
    convolution: str = _option(
        "training",
        "auto",
        str,
        "algorithm of 3x3 convolutions; winograd4: faster, less exact",
        CONVOLUTIONS,
    )
    dp: int | None = _option("layout", None, int, "ranks that share each batch; default: all")
    micro_batches: int = _option(
        "pipeline", 1, int, "parts of a batch, one after the other, before gradients are summed"
    )
    allreduce: str = _option("reduce", "auto", str, "how gradients are summed", ALLREDUCES)
    bucket_mb: float | None = _option(
        "reduce",
        None,
        float,
        "gradients that are sent together, in MB; default: 1, or all on one node",
    )
    overlap: bool = _option("reduce", True, bool, "sum gradients while the backward pass runs")
    progress: str = _option(
        "reduce",
        "auto",
        str,
        "who pushes messages: the backward pass between layers, or a thread; "
        "auto: a thread where cores are spare",
        PROGRESS,
    )
    sync: str = _option(
        "sync",
        "bsp",
        str,
        "whether steps wait for all ranks (bsp), for those too far behind (ssp), or none (asp)",
        SYNCS,
    )
    staleness: int = _option("sync", 0, int, "of ssp: steps that a rank may be ahead of another")
    servers: int = _option(
        "sync",
        0,
        int,
        "ranks that hold the parameters, the last ones; default: 1 of ssp and asp, none of bsp",
    )
    slow_rank: str | None = _option(
        "sync", None, str, "R:FACTOR[,R:FACTOR]: slow ranks down, for experiments"
    )
    jitter: str | None = _option(
        "sync", None, str, "P:FACTOR: slow ranks down at random, at a share P of their steps"
    )
    verify: bool = _option("equality", False, bool, "train on one rank too, and compare each step")
    reproducible: bool = _option(
        "equality", False, bool, "the same bits for any number of ranks, up to that of slices"
    )
    slices: int = _option(
        "equality",
        8,
        int,
        "of --reproducible: parts of a batch, computed alone (older name: shards)",
        alias="shards",
    )
    save: str | None = _option("files", None, str, "write the trained model (safetensors)")
    load: str | None = _option("files", None, str, "start from a saved model")
    log: str | None = _option("files", None, str, "write one JSON object a line")
    dry_run: bool = _option("other", False, bool, "print model, memory and steps, train nothing")
    quiet: bool = _option("other", False, bool, "print the result only")

    def __post_init__(self) -> None:
        for option in options():
            self._check_type(option)
        _at_least("epochs", self.epochs, 1)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("seed", self.seed, 0)
        for name in ("micro_batches", "slices"):
            _at_least(name, getattr(self, name), 1)
        for name in ("staleness", "servers"):
            _at_least(name, getattr(self, name), 0)
        for name in ("steps", "dp"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        if self.bucket_mb is not None and not self.bucket_mb > 0:
            raise ValueError(f"bucket_mb {self.bucket_mb} must be above 0; 1 suits most networks")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr {self.lr} must be a number above 0; 0.002 suits adam")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum} must be at least 0 and less than 1")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay {self.weight_decay} must be a number and at least 0")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(
                f"clip_norm {self.clip_norm} must be a number above 0; leave it out for none"
            )

    def _check_type(self, option: "Field[Any]") -> None:
        """The value is of its kind and one of its choices; numbers become Python's own."""
        value, kind = getattr(self, option.name), option.metadata["kind"]
        if isinstance(value, _NUMBERS.get(kind, ())) and not isinstance(value, bool):
            try:
                object.__setattr__(self, option.name, kind(value))
            except OverflowError:
                raise ValueError(
                    f"{option.name} is beyond {sys.float_info.max:g}, the largest float"
                ) from None
        elif not (value is None and option.default is None) and type(value) is not kind:
            raise ValueError(f"{option.name} {value!r} is not of type {kind.__name__}")
        if value == "":
            raise ValueError(f"{option.name} is empty; give it a value or leave it out")
        choices = option.metadata["choices"]
        if choices and value not in choices:
            raise ValueError(f"{option.name} {value!r} is not one of {', '.join(choices)}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} {value} must be at least {least}")


def options() -> "tuple[Field[Any], ...]":
    """All options, in the order of the page that describes them."""
    return fields(Config)


def from_toml(path: str, base: Config | None = None) -> Config:
    """The options in a TOML file over those of `base`; keys may stand in tables by group."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"config {path}: {reason}; name a TOML file that can be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config {path} is not TOML: {error}") from None
    found: dict[str, Any] = {}
    aliases = {o.metadata["alias"]: o.name for o in options()}
    for key, value in _flat(table):
        name = aliases.get(key.replace("-", "_"), key.replace("-", "_"))
        if name not in {o.name for o in options()}:
            near = get_close_matches(name, [o.name for o in options()], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"config {path}: {key} is not an option{hint}")
        if name in found:
            raise ValueError(f"config {path}: {name} is there twice; keep one of them")
        found[name] = value
    try:
        return replace(base or Config(), **found)
    except ValueError as error:
        raise ValueError(f"config {path}: {error}") from None


def _flat(table: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """The keys of a table and of the tables in it that are named after a group."""
    groups = {o.metadata["group"] for o in options()}
    for key, value in table.items():
        if isinstance(value, dict) and key in groups:
            yield from value.items()
        else:
            yield key, value
