"""Options that cannot be combined, each pair with the reason: rows of one table.

The command line checks the table before anything is built; the tests try every row;
docs/combinations.md shows it to users.
"""

from collections.abc import Callable
from typing import NamedTuple

from nnmpi.arrays.dtypes import HALVES
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.options import terms
from nnmpi.options.config import LAYERWISE, OF_MATRICES, Config, options
from nnmpi.options.quoting import shown
from nnmpi.parallel.layout import AVERAGED, server_count
from nnmpi.parallel.mesh import AXES

PLAIN = Config()
"""A config with all options at their defaults."""

BARE = {o.name: o.metadata["bare"] for o in options() if o.metadata["bare"] is not None}
"""The values that options have when given without one."""

AXES_BESIDE_DP = tuple(axis.name for axis in AXES if axis.name != "dp")
PLANNED = (
    *(axis.name for axis in AXES),
    *("layout", "zero", "sequence_parallel", "schedule", "micro_batches", "recompute"),
    *("allreduce", "cut"),
)
"""The options that a plan chooses: a layout."""
LEAVE_ONE = "leave one of the two out"
NO_SERVERS = "leave it out, or use --sync bsp --servers 0"
WHOLE_MODEL = "every rank that computes has the whole model and its activations"
WHOLE_SLICE = "one rank computes a slice, forward and back, before the next one"
TWO = "start it with mpirun -n 2, or leave verify out"
OWN_SUM = "it has no effect, since servers add up the gradients"
ONE_POSITION = "a new token is one position, and cannot be cut along positions"
NO_ONE_STEP = "ranks make their steps at different times"
WHOLE_MATRICES = "it needs whole matrices, and ranks update parts"
ONE_RANK_HAS_ALL = "activations are swapped only on ranks that have the whole model"
SLOWING = "only data-parallel ranks can be slowed"


class Refusal(NamedTuple):
    """`option` is refused beside `beside`; each is the name of an option, or one of `SPECIAL`."""

    option: str
    beside: str
    reason: str
    remedy: str = LEAVE_ONE


class Requires(NamedTuple):
    """`option` has a meaning only beside `other`."""

    option: str
    other: str
    reason: str


