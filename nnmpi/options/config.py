"""Config: the options of a run.

Each field is a flag of `python -m nnmpi.train` and a key of a TOML file. The field's metadata has
the help text, the choices and the bounds for both.
"""

from collections.abc import Collection
from dataclasses import Field, dataclass, fields
from itertools import permutations
from typing import Any, Self

from nnmpi.arrays import dtypes
from nnmpi.arrays.backend import DEVICES
from nnmpi.arrays.kernels.conv import CONVOLUTIONS
from nnmpi.options import resume_rules as rules
from nnmpi.options import value_forms
from nnmpi.options.features import OPTIONS, AddOnOptions
from nnmpi.options.groups import (
    GROUPS,
    data_option,
    equality_option,
    files_option,
    layout_option,
    model_option,
    other_option,
    pipeline_option,
    reduce_option,
    sync_option,
    training_option,
)
from nnmpi.options.option import checked
from nnmpi.options.quoting import nearest, shown
from nnmpi.options.value_forms import ABOVE_0, FROM_0, FROM_0_BELOW_1, FROM_1, NUMBER_FROM_0

DTYPES = ("float32", "float64", "float16", "bfloat16")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
DECAYS = ("all", "matrices")
ALLREDUCES = (
    *("auto", "mpi", "shared", "ring", "tree", "ps"),
    *("p2p", "doubling", "halving", "double-tree", "dual-root", "bruck", "pat"),
    *("multiplying", "bucket", "swing", "hierarchical"),
)
PROGRESS = ("auto", "poll", "thread")
SCHEDULES = (
    *("1f1b", "naive", "gpipe", "interleaved"),
    *("zb-h1", "zb-v", "v-half", "dualpipe-v"),
)
ORDERS = tuple(",".join(axes) for axes in permutations(("tp", "dp", "pp")))
RECOMPUTED = ("none", "stage", "block")
EPOCHS, LEAST_STEPS = 10, 300
"""The default of epochs; more, if these had fewer than LEAST_STEPS steps."""

_ADDED: tuple[AddOnOptions, ...] = tuple(OPTIONS.rows())


def _choices(option: str, *names: str) -> tuple[str, ...]:
    """Returns an option's allowed values: these names, and those of add-ons."""
    return (*names, *(name for added in _ADDED for name in added.choices.get(option, ())))


_BESIDES = "".join(
    f"; {axis.name} comes just before {axis.before}" for added in _ADDED for axis in added.axes
)
"""The end of the help text of --order: the positions of the axes of add-ons."""


