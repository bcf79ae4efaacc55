"""Config: the options of a run.

Each field is a flag of `python -m nnmpi.train` and a key of a TOML file; its metadata has the help
text, the choices and the bounds of both.
"""

from collections.abc import Collection
from dataclasses import Field, dataclass, fields
from functools import partial
from itertools import permutations
from typing import Any, Self

from nnmpi.arrays import dtypes
from nnmpi.arrays.backend import DEVICES
from nnmpi.options import terms
from nnmpi.options.option import checked, option
from nnmpi.options.quoting import nearest, shown
from nnmpi.options.terms import ABOVE_0, FROM_0, FROM_0_BELOW_1, FROM_1, NUMBER_FROM_0

DTYPES = ("float32", "float64", "float16", "bfloat16")
CONVOLUTIONS = ("auto", "winograd2", "winograd4", "im2col")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
DECAYS = ("all", "matrices")
ALLREDUCES = (
    *("auto", "mpi", "shared", "ring", "tree", "ps"),
    *("p2p", "doubling", "halving", "hierarchical", "nccl"),
)
PROGRESS = ("auto", "poll", "thread")
SCHEDULES = ("1f1b", "naive", "gpipe", "interleaved", "zb-h1", "pipedream")
SYNCS = ("bsp", "ssp", "asp")
ORDERS = tuple(",".join(axes) for axes in permutations(("tp", "dp", "pp")))
EPOCHS, LEAST_STEPS = 10, 300
"""A run that names no number of epochs has so many, or more where batches are few."""

_model = partial(option, "model")
_data = partial(option, "data")
_training = partial(option, "training")
_layout = partial(option, "layout")
_pipeline = partial(option, "pipeline")
_reduce = partial(option, "reduce")
_sync = partial(option, "sync")
_equality = partial(option, "equality")
_files = partial(option, "files")
_checkpoints = partial(option, "checkpoints")
_other = partial(option, "other")


