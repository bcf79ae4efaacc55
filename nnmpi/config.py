"""Config: the options of a run.

Each field is a flag of `python -m nnmpi.train` and a key of a TOML file; its metadata has the help
text, the choices and the bounds of both.
"""

import math
import os
import sys
from dataclasses import Field, dataclass, field, fields
from itertools import permutations
from numbers import Integral, Real
from typing import Any, get_args

from nnmpi import user_code
from nnmpi.backend import DEVICES
from nnmpi.quoting import quoted

DTYPES = ("float32", "float64")
CONVOLUTIONS = ("auto", "winograd2", "winograd4", "im2col")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
ALLREDUCES = (
    *("auto", "mpi", "shared", "ring", "tree", "ps"),
    *("p2p", "doubling", "halving", "hierarchical"),
)
PROGRESS = ("auto", "poll", "thread")
SCHEDULES = ("1f1b", "naive", "gpipe", "interleaved", "zb-h1", "pipedream")
SYNCS = ("bsp", "ssp", "asp")
ORDERS = tuple(",".join(axes) for axes in permutations(("tp", "dp", "pp")))
EPOCHS, LEAST_STEPS = 10, 300
"""A run that names no number of epochs has so many, or more where batches are few."""
LARGEST = 2**63 - 1  # integer; larger ones fit no counter
LONGEST = 4096  # characters of a text, as of a path
_NUMBERS: dict[type, type] = {int: Integral, float: Real}  # accepted types: NumPy's too


def _option(
    group: str,
    default: Any,
    text: str,
    choices: tuple[Any, ...] = (),
    least: int | None = None,
    alias: str | None = None,
    custom: bool = False,
) -> Any:
    """A field with its metadata.

    `least` is the smallest value, `alias` a second name. With `custom`, package.module:NAME is a
    choice too.
    """
    metadata = {"group": group, "help": text, "choices": choices, "custom": custom}
    return field(default=default, metadata={**metadata, "least": least, "alias": alias})