@dataclass(frozen=True)
class Config(*(added.options for added in _ADDED if added.options)):  # type: ignore[misc]
    """The options of a run, those of add-ons by inheritance, which type checkers do not see; raises
    ValueError for a value that is out of range."""

    model: str = model_option(
        "digits-cnn",
        "model to train: iris-mlp, digits-cnn, mnist-cnn, cifar-cnn, mlp:784-1024-10 (flattens "
        "images), gpt2, gpt:4x4x128[:512] (layers, heads, width; width within the MLP), "
        "llama:4x4x128[:2[:352]] (likewise, after the heads of keys) or package.module:function; "
        "with a folder given to --load, the model in the folder",
        custom=True,
    )
    data: str = data_option(
        "digits",
        "data set to train on: iris, digits, mnist, fashion-mnist, cifar10, text, text:FILE, "
        "tokens:FILE.npy, FILE.npz or synthetic:1x28x28:10:12800 (shape, classes, samples)",
    )
    data_dir: str | None = data_option(
        None, "directory of the data set's files, also downloaded ones", resume=rules.OTHER_OUTPUT
    )
    standardise: str = data_option(
        "auto",
        "mean and deviation by which samples are standardised: auto (those of the training data, "
        "or of the file of --load), none, or MEAN,STD for all samples, as --standardise=0.13,0.31",
    )
    download: bool = data_option(
        False, "download the data set's files if they are missing", resume=rules.OTHER_OUTPUT
    )
    epochs: int | None = training_option(
        None,
        f"passes over the training data; default: {EPOCHS}, or more to make {LEAST_STEPS} steps",
        FROM_1,
        resume=rules.OTHER_LENGTH,
    )
    steps: int | None = training_option(
        None, "stop after this many steps", FROM_1, resume=rules.OTHER_LENGTH
    )
    batch_size: int = training_option(
        64, "number of samples in a batch, over all ranks", FROM_1, resume=rules.OTHER_BATCHES
    )
    bucket_by_length: bool = training_option(
        False,
        "batch samples of similar length together, by the model's input `lengths`",
        resume=rules.OTHER_BATCHES,
    )
    lr: float = training_option(3e-3, "learning rate", ABOVE_0)
    optimizer: str = training_option(
        "adam",
        "rule that updates the parameters; muon updates matrices, and adamw the others then",
        choices=_choices("optimizer", *OPTIMIZERS),
        resume=rules.OTHER_STATE,
    )
    momentum: float = training_option(
        0.9, "momentum of sgd and lars; 0 for none", FROM_0_BELOW_1, resume=rules.OTHER_STATE
    )
    weight_decay: float = training_option(
        0.0, "weight decay: an L2 penalty; decoupled in adamw, lamb and muon", NUMBER_FROM_0
    )
    weight_decay_of: str = training_option(
        "all", "parameters that decay: all, or those with two or more axes", choices=DECAYS
    )
    lr_schedule: str = training_option(
        "cosine",
        "rate over time: constant, cosine, step:EVERY[:FACTOR], or warmup:STEPS+ and one of these",
        form=value_forms.rate,
    )
    augment: str | None = training_option(
        None,
        "vary training images in each epoch: crop:PIXELS shifts them by up to this many pixels, "
        "flip mirrors them at random, and crop:4+flip does both",
        form=value_forms.augment,
        resume=rules.OTHER_SAMPLES,
    )
    clip_norm: float | None = training_option(
        None, "scale the gradient down to this norm if its norm is larger", ABOVE_0
    )
    seed: int = training_option(
        0,
        "seed of weights, batch order, dropout and held-out data",
        FROM_0,
        resume=rules.OTHER_BATCHES,
    )
    dtype: str = training_option(
        "float32",
        "type of parameters and samples; with 16 bits, the optimizer updates float32 copies",
        choices=DTYPES,
        resume=rules.OTHER_STATE,
    )
    device: str = training_option(
        "cpu", "device to compute on", choices=DEVICES, resume=rules.OTHER_RANKS
    )
    convolution: str = training_option(
        "auto",
        "algorithm of 3x3 convolutions; im2col is slower and a little more exact",
        choices=CONVOLUTIONS,
        resume=rules.OTHER_RANKS,
    )
    dp: int | None = layout_option(
        None,
        "number of data-parallel groups, which share each batch; default: as many as ranks allow",
        FROM_1,
    )
    pp: int = layout_option(
        1, "pipeline-parallel ranks: each holds some layers of the model", FROM_1
    )
    tp: int = layout_option(
        1, "tensor-parallel ranks: each holds some channels of every layer", FROM_1
    )
    sequence_parallel: bool = layout_option(
        False, "with --tp: between sharded layers, each rank holds some positions of every sample"
    )
    layout: str | None = layout_option(
        None,
        "axes of activations and the mesh axes along which they are cut (batch:dp,channels:tp), "
        "and how ranks along tp share layers (features.*=samples); or a FILE.toml with both",
        form=value_forms.layout,
    )
    order: str = layout_option(
        "tp,dp,pp",
        "tp, dp and pp from the fastest mesh axis to the slowest: ranks along the first axis are "
        f"consecutive, and so mostly on one node{_BESIDES}",
        choices=ORDERS,
    )
    zero: int = layout_option(
        0,
        "state that is sharded along dp instead of replicated: optimizer state (1), also "
        "gradients (2), also parameters (3)",
        choices=(0, 1, 2, 3),
    )
    micro_batches: int = pipeline_option(
        1,
        "parts of a batch, computed one after another; their gradients are accumulated",
        FROM_1,
        resume=rules.OTHER_PARTS,
    )
    schedule: str = pipeline_option(
        "1f1b", "order of pipeline passes", choices=_choices("schedule", *SCHEDULES), custom=True
    )
    virtual_stages: int = pipeline_option(
        2, "stages on each rank, with --schedule interleaved", FROM_1
    )
    cut: str | None = pipeline_option(
        None, "layers where stages 1, 2, ... begin, such as 3,7; default: balanced by measurements"
    )
    recompute: str = pipeline_option(
        "none",
        "what keeps only its input and runs forward again for its backward pass: stage (of a "
        "pipeline; without a value), block (each numbered block of a model) or selective "
        "(attention)",
        choices=_choices("recompute", *RECOMPUTED),
        bare="stage",
    )
    allreduce: str = reduce_option(
        "auto",
        "all-reduce algorithm for the gradients: "
        f"{', '.join(_choices('allreduce', *ALLREDUCES))} or package.module:NAME",
        choices=_choices("allreduce", *ALLREDUCES),
        custom=True,
    )
    reduce_dtype: str = reduce_option(
        "float32",
        "with a 16-bit --dtype: type of partial sums of gradients and activations over ranks, "
        "float32 or that of --dtype, which is rounded after each addition and sends fewer bytes",
        choices=("float32", *dtypes.HALVES),
    )
    bucket_mb: float | None = reduce_option(
        None, "gradients per all-reduce, in MB; default: 1, or all of them on one node", ABOVE_0
    )
    overlap: bool = reduce_option(True, "start all-reduces during the backward pass, not after it")
    progress: str = reduce_option(
        "auto",
        "how messages advance during the backward pass: by polling between layers, or by a "
        "thread; auto uses a thread if there are idle cores",
        choices=PROGRESS,
    )
    sync: str = sync_option(
        "bsp",
        "ranks that a step waits for: all (bsp), those more than --staleness steps behind (ssp), "
        "or none (asp); local: replicas meet every --every steps only; gossip: neighbours meet",
        choices=_choices("sync", "bsp"),
        resume=rules.OTHER_STEPS,
    )
    compile: bool | None = training_option(
        None,
        "record the passes of each stage once, and replay them as lists of kernels; default: where "
        "all layers are nnmpi's own",
        resume=rules.OTHER_OUTPUT,
    )
    check_copies: int = equality_option(
        1000,
        "compare copies of parameters on different ranks every so many steps, and at the end those "
        "of buffers too; 0: never",
        FROM_0,
    )
    save: str | None = files_option(
        None, "write the trained model to a safetensors file, or to FOLDER/ of GPT-2 or Llama"
    )
    load: str | None = files_option(
        None,
        "start from a safetensors file, a state_dict of torch.save, or a folder of GPT-2 or Llama",
    )
    load_partial: bool = files_option(
        False, "with --load: take tensors whose names and shapes fit; others keep initial values"
    )
    log: str | None = files_option(None, "write events to this file, one JSON object per line")
    append: bool = files_option(False, "append to a --log that has the events of another run")
    log_every: int | None = files_option(
        None,
        "report loss, gradient norm, rate and speed every so many steps (0: never); default: so "
        "that a run has about 200 such events",
        FROM_0,
    )
    evaluate_every: int | None = other_option(
        None, "evaluate every so many steps too, not only after each epoch", FROM_1
    )
    json: bool = other_option(False, "print events as JSON, one object per line, instead of text")
    quiet: bool = other_option(False, "print only the result")

    def __new__(cls, *_: Any, **given: Any) -> Self:
        known = [entry.name for entry in options()]
        for name in given:
            if name not in known:
                raise ValueError(f"Config: {not_an_option(name)}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for entry in options():
            object.__setattr__(self, entry.name, checked(entry, getattr(self, entry.name)))

    @property
    def cuts_positions(self) -> bool:
        """True if ranks along tp divide positions, by option."""
        along_tp = value_forms.layout(self.layout).along("tp") if self.layout else ()
        return self.sequence_parallel or "length" in along_tp


def options(groups: Collection[str] = GROUPS) -> "tuple[Field[Any], ...]":
    """Returns the options of groups as fields, those of add-ons last."""
    return tuple(entry for entry in _OPTIONS if entry.metadata["group"] in groups)


_OPTIONS = sorted(
    fields(Config),
    key=lambda o: (GROUPS.index(o.metadata["group"]), o.name not in Config.__annotations__),
)


def not_an_option(name: str) -> str:
    known = [entry.name for entry in options()]
    return f"{shown(name)} is not an option{nearest(name.replace('-', '_'), known)}"