REFUSALS = (
    # checks
    Refusal("reproducible", "micro_batches", "slices are micro-batches already"),
    Refusal("reproducible", "servers", "every rank updates its own copy of the parameters"),
    Refusal("reproducible", "allreduce", "gradients are summed along the tree over slices"),
    Refusal("reproducible", "bucket_mb", "the gradient of a slice is summed as a whole"),
    Refusal("reproducible", "overlap", "a slice is summed after its backward pass"),
    Refusal("reproducible", "progress", "a slice is summed after its backward pass"),
    Refusal("reproducible", "device", "the same bits are guaranteed only on the CPU"),
    Refusal("verify", "one rank", "there is nothing to compare it with", TWO),
    Refusal("layerwise", "servers", "a server has parts of parameters, whose norms it needs"),
    Refusal("layerwise", "verify along tp", "one rank has no norms of parameters that tp cuts"),
    Refusal("optimizer muon", "servers", WHOLE_MATRICES, NO_SERVERS),
    Refusal("optimizer muon", "zero", WHOLE_MATRICES),
    Refusal("optimizer muon", "tp", WHOLE_MATRICES),
    Refusal("optimizer muon", "memory", "it needs whole matrices, and pieces are updated"),
    Refusal("verify", "servers", "it compares copies that ranks update themselves", NO_SERVERS),
    Refusal("reproducible", "pp", WHOLE_SLICE),
    Refusal("reproducible", "schedule", WHOLE_SLICE),
    Refusal("reproducible", "recompute stage", WHOLE_SLICE),
    Refusal("reproducible", "tp", "the tree adds up slices, not parts of a matrix product"),
    Refusal("reproducible", "zero", "every rank updates its own copy of the parameters"),
    # pipelines
    Refusal("pipedream", "micro_batches", "a batch is one micro-batch and one step"),
    Refusal("pipedream", "recompute stage", "activations of at most --pp batches are kept"),
    Refusal("pipedream", "clip_norm", "stages update before the norm of all gradients is known"),
    Refusal("pipedream", "verify", "it computes with older weights, unlike one rank"),
    Refusal("pipedream", "slow_rank", SLOWING),
    Refusal("pipedream", "jitter", SLOWING),
    Refusal("pipedream", "tp", "ranks of a stage could take messages in different orders"),
    Refusal("pipedream", "zero", "each stage is on one rank, which has all of its state"),
    Refusal("schedule", "servers", WHOLE_MODEL, NO_SERVERS),
    Refusal("recompute stage", "servers", WHOLE_MODEL, NO_SERVERS),
    # 16 bits
    Refusal("16 bits", "servers", "servers keep and send parameters of one type", NO_SERVERS),
    Refusal("16 bits", "pipedream", "a stage keeps versions of its parameters in one type"),
    Refusal("16 bits", "reproducible", "the tree over slices adds up only float32 and float64"),
    Refusal(
        "reduce_dtype",
        "another dtype",
        "partial sums are float32, or have the type of gradients",
        "use one type for both, or leave reduce_dtype out",
    ),
    Refusal(
        "reduce_dtype",
        "allreduce mpi",
        "MPI cannot add up 16-bit floats",
        "use --allreduce ring, or leave reduce_dtype out",
    ),
    # parameter servers
    Refusal("allreduce", "servers", OWN_SUM, NO_SERVERS),
    Refusal("bucket_mb", "servers", OWN_SUM, NO_SERVERS),
    Refusal("overlap", "servers", OWN_SUM, NO_SERVERS),
    Refusal("progress", "servers", OWN_SUM, NO_SERVERS),
    # replicas that are averaged
    *(
        Refusal(option, "averaging", reason)
        for option, reason in (
            ("zero", "a replica along dp has all of its optimizer state"),
            ("reproducible", "each replica makes steps of its own, so their number matters"),
            ("pipedream", "its batches overlap, and replicas meet between two steps"),
            ("verify", "replicas make steps of their own, unlike one rank"),
            ("memory", "replicas are averaged in memory"),
            ("backup", "replicas differ until they are averaged"),
            ("dtype float16", "each replica would have a loss scale of its own"),
        )
    ),
    Refusal("outer_momentum", "outer sgd", "only nesterov has a momentum there"),
    # compressed gradients
    *(
        Refusal("compress", beside, reason, remedy)
        for beside, reason, remedy in (
            ("verify", "it leaves out a part of each gradient, unlike one rank", LEAVE_ONE),
            ("reproducible", "what is left out depends on the number of ranks", LEAVE_ONE),
            ("pipedream", "dp is 1 there, so no gradients are sent", LEAVE_ONE),
            ("servers", "servers take whole gradients", NO_SERVERS),
            ("averaging", "replicas send parameters there, not gradients", LEAVE_ONE),
            ("zero", "each rank receives only sums of its part, which are whole", LEAVE_ONE),
            ("dtype float16", "what is kept would have the loss scale of its step", "use bfloat16"),
            ("allreduce in memory", "sums in memory of a node send nothing", "use ring"),
            ("nccl", "NCCL adds up numbers, and compressed gradients are bytes", "use ring"),
            ("memory", "what is kept must be in memory", LEAVE_ONE),
            ("backup", "what a rank has not sent is on that rank only", LEAVE_ONE),
        )
    ),
    # axes other than dp
    *(Refusal(axis, "servers", WHOLE_MODEL, NO_SERVERS) for axis in AXES_BESIDE_DP),
    *(Refusal(axis, "slow_rank", SLOWING) for axis in AXES_BESIDE_DP),
    *(Refusal(axis, "jitter", SLOWING) for axis in AXES_BESIDE_DP),
    # context parallelism
    Refusal("cp", "pipedream", "ranks of a stage could take messages in different orders"),
    Refusal("cp", "reproducible", "the tree adds up slices of whole sequences"),
    Refusal("cp", "positions along tp", "both cut the positions of sequences"),
    # ZeRO
    Refusal("zero", "servers", "servers hold all parameters and optimizer state", NO_SERVERS),
    Refusal("zero", "slow_rank", "only ranks with whole copies can be slowed"),
    Refusal("zero", "jitter", "only ranks with whole copies can be slowed"),
    Refusal(
        "zero 2 or 3",
        "allreduce without halves",
        "each rank needs the sum of its part only, which ring, p2p, halving and nccl give",
        "use --allreduce ring, or --zero 1",
    ),
    # layouts that are searched for
    Refusal("plan", "a layout", "the plan chooses one, and trains with it"),
    Refusal("plan", "servers", "a plan is for ranks that make their steps together", NO_SERVERS),
    Refusal("plan", "reproducible", "it gives the same bits along dp alone, which needs no plan"),
    Refusal("plan", "elastic", "it adapts a given layout to the ranks that exist"),
    Refusal("plan", "dry_run", "a plan trains", "use python -m nnmpi.plan"),
    # evaluations and text while it is trained
    Refusal("evaluate_every", "servers", NO_ONE_STEP, NO_SERVERS),
    Refusal("evaluate_every", "pipedream", NO_ONE_STEP, "use --schedule 1f1b"),
    Refusal("sample_every", "cp", ONE_POSITION),
    Refusal("sample_every", "sequence_parallel", ONE_POSITION),
    Refusal("sample_every", "layout", "a text is one sample, which ranks cannot share"),
    Refusal("sample_every", "servers", NO_ONE_STEP),
    Refusal("sample_every", "pipedream", NO_ONE_STEP),
    # beyond memory
    *(Refusal("memory", axis, ONE_RANK_HAS_ALL) for axis in AXES_BESIDE_DP),
    Refusal("memory", "zero 2 or 3", "its slots of gradients and parameters cannot be swapped"),
    Refusal("memory", "servers", ONE_RANK_HAS_ALL, NO_SERVERS),
    Refusal("memory", "schedule", ONE_RANK_HAS_ALL),
    Refusal("memory", "recompute", "--memory chooses by cost which units are recomputed"),
    Refusal("memory", "reproducible", WHOLE_SLICE),
    Refusal("memory", "device", "activations in the memory of a GPU are not swapped"),
    Refusal("memory", "verify", "the single rank that it compares with needs memory too"),
    # backups
    Refusal("backup", "servers", NO_ONE_STEP, NO_SERVERS),
    Refusal("backup", "pipedream", NO_ONE_STEP, "use --schedule 1f1b"),
    # devices
    Refusal(
        "device",
        "allreduce in memory",
        "ranks of a node share memory of the host, not that of GPUs",
        "use --allreduce ring, or --device cpu",
    ),
)