@dataclass(frozen=True)
class Config:
    """The options of a run; raises ValueError for a value that is out of range."""

    model: str = _option(
        "model",
        "digits-cnn",
        "iris-mlp, digits-cnn, mnist-cnn, cifar-cnn, "
        "mlp:784-1024-10 (flattens images) or package.module:function",
    )
    data: str = _option(
        "data",
        "digits",
        "iris, digits, mnist, fashion-mnist, cifar10, FILE.npz "
        "or synthetic:1x28x28:10:12800 (shape, classes, samples)",
    )
    data_dir: str | None = _option("data", None, "directory of the data set's files")
    download: bool = _option("data", False, "download missing files of the data set")
    epochs: int | None = _option(
        "training",
        None,
        f"passes over the training data; default: {EPOCHS}, or as many as make {LEAST_STEPS} steps",
        least=1,
    )
    steps: int | None = _option("training", None, "stop after this many steps", least=1)
    batch_size: int = _option("training", 64, "samples in a batch, over all ranks", least=1)
    lr: float = _option("training", 3e-3, "learning rate")
    optimizer: str = _option("training", "adam", "update rule", OPTIMIZERS)
    momentum: float = _option("training", 0.9, "momentum of sgd; 0 for none")
    weight_decay: float = _option(
        "training", 0.0, "weight decay: decoupled in adamw, an L2 penalty in the others"
    )
    lr_schedule: str = _option(
        "training",
        "cosine",
        "constant, cosine, step:EVERY[:FACTOR], or warmup:STEPS+ followed by one of these",
    )
    clip_norm: float | None = _option(
        "training", None, "scale the gradient down to this norm if it is larger"
    )
    seed: int = _option(
        "training", 0, "seed of weights, batch order, dropout and held-out data", least=0
    )
    dtype: str = _option("training", "float32", "type of parameters and samples", DTYPES)
    device: str = _option("training", "cpu", "where to compute", DEVICES)
    convolution: str = _option(
        "training",
        "auto",
        "algorithm of 3x3 convolutions; winograd4 is faster and less accurate",
        CONVOLUTIONS,
    )
    dp: int | None = _option(
        "layout",
        None,
        "data-parallel groups of ranks, which share each batch; default: as many as there are",
        least=1,
    )
    pp: int = _option(
        "layout", 1, "pipeline-parallel ranks: each has some layers of the model", least=1
    )
    tp: int = _option(
        "layout", 1, "tensor-parallel ranks: each has some channels of every layer", least=1
    )
    order: str = _option(
        "layout",
        "tp,dp,pp",
        "tp, dp and pp from the fastest axis to the slowest: ranks along the first one are "
        "consecutive, and so mostly on one node",
        ORDERS,
    )
    zero: int = _option(
        "layout",
        0,
        "what ranks along dp have a part of only: optimizer state (1), gradients too (2), "
        "parameters too (3)",
        (0, 1, 2, 3),
    )
    micro_batches: int = _option(
        "pipeline",
        1,
        "parts of a batch, computed one after the other; their gradients are accumulated",
        least=1,
    )
    schedule: str = _option("pipeline", "1f1b", "order of forward and backward passes", SCHEDULES)
    virtual_stages: int = _option(
        "pipeline", 2, "stages on each rank, with --schedule interleaved", least=1
    )
    cut: str | None = _option(
        "pipeline",
        None,
        "layers at which the second and later stages begin, such as 3,7; default: measured",
    )
    recompute: bool = _option(
        "pipeline",
        False,
        "keep the input of a stage only, and run its forward pass again for the backward pass",
    )
    vertical_sync: bool = _option(
        "pipeline",
        False,
        "with --schedule pipedream: all stages use the version of the weights that the first had",
    )
    allreduce: str = _option(
        "reduce",
        "auto",
        f"all-reduce algorithm for the gradients: {', '.join(ALLREDUCES)} or package.module:NAME",
        ALLREDUCES,
        custom=True,
    )
    bucket_mb: float | None = _option(
        "reduce", None, "gradients in one all-reduce, in MB; default: 1, or all of them on one node"
    )
    overlap: bool = _option(
        "reduce", True, "start all-reduces during the backward pass, not after it"
    )
    progress: str = _option(
        "reduce",
        "auto",
        "what advances messages during the backward pass: polling between layers, or a thread; "
        "auto: a thread if cores are idle",
        PROGRESS,
    )
    sync: str = _option(
        "sync",
        "bsp",
        "which ranks a step waits for: all (bsp), those more than --staleness steps behind (ssp), "
        "none (asp)",
        SYNCS,
    )
    staleness: int = _option(
        "sync", 0, "steps that a rank may be ahead of the slowest with ssp", least=0
    )
    servers: int = _option(
        "sync",
        0,
        "ranks that are parameter servers, the last ones; default: 1 for ssp and asp, 0 for bsp",
        least=0,
    )
    slow_rank: str | None = _option(
        "sync", None, "R:FACTOR[,R:FACTOR]: slow these ranks down, for experiments"
    )
    jitter: str | None = _option(
        "sync", None, "P:FACTOR: slow each rank down in a random fraction P of its steps"
    )
    verify: bool = _option("equality", False, "also train on one rank, and compare after each step")
    reproducible: bool = _option(
        "equality", False, "the same bits on any number of ranks up to --slices"
    )
    slices: int = _option(
        "equality",
        8,
        "parts of a batch that --reproducible computes one by one",
        alias="shards",
        least=1,
    )
    save: str | None = _option("files", None, "write the trained model (safetensors)")
    load: str | None = _option("files", None, "start from a saved model (safetensors)")
    log: str | None = _option("files", None, "write events to this file, one JSON a line")
    trace: str | None = _option(
        "files", None, "write what each rank does when to this file, as a Chrome/Perfetto trace"
    )
    dry_run: bool = _option(
        "other", False, "print the layout, memory, messages and steps without training"
    )
    ranks: int | None = _option(
        "other", None, "with --dry-run: as if there were so many ranks", least=1
    )
    json: bool = _option("other", False, "print events as JSON, one object a line, not as text")
    quiet: bool = _option("other", False, "print only the result")

    def __post_init__(self) -> None:
        for option in options():
            self._check(option)
        if self.bucket_mb is not None and not 0 < self.bucket_mb < math.inf:
            raise ValueError(
                f"bucket_mb {self.bucket_mb} must be a number above 0; 1 suits most networks"
            )
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr {self.lr} must be a number above 0; 0.003 suits adam")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum} must be at least 0 and less than 1")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay {self.weight_decay} must be a number and at least 0")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(
                f"clip_norm {self.clip_norm} must be a number above 0; leave it out for none"
            )

    def _check(self, option: "Field[Any]") -> None:
        """Checks type, choices and the smallest value; converts NumPy's numbers to Python's."""
        value: Any = getattr(self, option.name)
        kind = kind_of(option)
        if isinstance(value, _NUMBERS.get(kind, ())) and not isinstance(value, bool):
            try:
                object.__setattr__(self, option.name, kind(value))
            except OverflowError:
                raise ValueError(
                    f"{option.name} is larger than {sys.float_info.max:g}, the largest float"
                ) from None
        elif not (value is None and option.default is None) and type(value) is not kind:
            raise ValueError(f"{option.name} {quoted(value)} is not of type {kind.__name__}")
        if isinstance(value, str):
            check_text(option.name, value)
        choices = option.metadata["choices"]
        custom = option.metadata["custom"]
        if choices and value not in choices and not (custom and user_code.is_named(str(value))):
            known = ", ".join([*map(str, choices), *["package.module:NAME"] * custom])
            raise ValueError(f"{option.name} {quoted(value)} is not one of {known}")
        value, least = getattr(self, option.name), option.metadata["least"]
        if None not in (value, least) and value < least:
            raise ValueError(f"{option.name} {quoted(value)} must be at least {least}")
        if kind is int and value is not None and value > LARGEST:
            raise ValueError(f"{option.name} {quoted(value)} must be at most {LARGEST}")


def options() -> "tuple[Field[Any], ...]":
    """All options, in the order of --help."""
    return fields(Config)


def kind_of(option: "Field[Any]") -> type:
    """The type of an option: int for int and for int | None."""
    kinds: tuple[type, ...] = get_args(option.type) or (option.type,)
    return kinds[0]


def check_text(name: str, value: str) -> None:
    """Raises ValueError for text that is no name of anything, of a file neither."""
    if not value:
        raise ValueError(f"{name} is empty; give it a value or leave it out")
    if "\0" in value:
        raise ValueError(f"{name} {quoted(value)} contains a NUL character; leave it out")
    if len(value) > LONGEST:
        raise ValueError(f"{name} {quoted(value)} must have at most {LONGEST:,} characters")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} {quoted(value)} is not text: {error}") from None
