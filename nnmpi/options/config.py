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
from nnmpi.options import resume_rules as rules
from nnmpi.options import terms
from nnmpi.options.option import checked, option
from nnmpi.options.quoting import nearest, shown
from nnmpi.options.resume_rules import ResumeEffect, ResumeRule
from nnmpi.options.terms import ABOVE_0, FROM_0, FROM_0_BELOW_1, FROM_1, NUMBER_FROM_0

DTYPES = ("float32", "float64", "float16", "bfloat16")
CONVOLUTIONS = ("auto", "winograd2", "winograd4", "im2col")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "lamb", "lars", "muon")
DECAYS = ("all", "matrices")
ALLREDUCES = (
    *("auto", "mpi", "shared", "ring", "tree", "ps"),
    *("p2p", "doubling", "halving", "double-tree", "dual-root", "bruck", "pat"),
    *("multiplying", "bucket", "swing", "hierarchical", "nccl"),
)
PROGRESS = ("auto", "poll", "thread")
SCHEDULES = (
    *("1f1b", "naive", "gpipe", "interleaved", "pipedream"),
    *("zb-h1", "zb-v", "v-half", "dualpipe-v"),
)
SYNCS = ("bsp", "ssp", "asp", "local", "gossip")
ORDERS = tuple(",".join(axes) for axes in permutations(("tp", "dp", "pp")))
OUTERS, GRAPHS = ("sgd", "nesterov"), ("ring", "torus", "exponential", "complete")
OUTER_DTYPES = ("float32", "bfloat16", "int8")
RECOMPUTED = ("none", "stage", "block", "selective")
LAYERWISE = ("lamb", "lars")  # optimizers that need norms of parameters
OF_MATRICES = ("muon",)  # optimizers that need whole matrices
EPOCHS, LEAST_STEPS = 10, 300
"""The default number of epochs, and the number of steps below which a run gets more epochs."""

_model = partial(option, "model", resume=rules.ANOTHER_MODEL)
_data = partial(option, "data", resume=rules.OTHER_SAMPLES)
_training = partial(option, "training", resume=rules.OTHER_STEPS)
_layout = partial(option, "layout", resume=rules.OTHER_RANKS)
_pipeline = partial(option, "pipeline", resume=rules.OTHER_RANKS)
_reduce = partial(option, "reduce", resume=rules.OTHER_RANKS)
_sync = partial(option, "sync", resume=rules.OTHER_RANKS)
_equality = partial(option, "equality", resume=rules.OTHER_OUTPUT)
_files = partial(option, "files", resume=rules.OTHER_OUTPUT)
_checkpoints = partial(option, "checkpoints", resume=rules.OTHER_OUTPUT)
_other = partial(option, "other", resume=rules.OTHER_OUTPUT)

OTHER_SLICES = ResumeRule(
    ResumeEffect.REFUSED, "sums over the tree of slices would have other bits", "reproducible"
)
OTHER_REST = ResumeRule(ResumeEffect.WARNED, "other parts of gradients are sent from here on")
OTHER_MEETINGS = ResumeRule(
    ResumeEffect.WARNED, "replicas differ by other steps from here on", "sync"
)