NEEDS = (
    Requires("tf32", "device cuda", "a CPU does not round the factors of float32 products"),
    Requires("slices", "reproducible", "only that cuts a batch into slices"),
    Requires("virtual_stages", "schedule interleaved", "others decide how many stages a rank has"),
    Requires("sequence_parallel", "tp", "positions are divided among the ranks along tp"),
    Requires("layout", "tp", "it says how the ranks along tp share layers"),
    Requires("layout length:cp", "cp", "it says that sequences are cut along cp"),
    Requires("cut", "pp", "the model is cut between the ranks along pp"),
    Requires("vertical_sync", "schedule pipedream", "other schedules keep one version of weights"),
    Requires("staleness", "sync ssp", "bsp allows no staleness, asp any"),
    Requires("every", "sync local or gossip", "in other modes ranks meet in every step"),
    Requires("fragments", "sync local", "only local steps exchange parts of the model in turn"),
    Requires("apply_after", "sync local", "only local steps go on while replicas exchange"),
    Requires("outer_dtype", "sync local", "only local steps send changes of replicas"),
    Requires("graph", "sync gossip", "only gossip has neighbours"),
    Requires("outer", "sync local", "only local steps have an outer optimizer"),
    Requires("outer_lr", "sync local", "only local steps have an outer optimizer"),
    Requires("outer_momentum", "sync local", "only local steps have an outer optimizer"),
    Requires("weight_decay_of", "weight_decay", "without it no parameter decays"),
    Requires("load_partial", "load", "it says how much of that file must match"),
    Requires("append", "log", "it says what to do with that file"),
    Requires("nccl", "device cuda", "NCCL sums what is in the memory of GPUs"),
    Requires("prompt", "sample_every", "it is the beginning of a sample"),
    Requires("mtbf", "backup", "it says how often backups are worth their cost"),
    Requires("save_every", "checkpoint_dir", "checkpoints are written there"),
    Requires("keep", "checkpoint_dir", "checkpoints are kept there"),
    Requires("keep_best", "checkpoint_dir", "checkpoints are kept there"),
    Requires("resume", "checkpoint_dir", "it continues from a checkpoint there"),
    Requires("time_limit", "checkpoint_dir", "the run ends with a checkpoint there"),
    Requires("elastic", "checkpoint_dir", "it continues from a checkpoint there, if there is one"),
    Requires("ranks", "dry_run", "a run has the ranks that mpirun starts"),
)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError for the first row that applies to the config and the number of ranks."""
    for option, beside, reason, remedy in REFUSALS:
        first, second = _asked(option, config, ranks), _asked(beside, config, ranks)
        if first and second:
            raise ValueError(f"{first} with {second}: {reason}; {remedy}")
    for option, other, reason in NEEDS:
        if _asked(option, config, ranks) and not _is_met(other, config, ranks):
            raise ValueError(
                f"{_asked(option, config, ranks)} without {other}: {reason}; "
                f"add --{other.replace('_', '-')}, or leave {option} out"
            )


def why_not(option: str, config: Config, ranks: int) -> str:
    """Returns the reason why an option cannot be added to a config; "" if it can."""
    rows = (row for row in REFUSALS if row.option == option)
    asked_rows = ((_asked(row.beside, config, ranks), row.reason) for row in rows)
    return next((f"{asked}: {reason}" for asked, reason in asked_rows if asked), "")


def pointless(config: Config, ranks: int) -> list[str]:
    """Returns the options of a config that have no meaning on this many ranks, because they lack
    another option or need several ranks."""
    alone = (row.option for row in REFUSALS if row.beside == "one rank" and ranks == 1)
    unmet = (need.option for need in NEEDS if not _is_met(need.other, config, ranks))
    asked = (name for name in (*alone, *unmet) if _asked(name, config, ranks))
    return [name.partition(" ")[0] for name in asked]  # of "layout length:cp" the option


def _is_met(other: str, config: Config, ranks: int) -> bool:
    """Returns True if a config has what another option requires: an option, or one of its
    values."""
    name, _, value = other.partition(" ")
    if value:
        return str(getattr(config, name)) in value.split(" or ")
    return bool(_asked(name, config, ranks))


def _asked(name: str, config: Config, ranks: int) -> str:
    """Returns an option with its value as text; "" if it has its default."""
    if name in SPECIAL:
        return SPECIAL[name](config, ranks)
    value = getattr(config, name)
    if value == getattr(PLAIN, name):
        return ""
    return name if value is True or value == BARE.get(name) else f"{name} {shown(value)}"


def _servers(config: Config, ranks: int) -> str:
    n = server_count(config)
    return f"{n} server{'s' * (n != 1)} (sync {config.sync})" if n else ""


def _without_halves(config: Config, ranks: int) -> str:
    halves = config.allreduce in ("auto", "nccl", *REDUCE_SCATTERS)
    return "" if halves else f"allreduce {config.allreduce}"


def _chosen(config: Config, ranks: int) -> str:
    return next(filter(None, (_asked(name, config, ranks) for name in PLANNED)), "")


def _in_memory(config: Config, ranks: int) -> str:
    by_memory = config.allreduce in ("shared", "hierarchical")
    return f"allreduce {config.allreduce}" if by_memory else ""


def _layout(config: Config, along: str) -> str:
    """Returns --layout as text if it names the mesh axis `along`; "" otherwise."""
    layout_terms = terms.layout(config.layout) if config.layout else terms.LayoutTerms()
    says = layout_terms.along(along) or (along == "tp" and layout_terms.ways)
    return f"layout {shown(config.layout)}" if says else ""


SPECIAL: dict[str, Callable[[Config, int], str]] = {
    "layerwise": lambda config, ranks: (
        f"optimizer {config.optimizer} (layerwise)" if config.optimizer in LAYERWISE else ""
    ),
    "optimizer muon": lambda config, ranks: (
        f"optimizer {config.optimizer}" if config.optimizer in OF_MATRICES else ""
    ),
    "verify along tp": lambda config, ranks: "verify along tp" * (config.verify and config.tp > 1),
    "servers": _servers,
    "one rank": lambda config, ranks: "1 rank" if ranks == 1 else "",
    "pipedream": lambda config, ranks: (
        "schedule pipedream" if config.schedule == "pipedream" else ""
    ),
    "averaging": lambda config, ranks: f"sync {config.sync}" if config.sync in AVERAGED else "",
    "outer sgd": lambda config, ranks: "outer sgd" if config.outer == "sgd" else "",
    "zero 2 or 3": lambda config, ranks: f"zero {config.zero}" if config.zero > 1 else "",
    "a layout": _chosen,
    "allreduce without halves": _without_halves,
    "allreduce in memory": _in_memory,
    "recompute stage": lambda config, ranks: "recompute stage" * (config.recompute == "stage"),
    "layout": lambda config, ranks: _layout(config, "tp"),
    "layout length:cp": lambda config, ranks: _layout(config, "cp"),
    "positions along tp": lambda config, ranks: (
        ""
        if not config.cuts_positions
        else _asked("sequence_parallel", config, ranks) or _layout(config, "tp")
    ),
    "nccl": lambda config, ranks: "allreduce nccl" if config.allreduce == "nccl" else "",
    "allreduce mpi": lambda config, ranks: "allreduce mpi" if config.allreduce == "mpi" else "",
    "another dtype": lambda config, ranks: (
        f"dtype {config.dtype}" if config.dtype != config.reduce_dtype else ""
    ),
    "dtype float16": lambda config, ranks: "dtype float16" if config.dtype == "float16" else "",
    "16 bits": lambda config, ranks: (
        f"dtype {config.dtype} of 16 bits" if config.dtype in HALVES else ""
    ),
}
"""The names in the table that are no options; each function returns as text what the config asks
for under that name, or ""."""