@dataclass(frozen=True)
class Config:
    """The options of a run; raises ValueError for a value that is out of range."""

    model: str = _model(
        "digits-cnn",
        "iris-mlp, digits-cnn, mnist-cnn, cifar-cnn, "
        "mlp:784-1024-10 (flattens images), gpt2, gpt:4x4x128 (layers, heads, width) "
        "or package.module:function; with a folder of --load: what is there",
        custom=True,
    )
    dropout: float = _model(
        0.0, "probability of dropout in gpt models; GPT-2 was trained with 0.1", FROM_0_BELOW_1
    )
    data: str = _data(
        "digits",
        "iris, digits, mnist, fashion-mnist, cifar10, text, text:FILE, tokens:FILE.npy, FILE.npz "
        "or synthetic:1x28x28:10:12800 (shape, classes, samples)",
    )
    data_dir: str | None = _data(None, "directory of the data set's files")
    standardise: str = _data(
        "auto",
        "mean and deviation by which samples become numbers around 0: auto (of the training data, "
        "or of the file of --load), none, or MEAN,STD for all of them, as --standardise=0.13,0.31",
    )
    context: int = _data(128, "tokens in a window of text", FROM_1)
    tokenizer: str | None = _data(
        None,
        "tokens of a text: a folder with vocab.json and merges.txt (byte-level BPE), or a "
        "tokenizer.json; default: characters, or bytes of what is no UTF-8",
    )
    download: bool = _data(False, "download missing files of the data set")
    epochs: int | None = _training(
        None,
        f"passes over the training data; default: {EPOCHS}, or as many as make {LEAST_STEPS} steps",
        FROM_1,
    )
    steps: int | None = _training(None, "stop after this many steps", FROM_1)
    batch_size: int = _training(64, "samples in a batch, over all ranks", FROM_1)
    bucket_by_length: bool = _training(
        False, "make batches of samples of similar length, which their input `lengths` says"
    )
    lr: float = _training(3e-3, "learning rate", ABOVE_0)
    optimizer: str = _training("adam", "update rule", choices=OPTIMIZERS)
    momentum: float = _training(0.9, "momentum of sgd; 0 for none", FROM_0_BELOW_1)
    weight_decay: float = _training(
        0.0, "weight decay: decoupled in adamw, an L2 penalty in the others", NUMBER_FROM_0
    )
    weight_decay_of: str = _training(
        "all", "what decays: all parameters, or those with two axes or more", choices=DECAYS
    )
    lr_schedule: str = _training(
        "cosine",
        "constant, cosine, step:EVERY[:FACTOR], or warmup:STEPS+ followed by one of these",
        form=terms.rate,
    )
    augment: str | None = _training(
        None,
        "crop:PIXELS, flip or both, as crop:4+flip: training images are moved by up to so many "
        "pixels, and mirrored, in another way in each epoch",
        form=terms.augment,
    )
    clip_norm: float | None = _training(
        None, "scale the gradient down to this norm if it is larger", ABOVE_0
    )
    seed: int = _training(0, "seed of weights, batch order, dropout and held-out data", FROM_0)
    dtype: str = _training(
        "float32",
        "type of parameters and samples; with one of 16 bits the optimizer updates float32 copies",
        choices=DTYPES,
    )
    device: str = _training("cpu", "where to compute", choices=DEVICES)
    tf32: bool = _training(
        False, "on a GPU: round factors of float32 products to 11 bits, which is faster"
    )
    convolution: str = _training(
        "auto",
        "algorithm of 3x3 convolutions; winograd2 and im2col are slower and a little more exact",
        choices=CONVOLUTIONS,
    )
    dp: int | None = _layout(
        None,
        "data-parallel groups of ranks, which share each batch; default: as many as there are",
        FROM_1,
    )
    pp: int = _layout(1, "pipeline-parallel ranks: each has some layers of the model", FROM_1)
    tp: int = _layout(1, "tensor-parallel ranks: each has some channels of every layer", FROM_1)
    cp: int = _layout(
        1, "context-parallel ranks: each has some positions of every sequence", FROM_1
    )
    sequence_parallel: bool = _layout(
        False, "with --tp: between sharded layers, each rank has some positions of every sample"
    )
    layout: str | None = _layout(
        None,
        "which axes of activations are cut along which axis of the mesh (batch:dp,channels:tp), "
        "and how ranks along tp share layers (features.*=samples); or a FILE.toml of both",
        form=terms.layout,
    )
    order: str = _layout(
        "tp,dp,pp",
        "tp, dp and pp from the fastest axis to the slowest: ranks along the first one are "
        "consecutive, and so mostly on one node; cp comes before dp",
        choices=ORDERS,
    )
    zero: int = _layout(
        0,
        "what ranks along dp have a part of only: optimizer state (1), gradients too (2), "
        "parameters too (3)",
        choices=(0, 1, 2, 3),
    )
    plan: str | None = _layout(
        None,
        "train with the fastest layout, by what is measured at the start (auto) or in a FILE.json",
    )
    micro_batches: int = _pipeline(
        1, "parts of a batch, computed one after the other; their gradients are accumulated", FROM_1
    )
    schedule: str = _pipeline("1f1b", "order of passes", choices=SCHEDULES, custom=True)
    virtual_stages: int = _pipeline(2, "stages on each rank, with --schedule interleaved", FROM_1)
    cut: str | None = _pipeline(
        None, "layers at which the second and later stages begin, such as 3,7; default: measured"
    )
    recompute: bool = _pipeline(
        False,
        "keep the input of a stage only, and run its forward pass again for the backward pass",
    )
    vertical_sync: bool = _pipeline(
        False,
        "with --schedule pipedream: all stages use the version of the weights that the first had",
    )
    allreduce: str = _reduce(
        "auto",
        f"all-reduce algorithm for the gradients: {', '.join(ALLREDUCES)} or package.module:NAME",
        choices=ALLREDUCES,
        custom=True,
    )
    reduce_dtype: str = _reduce(
        "float32",
        "with --dtype of 16 bits: type of partial sums of gradients and activations over ranks, "
        "float32 or that of --dtype, which is rounded after each addition and sends fewer bytes",
        choices=("float32", *dtypes.HALVES),
    )
    bucket_mb: float | None = _reduce(
        None, "gradients in one all-reduce, in MB; default: 1, or all of them on one node", ABOVE_0
    )
    overlap: bool = _reduce(True, "start all-reduces during the backward pass, not after it")
    progress: str = _reduce(
        "auto",
        "what advances messages during the backward pass: polling between layers, or a thread; "
        "auto: a thread if cores are idle",
        choices=PROGRESS,
    )
    sync: str = _sync(
        "bsp",
        "which ranks a step waits for: all (bsp), those more than --staleness steps behind (ssp), "
        "none (asp)",
        choices=SYNCS,
    )
    staleness: int = _sync(0, "steps that a rank may be ahead of the slowest with ssp", FROM_0)
    servers: int = _sync(
        0,
        "ranks that are parameter servers, the last ones; default: 1 for ssp and asp, 0 for bsp",
        FROM_0,
    )
    slow_rank: str | None = _sync(
        None, "R:FACTOR[,R:FACTOR]: slow these ranks down, for experiments"
    )
    jitter: str | None = _sync(
        None, "P:FACTOR: slow each rank down in a random fraction P of its steps"
    )
    verify: bool = _equality(False, "also train on one rank, and compare after each step")
    reproducible: bool = _equality(False, "the same bits on any number of ranks up to --slices")
    check_copies: int = _equality(
        1000,
        "steps after which ranks compare their copies of parameters and buffers, as at the end of "
        "a run; 0: never",
        FROM_0,
    )
    slices: int = _equality(
        8, "parts of a batch that --reproducible computes one by one", FROM_1, alias="shards"
    )
    save: str | None = _files(
        None, "write the trained model: a safetensors file, or FOLDER/ in GPT-2's form"
    )
    load: str | None = _files(None, "start from a model: a safetensors file, or a folder of GPT-2")
    load_partial: bool = _files(
        False, "with --load: take tensors whose names and shapes fit; others keep initial values"
    )
    log: str | None = _files(None, "write events to this file, one JSON a line")
    append: bool = _files(False, "add to the --log of another run, below what it has")
    trace: str | None = _files(None, "write what ranks do when to a file, for Chrome/Perfetto")
    report: str | None = _files(None, "at the end write a page of the run, for browsers: run.html")
    logger: str | None = _files(
        None,
        "write numbers and pictures for tensorboard:FOLDER, mlflow:URI, wandb:PROJECT or "
        "trackio:PROJECT",
        form=terms.logger,
    )
    checkpoint_dir: str | None = _checkpoints(None, "directory of checkpoints of all ranks")
    save_every: str | None = _checkpoints(
        None,
        "write a checkpoint every N steps (100), seconds (600s) or epochs ('2 epochs'), while "
        "training goes on",
        form=terms.interval,
    )
    keep: int = _checkpoints(2, "checkpoints that are kept, the newest ones", FROM_1)
    keep_best: str | None = _checkpoints(
        None,
        "also keep the checkpoint of the epoch in which this was best",
        choices=("test_loss", "accuracy"),
    )
    resume: bool = _checkpoints(
        False, "go on from the newest checkpoint of --checkpoint-dir that is whole, on any ranks"
    )
    time_limit: str | None = _checkpoints(
        None,
        "end before the run has lasted so long (90s, 30m, 2h), with a checkpoint and status 75",
        form=terms.duration,
    )
    elastic: bool = _checkpoints(
        False,
        "fit the layout to the ranks that there are, and go on from a checkpoint if there is one",
    )
    backup: int | None = _checkpoints(
        None,
        "with mpirun --with-ft ulfm: every N steps, a copy in the memory of another node of what "
        "one rank alone has; without N, as often as its cost and --mtbf suggest",
        FROM_0,
        bare=0,
    )
    mtbf: str = _checkpoints(
        "24h", "mean time between failures of the job, for --backup", form=terms.duration
    )
    memory: str | None = _other(
        None,
        "of a rank, such as 2GB: what is more is swapped to a file in TMPDIR, or computed again",
        form=terms.size,
    )
    dry_run: bool = _other(False, "print the layout, memory, messages and steps without training")
    ranks: int | None = _other(None, "with --dry-run: as if there were so many ranks", FROM_1)
    sample_every: int | None = _other(None, "show text of the model every so many steps", FROM_1)
    prompt: str | None = _other(
        None,
        "with --sample-every: its beginning; default: what follows <|endoftext|> or a line's end",
    )
    json: bool = _other(False, "print events as JSON, one object a line, not as text")
    quiet: bool = _other(False, "print only the result")

    def __new__(cls, *_: Any, **given: Any) -> Self:
        known = [entry.name for entry in options()]
        for name in given:
            if name not in known:
                raise ValueError(f"Config: {not_an_option(name)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for entry in options():
            object.__setattr__(self, entry.name, checked(entry, getattr(self, entry.name)))
        dtypes.named(self.dtype)

    @property
    def cuts_positions(self) -> bool:
        """True where ranks along tp cut positions, by --sequence-parallel or by --layout."""
        along_tp = terms.layout(self.layout).along("tp") if self.layout else ()
        return self.sequence_parallel or "length" in along_tp


GROUPS: tuple[str, ...] = tuple(dict.fromkeys(o.metadata["group"] for o in fields(Config)))
"""The groups of options, in the order of --help."""

TRAINED = ("model", "data", "training")
"""The groups that say what is trained, whatever the layout."""


def options(groups: Collection[str] = GROUPS) -> "tuple[Field[Any], ...]":
    """The options of these groups, in the order of --help."""
    return tuple(entry for entry in fields(Config) if entry.metadata["group"] in groups)


def not_an_option(name: str) -> str:
    """The message for a name that no option has."""
    known = [entry.name for entry in options()]
    return f"{shown(name)} is not an option{nearest(name.replace('-', '_'), known)}"