@dataclass(frozen=True)
class Config:
    """The options of a run; raises ValueError for a value that is out of range."""

    model: str = _model(
        "digits-cnn",
        "model to train: iris-mlp, digits-cnn, mnist-cnn, cifar-cnn, mlp:784-1024-10 (flattens "
        "images), gpt2, gpt:4x4x128[:512] (layers, heads, width; width within the MLP), "
        "llama:4x4x128[:2[:352]] (likewise, after the heads of keys) or package.module:function; "
        "with a folder given to --load, the model in the folder",
        custom=True,
    )
    dropout: float = _model(
        0.0, "dropout probability in gpt models; GPT-2 was trained with 0.1", FROM_0_BELOW_1
    )
    data: str = _data(
        "digits",
        "data set to train on: iris, digits, mnist, fashion-mnist, cifar10, text, text:FILE, "
        "tokens:FILE.npy, FILE.npz or synthetic:1x28x28:10:12800 (shape, classes, samples)",
    )
    data_dir: str | None = _data(
        None, "directory of the data set's files, also downloaded ones", resume=rules.OTHER_OUTPUT
    )
    standardise: str = _data(
        "auto",
        "mean and deviation by which samples are standardised: auto (those of the training data, "
        "or of the file of --load), none, or MEAN,STD for all samples, as --standardise=0.13,0.31",
    )
    context: int = _data(
        128, "number of tokens in a window of text", FROM_1, resume=rules.ANOTHER_MODEL
    )
    tokenizer: str | None = _data(
        None,
        "tokenizer for a text: a folder with vocab.json and merges.txt (byte-level BPE), or a "
        "tokenizer.json; default: a token per character, or per byte if the text is not UTF-8",
        resume=rules.ANOTHER_MODEL,
    )
    download: bool = _data(
        False, "download the data set's files if they are missing", resume=rules.OTHER_OUTPUT
    )
    epochs: int | None = _training(
        None,
        f"passes over the training data; default: {EPOCHS}, or more to make {LEAST_STEPS} steps",
        FROM_1,
        resume=rules.OTHER_LENGTH,
    )
    steps: int | None = _training(
        None, "stop after this many steps", FROM_1, resume=rules.OTHER_LENGTH
    )
    batch_size: int = _training(
        64, "number of samples in a batch, over all ranks", FROM_1, resume=rules.OTHER_BATCHES
    )
    bucket_by_length: bool = _training(
        False,
        "batch samples of similar length together, by the model's input `lengths`",
        resume=rules.OTHER_BATCHES,
    )
    lr: float = _training(3e-3, "learning rate", ABOVE_0)
    optimizer: str = _training(
        "adam",
        "rule that updates the parameters; muon updates matrices, and adamw the others then",
        choices=OPTIMIZERS,
        resume=rules.OTHER_STATE,
    )
    momentum: float = _training(
        0.9, "momentum of sgd and lars; 0 for none", FROM_0_BELOW_1, resume=rules.OTHER_STATE
    )
    weight_decay: float = _training(
        0.0, "weight decay: an L2 penalty; decoupled in adamw, lamb and muon", NUMBER_FROM_0
    )
    weight_decay_of: str = _training(
        "all", "parameters that decay: all, or those with two or more axes", choices=DECAYS
    )
    lr_schedule: str = _training(
        "cosine",
        "rate over time: constant, cosine, step:EVERY[:FACTOR], or warmup:STEPS+ and one of these",
        form=terms.rate,
    )
    augment: str | None = _training(
        None,
        "vary training images in each epoch: crop:PIXELS shifts them by up to this many pixels, "
        "flip mirrors them at random, and crop:4+flip does both",
        form=terms.augment,
        resume=rules.OTHER_SAMPLES,
    )
    clip_norm: float | None = _training(
        None, "scale the gradient down to this norm if its norm is larger", ABOVE_0
    )
    seed: int = _training(
        0,
        "seed of weights, batch order, dropout and held-out data",
        FROM_0,
        resume=rules.OTHER_BATCHES,
    )
    dtype: str = _training(
        "float32",
        "type of parameters and samples; with 16 bits, the optimizer updates float32 copies",
        choices=DTYPES,
        resume=rules.OTHER_STATE,
    )
    device: str = _training(
        "cpu", "device to compute on", choices=DEVICES, resume=rules.OTHER_RANKS
    )
    tf32: bool = _training(
        False, "on a GPU: round the factors of float32 products to 11 bits (TF32), which is faster"
    )
    convolution: str = _training(
        "auto",
        "algorithm of 3x3 convolutions; winograd2 and im2col are slower and a little more exact",
        choices=CONVOLUTIONS,
        resume=rules.OTHER_RANKS,
    )
    dp: int | None = _layout(
        None,
        "number of data-parallel groups, which share each batch; default: as many as ranks allow",
        FROM_1,
    )
    pp: int = _layout(1, "pipeline-parallel ranks: each holds some layers of the model", FROM_1)
    tp: int = _layout(1, "tensor-parallel ranks: each holds some channels of every layer", FROM_1)
    cp: int = _layout(
        1, "context-parallel ranks: each holds some positions of every sequence", FROM_1
    )
    sequence_parallel: bool = _layout(
        False, "with --tp: between sharded layers, each rank holds some positions of every sample"
    )
    layout: str | None = _layout(
        None,
        "axes of activations and the mesh axes along which they are cut (batch:dp,channels:tp), "
        "and how ranks along tp share layers (features.*=samples); or a FILE.toml with both",
        form=terms.layout,
    )
    order: str = _layout(
        "tp,dp,pp",
        "tp, dp and pp from the fastest mesh axis to the slowest: ranks along the first axis are "
        "consecutive, and so mostly on one node; cp comes just before dp",
        choices=ORDERS,
    )
    zero: int = _layout(
        0,
        "state that is sharded along dp instead of replicated: optimizer state (1), also "
        "gradients (2), also parameters (3)",
        choices=(0, 1, 2, 3),
    )
    plan: str | None = _layout(
        None,
        "train with the fastest layout, by measurements at the start (auto) or from a FILE.json",
    )
    micro_batches: int = _pipeline(
        1,
        "parts of a batch, computed one after another; their gradients are accumulated",
        FROM_1,
        resume=rules.OTHER_PARTS,
    )
    schedule: str = _pipeline("1f1b", "order of pipeline passes", choices=SCHEDULES, custom=True)
    virtual_stages: int = _pipeline(2, "stages on each rank, with --schedule interleaved", FROM_1)
    cut: str | None = _pipeline(
        None, "layers where stages 1, 2, ... begin, such as 3,7; default: balanced by measurements"
    )
    recompute: str = _pipeline(
        "none",
        "what keeps only its input and runs forward again for its backward pass: stage (of a "
        "pipeline; without a value), block (each numbered block of a model) or selective "
        "(attention)",
        choices=RECOMPUTED,
        bare="stage",
    )
    vertical_sync: bool = _pipeline(
        False,
        "with --schedule pipedream: all stages use the weight version that the first stage used",
    )
    allreduce: str = _reduce(
        "auto",
        f"all-reduce algorithm for the gradients: {', '.join(ALLREDUCES)} or package.module:NAME",
        choices=ALLREDUCES,
        custom=True,
    )
    reduce_dtype: str = _reduce(
        "float32",
        "with a 16-bit --dtype: type of partial sums of gradients and activations over ranks, "
        "float32 or that of --dtype, which is rounded after each addition and sends fewer bytes",
        choices=("float32", *dtypes.HALVES),
    )
    compress: str | None = _reduce(
        None,
        "send less of gradients, and the rest in later steps: topk:FRACTION of the entries, "
        "sign (1 bit), powersgd:RANK (factors of matrices), int8 or package.module:CODEC",
        custom=True,
        form=terms.compression,
        resume=OTHER_REST,
    )
    bucket_mb: float | None = _reduce(
        None, "gradients per all-reduce, in MB; default: 1, or all of them on one node", ABOVE_0
    )
    overlap: bool = _reduce(True, "start all-reduces during the backward pass, not after it")
    progress: str = _reduce(
        "auto",
        "how messages advance during the backward pass: by polling between layers, or by a "
        "thread; auto uses a thread if there are idle cores",
        choices=PROGRESS,
    )
    sync: str = _sync(
        "bsp",
        "ranks that a step waits for: all (bsp), those more than --staleness steps behind (ssp), "
        "or none (asp); local: replicas meet every --every steps only; gossip: neighbours meet",
        choices=SYNCS,
        resume=rules.OTHER_STEPS,
    )
    staleness: int = _sync(
        0,
        "steps that a rank may be ahead of the slowest, with ssp",
        FROM_0,
        resume=rules.OTHER_STEPS,
    )
    servers: int = _sync(
        0,
        "number of parameter servers, the last ranks; default: 1 for ssp and asp, 0 for bsp",
        FROM_0,
    )
    every: int = _sync(
        30,
        "steps that replicas make alone; with --sync gossip, before all are averaged",
        FROM_1,
        resume=OTHER_MEETINGS,
    )
    fragments: int = _sync(
        1,
        "parts of the model that replicas exchange in turn, with --sync local",
        FROM_1,
        resume=OTHER_MEETINGS,
    )
    apply_after: int = _sync(
        0,
        "steps that replicas make before they use a fragment that they have sent",
        FROM_0,
        resume=OTHER_MEETINGS,
    )
    graph: str = _sync(
        "ring", "neighbours of a replica, with --sync gossip", choices=GRAPHS, resume=OTHER_MEETINGS
    )
    outer: str = _sync(
        "nesterov",
        "rule that applies the mean change of the replicas, with --sync local",
        choices=OUTERS,
        resume=OTHER_MEETINGS,
    )
    outer_lr: float = _sync(
        0.7, "rate of --outer; 1 with sgd takes the mean as it is", ABOVE_0, resume=OTHER_MEETINGS
    )
    outer_momentum: float = _sync(
        0.9, "momentum of --outer nesterov", FROM_0_BELOW_1, resume=OTHER_MEETINGS
    )
    outer_dtype: str | None = _sync(
        None,
        "type in which replicas send their changes, with --sync local; default: that of values",
        choices=OUTER_DTYPES,
        resume=OTHER_MEETINGS,
    )
    slow_rank: str | None = _sync(
        None, "R:FACTOR[,R:FACTOR]: slow down rank R by this factor, for experiments"
    )
    jitter: str | None = _sync(
        None, "P:FACTOR: slow down each rank in a random fraction P of its steps, for experiments"
    )
    compile: bool | None = _training(
        None,
        "record the passes of each stage once, and replay them as lists of kernels; default: where "
        "all layers are nnmpi's own",
        resume=rules.OTHER_OUTPUT,
    )
    verify: bool = _equality(False, "also train on one rank, and compare after each step")
    reproducible: bool = _equality(
        False, "same bits on any number of ranks, up to --slices", resume=rules.OTHER_PARTS
    )
    check_copies: int = _equality(
        1000,
        "compare copies of parameters on different ranks every so many steps, and at the end those "
        "of buffers too; 0: never",
        FROM_0,
    )
    slices: int = _equality(
        8,
        "parts of a batch that --reproducible computes one by one",
        FROM_1,
        alias="shards",
        resume=OTHER_SLICES,
    )
    save: str | None = _files(
        None, "write the trained model to a safetensors file, or to FOLDER/ of GPT-2 or Llama"
    )
    load: str | None = _files(None, "start from a safetensors file, or a folder of GPT-2 or Llama")
    load_partial: bool = _files(
        False, "with --load: take tensors whose names and shapes fit; others keep initial values"
    )
    log: str | None = _files(None, "write events to this file, one JSON object per line")
    append: bool = _files(False, "append to a --log that has the events of another run")
    log_every: int | None = _files(
        None,
        "report loss, gradient norm, rate and speed every so many steps (0: never); default: so "
        "that a run has about 200 such events",
        FROM_0,
    )
    trace: str | None = _files(None, "write a timeline of all ranks, for Chrome or Perfetto")
    report: str | None = _files(
        None, "at the end, write a page about the run, by default to run.html", bare="run.html"
    )
    logger: str | None = _files(
        None,
        "send metrics and pictures to tensorboard:FOLDER, mlflow:URI, wandb:PROJECT or "
        "trackio:PROJECT",
        form=terms.logger,
    )
    checkpoint_dir: str | None = _checkpoints(None, "directory for the checkpoints of all ranks")
    save_every: str | None = _checkpoints(
        None,
        "write a checkpoint every N steps (100), seconds (600s) or epochs ('2 epochs'), while "
        "training continues",
        form=terms.interval,
    )
    keep: int = _checkpoints(2, "number of checkpoints to keep, the newest ones", FROM_1)
    keep_best: str | None = _checkpoints(
        None,
        "also keep the checkpoint of the evaluation in which this measure was best",
        choices=("test_loss", "accuracy"),
    )
    resume: bool = _checkpoints(
        False, "continue from the newest complete checkpoint in --checkpoint-dir, on any ranks"
    )
    time_limit: str | None = _checkpoints(
        None,
        "end before the run has lasted this long (90s, 30m, 2h), with a checkpoint and status 75",
        form=terms.duration,
    )
    elastic: bool = _checkpoints(
        False,
        "fit the layout to the number of ranks, and continue from a checkpoint if there is one",
        resume=rules.OTHER_RANKS,
    )
    backup: int | None = _checkpoints(
        None,
        "with mpirun --with-ft ulfm: every N steps, copy what only one rank holds to the memory "
        "of another node; without N, as often as the cost and --mtbf suggest",
        FROM_0,
        bare=0,
    )
    mtbf: str = _checkpoints(
        "24h", "mean time between failures of the job, for --backup", form=terms.duration
    )
    memory: str | None = _other(
        None,
        "memory limit of a rank, such as 2GB: what exceeds it is swapped to TMPDIR, or recomputed",
        form=terms.size,
    )
    dry_run: bool = _other(False, "print the layout, memory, messages and steps, without training")
    ranks: int | None = _other(None, "with --dry-run: assume this number of ranks", FROM_1)
    evaluate_every: int | None = _other(
        None, "evaluate every so many steps too, not only after each epoch", FROM_1
    )
    sample_every: int | None = _other(None, "print text of the model every so many steps", FROM_1)
    prompt: str | None = _other(
        None,
        "with --sample-every: how the text begins; default: after <|endoftext|> or a line's end",
    )
    json: bool = _other(False, "print events as JSON, one object per line, instead of text")
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
        """True if ranks along tp divide positions, because of --sequence-parallel or --layout."""
        along_tp = terms.layout(self.layout).along("tp") if self.layout else ()
        return self.sequence_parallel or "length" in along_tp


GROUPS: tuple[str, ...] = tuple(dict.fromkeys(o.metadata["group"] for o in fields(Config)))
"""The groups of options, in the order of --help."""

TRAINED = ("model", "data", "training")
"""The groups of options that determine what is trained, whatever the layout."""


def options(groups: Collection[str] = GROUPS) -> "tuple[Field[Any], ...]":
    """The options of the given groups, in the order of --help."""
    return tuple(entry for entry in fields(Config) if entry.metadata["group"] in groups)


def not_an_option(name: str) -> str:
    """The error message for a name that is not an option, with the nearest name as a hint."""
    known = [entry.name for entry in options()]
    return f"{shown(name)} is not an option{nearest(name.replace('-', '_'), known)}"
