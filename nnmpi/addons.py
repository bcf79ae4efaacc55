"""The add-ons of nnmpi: parts that can be left out, and the objects that they add to tables of
core.

Core imports no add-on. It asks here for the object that a table has under a key, and its module is
imported only then. `scripts/without NAME` takes out the modules of an add-on and its entry here,
and tests the rest.

    table           key                the value, or the function and what it returns
    options         its name           a Part of Config: options of a run, and the features (what a
                                       run can be asked to do) that they switch on
    names           a name of nnmpi    what `nnmpi.NAME` is; NAME may be in a package, as nn.GPT
    tensor_methods  a method of        the function that it calls, with the tensor
                    tensors
    in_ipython      any                a module that is loaded where IPython is
    methods         one of Trainer     the function that it calls, with the session or the Trainer,
                                       and arguments; "resume": (config, directory): the config
    instead         an option          (config, comm): does something else than training, and
                                       returns the exit status of the command
    checks          an option          (config, ranks): None; raises ValueError for what is wrong
    job_checks      an option          (config, comm): the same for the ranks of the job
    batch_checks    an option          (config, samples): the same for data with so many samples
    graph_checks    an option          (config, graph, sharding): the same for the model's graph
                                       and how tp divides it
    model_checks    an option          (config, model): the same for a model
    loss_checks     an option          (config, loss, metrics): the same for these
    language_checks an option          (config, dataset): the same for a dataset of text
    serving_ranks   a feature          (config): the number of ranks that only serve others
    fewer_ranks     a feature          (config, ranks): the config for so many ranks
    strategy_kinds  a feature          the StrategyKind of runs that ask for it
    store_kinds     an option          the StoreKind of ranks that have the same parameters
    codecs          an option          (its value, parameters): a call that codes gradients for
                                       messages, and the bytes that it touches
    codec_traffic   an option          (its value, shapes, bytes of an element, ranks): the name of
                                       the codec, and what each rank sends, or None
    device_kernels  a device           the DeviceKernels for its arrays
    device_settings a device           (config, backend): makes settings of the whole process
    late_outcomes   a device           (spec, store, optimizer, update): a DeferredSteps, optimizer
                                       steps whose loss and norm the host reads one step later
    captures        a device           (backend, stage, criteria, recorded, micro): a NotedPass, the
                                       forward and backward pass as the device has captured them
    convolutions    an algorithm       (x, w, shape): the method of a convolution on the host, and
                                       how many images it takes at a time; None if it has none
    library_sums    an all-reduce      the LibrarySums of that name
    slowed          an option          (config, rank, ranks, sync, stats): sync and stats, with
                                       delays that simulate slow ranks
    twins           an option          (arrangement): the arrangement of a second model, trained too
    compared        an option          (strategy, that of the second model, spec): a Strategy that
                                       trains both models and compares them
    fitted          an option          (config, workers): options changed for so many workers
    fitted_notes    an option          (config): a note on what else this number changes, or ""
    read_every      an option          (config): the number of steps after which the add-on reads
                                       the model
    plans           an option          (setup, config, comm): the RunPlan, a prediction of the run
    simulations     a subcommand       the module of this subcommand of the command `simulate`, with
                                       HELP, add_options and run
    sim_options     an option          (subcommand of `simulate`, parser): adds the option to the
                                       parser if this subcommand has it
    memory_limits   an option          (config): the most bytes of a rank, for a plan
    axis_set_ups    an axis of ranks   the AxisSetUp: how models are cut for the ranks along it
    arrangements    an option          (arrangement, comm, model, samples, backend): the arrangement
    callbacks       an option          (config): callbacks of a run
    outliving       "ulfm"             the module that starts jobs whose ranks outlive others
    supervisors     an option          (comm): the Supervisor of a run that asks for it, or that may
                                       lose ranks
    checkpoints     an option          (Trainer): the Checkpoints of a run
    resumes         an option          (Trainer, config, comm): True if it has opened the session of
                                       a run on a checkpoint
    restarts        an option          (log): a note on a run that was to continue from a checkpoint
                                       and has found none
    layouts         an option          (config, comm): the layout for the ranks of the job
    undos           "step", "round"    (objects): what completes or takes back the last step, or
                                       round of local steps, if a rank was lost in it
    backups         an option          (arrangement): None, or a function of a rank: the traffic of
                                       a backup, and the bytes of memory for backups
    samplers        an option          (comm, config, dataset): the Sampler of a run
    tracers         an option          (config, comm): the Tracer of a run
    outputs         an option          the OutputFile that it names
    reports         an option          (outputs, config, report, writes): None; writes at the end
    start_fields    an option          (arrangement, batches): fields of the start event
    layout_fields   an option          (arrangement): fields of the event of a layout
    start_lines     a field of start   (event): a line of its text
    layout_texts    a field of layouts (event): a part of its text
    result_lines    a field of results (event): a line of its text
    sync_phrases    a field of start   (event): yields phrases on which ranks wait for which
    phrases         a field of start   (event): yields more phrases on how ranks are used
    rank_fields     any                (arrangement): fields about its ranks in events
    event_texts     a kind of event    (event): its text
    optimizers      its name           what makes it, of parameters and options of a run
    models          before a colon     a SizedModel, for models whose names begin so
    model_facts     a class            (model): its ModelFacts; the key is "module:name"
    recomputed      a --recompute      the class of the layers that this value makes run again in
                                       the backward pass
    layer_rules     a class            its LayerRule, by which ranks divide it; the key is the same
    module_rules    a class            (graph, ranks): its OwnedParts, which single ranks along tp
                                       compute alone; the key is the same
    layout_axes     one of --layout    the Marker that says how ranks along tp cut this axis of
                                       activations
    layout_ways     one of --layout    the same Marker, by the name that --layout has for this cut
    model_files     "folder"           (path): the ModelFile that the folder is
    state_files     "nested"           the module that divides a state into arrays and a structure
                    "pickle"           (path): the content of a file of PyTorch
                    "tensors"          (path): the tensors of a state_dict of PyTorch, by name
                    "torch"            (state, path): writes a file of PyTorch
                    "streams"          the module that saves to open files, and loads from them
    datasets        before a colon     a DatasetEntry, for data sets whose names begin so
    data_options    an option          (config): arguments of `nnmpi.data.load`
    tokenizers      one of datasets    (config): the tokenizer of its text, or None
"""

from collections.abc import Container, Iterator, Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple


class AddOn(NamedTuple):
    """An add-on: an optional part of nnmpi, described by the files that make it up and what it
    adds.

    modules   its folders and files
    uses      the add-ons that it imports
    rows      the rows that it adds to tables of core, {table: {key: "module:name"}}; "module" alone
              stands for the module itself. The tables are listed at the top of this file
    commands  by name: the module whose `parser()` defines the options, and a short description
    files     other files and folders that are removed with the add-on, besides tests that import
              its modules
    """

    modules: tuple[str, ...]
    uses: tuple[str, ...] = ()
    rows: Mapping[str, Mapping[str, str]] = {}
    commands: Mapping[str, tuple[str, str]] = {}
    files: tuple[str, ...] = ()


# ---- functions that read the list


def table(name: str) -> dict[str, str]:
    """Returns a table of add-ons, such as "optimizers": where the object of each key is defined.

    The result is {key: "module:name"}, from all add-ons that are installed.
    """
    return {key: where for a in ADD_ONS.values() for key, where in a.rows.get(name, {}).items()}


def names_of(package: str) -> dict[str, str]:
    """Returns the names that add-ons add to a package, "nnmpi" or a package in it.

    The result is {name: "module:name"}: where each name is defined.
    """
    full = {f"nnmpi.{key}".rpartition("."): where for key, where in table("names").items()}
    return {name: where for (of, _, name), where in full.items() if of == package}


def row(name: str, key: str) -> Any:
    """Imports and returns the object (a class, a function or a module) that add-ons give for a key
    of a table: row("optimizers", "radam") is the class RAdam. None if no installed add-on has this
    key."""
    where = table(name).get(key)
    return None if where is None else loaded(where)


def needed(name: str, key: str) -> Any:
    """Imports and returns the object (a class, a function or a module) that add-ons give for a key
    of a table, such as "radam" in the table "optimizers".

    Raises AttributeError if no installed add-on has this key.
    """
    if (value := row(name, key)) is None:
        raise AttributeError(f"{key} is of an add-on that is not here: install nnmpi with it")
    return value


def rows(name: str) -> Iterator[Any]:
    """Imports and yields every object (a class, a function or a module) in a table of add-ons, such
    as all optimizers of the table "optimizers"."""
    return map(loaded, table(name).values())


def given(name: str, options: object) -> Iterator[Any]:
    """Yields the objects in a table of add-ons that the options of a run, such as a Config, ask
    for: for instance the functions in the table "checks" that check the options in use.

    The keys of such a table are options, which ask for their object if their value is not the
    default, or features, which ask for it if they are switched on. A feature is what a run can be
    asked to do by one or more options.
    """
    features, plain = _features(), type(options)  # a dataclass has its defaults as attributes
    for key, where in table(name).items():
        if key in features and features[key].asks:
            is_given = bool(features[key].asked(options, 0))
        else:
            is_given = getattr(options, key) != getattr(plain, key)
        if is_given:
            yield loaded(where)


def chosen(name: str, options: object) -> Any:
    """Returns the first object in a table of add-ons that `options`, such as a Config, ask for: by
    an option whose value is not its default, or by a feature that is switched on. None if they ask
    for none."""
    return next(given(name, options), None)


@cache
def _features() -> dict[str, Any]:
    """Returns the features of all add-ons by name. A feature is what a run can be asked to do by
    one or more options, such as to continue when ranks are lost."""
    return {f.name: f for part in rows("options") for f in part.features}


def of_fields(name: str, fields: Container[str]) -> Iterator[Any]:
    """Imports and yields the objects (functions, for instance) in the table `name` of add-ons whose
    keys are among `fields`, the keys of an entry of the run's log."""
    return (loaded(where) for key, where in table(name).items() if key in fields)


def loaded(where: str) -> Any:
    """Imports a module and returns it, or, for "module:name", its attribute."""
    module, _, attribute = where.partition(":")
    value = import_module(module)
    return attrgetter(attribute)(value) if attribute else value


# ---- the list


def _places(modules: Mapping[str, str], package: str = "") -> dict[str, str]:
    """Returns rows for the table `names`, which lists what add-ons add to the namespace of nnmpi.

    The result is {"package.name": "nnmpi.module:name"}. `modules` has for each module its names,
    separated by spaces; `package` is a prefix of the keys.
    """
    return {
        f"{package}{name}": f"nnmpi.{module}:{name}"
        for module, names in modules.items()
        for name in names.split()
    }


_FUNCTIONS_AND_METHODS = _places(
    {
        "autograd.functions.elementwise": "addcdiv addcmul atan cumprod div lerp log2 nan_to_num",
        "autograd.functions.formulas": "logical_and logical_not logical_or logical_xor logsumexp"
        " reciprocal rsqrt square",
        "autograd.functions.gathering": "gather index_add index_select masked_select scatter"
        " scatter_add scatter_reduce take_along_dim",
        "autograd.functions.measuring": "bincount equal histc nonzero norm unique",
        "autograd.functions.ordering": "argsort kthvalue median mode quantile sort topk",
        "autograd.functions.products": "kron outer",
        "autograd.functions.rearranging": "diag flip moveaxis movedim narrow repeat_interleave roll"
        " select tile unbind",
        "autograd.functions.rounding": "ceil floor round sign trunc",
        "autograd.functions.triangles": "tril triu",
        "autograd.functions.type_limits": "is_floating_point",
        "nn.random_writes": "bernoulli",
    }
)
"""Rows for functions in nnmpi that are also methods of tensors."""

ADD_ONS = {
    "simulator": AddOn(
        modules=("nnmpi.sim", "nnmpi.simulate"),
        commands={
            "simulate": ("nnmpi.simulate", "predict and draw what layouts cost, without MPI")
        },
    ),
    "compression": AddOn(
        modules=(
            "nnmpi.options.parts.compression",
            *("nnmpi.parallel.compression", "nnmpi.collectives.compressed"),
        ),
        rows={
            "options": {"compression": "nnmpi.options.parts.compression:PART"},
            "checks": {"compress": "nnmpi.parallel.compression.proof:check"},
            "graph_checks": {"compress": "nnmpi.parallel.compression.store:check_terms"},
            "codec_traffic": {"compress": "nnmpi.collectives.compressed:sent"},
            "codecs": {"compress": "nnmpi.parallel.compression.alone:codec_call"},
            "store_kinds": {"compress": "nnmpi.parallel.compression.store:KIND"},
            "start_fields": {"compress": "nnmpi.parallel.compression.store:start_fields"},
            "phrases": {"compress": "nnmpi.parallel.compression.store:phrases"},
        },
    ),
    "swapping": AddOn(
        modules=(
            "nnmpi.options.parts.swapping",
            *("nnmpi.parallel.swapping", "nnmpi.io.output.residences", "nnmpi.run.within_memory"),
        ),
        uses=("planning",),
        rows={
            "options": {"swapping": "nnmpi.options.parts.swapping:PART"},
            "start_fields": {"memory": "nnmpi.parallel.swapping.placement:residence_fields"},
            "start_lines": {"residences": "nnmpi.io.output.residences:beyond_memory"},
            "layout_fields": {"memory": "nnmpi.parallel.swapping.placement:residence_fields"},
            "layout_texts": {"residences": "nnmpi.io.output.residences:units"},
            "arrangements": {"memory": "nnmpi.run.within_memory:within_memory"},
            "memory_limits": {"memory": "nnmpi.options.parts.swapping:limit"},
        },
    ),
    "nccl": AddOn(
        modules=("nnmpi.options.parts.nccl", "nnmpi.parallel.nccl"),
        rows={
            "options": {"nccl": "nnmpi.options.parts.nccl:PART"},
            "library_sums": {"nccl": "nnmpi.parallel.nccl:SUMS"},
        },
    ),
    "cuda": AddOn(
        modules=(
            *("nnmpi.options.parts.cuda", "nnmpi.arrays.cuda"),
            *("nnmpi.parallel.deferred_steps", "nnmpi.parallel.cuda_graphs"),
        ),
        rows={
            "options": {"cuda": "nnmpi.options.parts.cuda:PART"},
            "device_kernels": {"cuda": "nnmpi.arrays.cuda:KERNELS"},
            "device_settings": {"cuda": "nnmpi.arrays.cuda.tf32:set_up"},
            "late_outcomes": {"cuda": "nnmpi.parallel.deferred_steps:deferred"},
            "captures": {"cuda": "nnmpi.parallel.cuda_graphs:captured"},
        },
        files=(
            *("scripts/gpu_check", "scripts/gpu_check.py"),
            *(f"tests/strict/test_strict_late{rest}.py" for rest in ("", "_halves", "_ranks")),
        ),
    ),
    "winograd": AddOn(
        modules=("nnmpi.arrays.winograd", "nnmpi.arrays.kernels.winograd_matrices"),
        rows={
            "convolutions": dict.fromkeys(
                ("auto", "winograd2", "winograd4"), "nnmpi.arrays.winograd:method_of"
            )
        },
    ),
    "planning": AddOn(
        modules=(
            "nnmpi.options.parts.planning",
            *("nnmpi.planning", "nnmpi.run.planning"),
            *("nnmpi.plan", "nnmpi.measure"),
        ),
        uses=("simulator", "context"),
        rows={
            "options": {"planning": "nnmpi.options.parts.planning:PART"},
            "names": {"machines": "nnmpi.planning.described:machines"},
            "instead": {"dry_run": "nnmpi.run.planning.dry_run:print_dry_run"},
            "plans": {"plan": "nnmpi.run.planning.planning:planned_run"},
            "simulations": {"layout": "nnmpi.run.planning.dry_run"},
            "sim_options": {"machine": "nnmpi.planning.described.simulated:add_machine"},
            "start_fields": {"pp": "nnmpi.planning.stage_costs:pipeline_fields"},
            "start_lines": {"plan": "nnmpi.run.planning.text:chosen"},
            "result_lines": {"plan": "nnmpi.run.planning.text:outcome"},
            "rank_fields": {"kinds": "nnmpi.run.planning.layout_events:rank_fields"},
            "event_texts": {
                "dry-run": "nnmpi.run.planning.layout_text:arranged",
                "layout": "nnmpi.run.planning.layout_text:arranged",
            },
        },
        commands={
            "plan": ("nnmpi.plan", "find the layout that trains a model fastest, without MPI"),
            "measure": (
                "nnmpi.measure",
                "measure the times of a model on this machine, for plan",
            ),
        },
    ),
    "pages": AddOn(
        modules=(
            "nnmpi.options.parts.pages",
            *("nnmpi.io.page", "nnmpi.io.output.plot", "nnmpi.io.output.curves"),
            *("nnmpi.plot", "nnmpi.report", "nnmpi.watch"),
        ),
        uses=("simulator", "planning"),
        rows={
            "options": {"pages": "nnmpi.options.parts.pages:PART"},
            "names": {"plot": "nnmpi.io.output.plot:plot"},
            "outputs": {"report": "nnmpi.io.page.page:OUTPUT"},
            "reports": {"report": "nnmpi.io.page.page:write_at_end"},
        },
        commands={
            "plot": ("nnmpi.io.output.plot", "draw loss and accuracy, from logs of runs"),
            "report": ("nnmpi.report", "write a page of runs, from their logs and traces"),
            "watch": ("nnmpi.watch", "serve that page, and update it while a run continues"),
        },
    ),
    "images": AddOn(
        modules=tuple(f"nnmpi.data.{name}" for name in ("mnist", "cifar", "download")),
        rows={
            "names": {
                f"data.{name}": f"nnmpi.data.{name}" for name in ("mnist", "cifar", "download")
            },
            "datasets": {
                "mnist": "nnmpi.data.mnist:MNIST",
                "fashion-mnist": "nnmpi.data.mnist:FASHION_MNIST",
                "cifar10": "nnmpi.data.cifar:CIFAR10",
            },
        },
    ),
    "language": AddOn(
        modules=(
            "nnmpi.options.parts.language",
            *("nnmpi.nn.gpt", "nnmpi.nn.gpt2", "nnmpi.nn.llama", "nnmpi.nn.llama_folder"),
            *("nnmpi.nn.language", "nnmpi.io.files.folders"),
            *(f"nnmpi.data.{name}" for name in ("text", "windows", "tokenizer", "bpe", "pieces")),
            *("nnmpi.run.text", "nnmpi.generate", "nnmpi.tokenize"),
        ),
        uses=("planning", "transformer"),
        rows={
            "options": {"language": "nnmpi.options.parts.language:PART"},
            "names": {
                "generate": "nnmpi.run.text.generation:generate",
                "nn.GPT": "nnmpi.nn.gpt:GPT",
                "nn.Llama": "nnmpi.nn.llama:Llama",
                **{
                    name: f"nnmpi.{name}"
                    for name in (
                        *("nn.gpt", "nn.gpt2", "nn.llama", "nn.llama_folder", "nn.language"),
                        *("data.text", "data.windows", "data.tokenizer", "data.bpe"),
                        "data.pieces",
                    )
                },
            },
            "models": {
                "gpt2": "nnmpi.run.text.models:GPT2",
                "gpt": "nnmpi.run.text.models:GPT",
                "llama": "nnmpi.run.text.models:LLAMA",
            },
            "model_facts": dict.fromkeys(
                ("nnmpi.nn.gpt:GPT", "nnmpi.nn.llama:Llama"), "nnmpi.run.text.models:LanguageFacts"
            ),
            "model_checks": {
                "dropout": "nnmpi.run.text.models:check_dropout",
                "sample_every": "nnmpi.run.text.models:check_stages",
            },
            "model_files": {"folder": "nnmpi.io.files.folders:ModelFolder"},
            "datasets": {
                "text": "nnmpi.data.text:TEXT",
                "tokens": "nnmpi.data.windows:TOKENS",
            },
            "data_options": dict.fromkeys(
                ("context", "tokenizer"), "nnmpi.run.text.saved:data_options"
            ),
            "tokenizers": {"text": "nnmpi.run.text.saved:tokenizer_of_text"},
            "language_checks": {"load": "nnmpi.run.text.saved:check_vocabulary"},
            "methods": {"generate": "nnmpi.run.text.samples:generate"},
            "samplers": {"sample_every": "nnmpi.run.text.samples:agreed_sampler"},
            "read_every": {"sample_every": "nnmpi.run.text.samples:read_every"},
        },
        commands={
            "generate": ("nnmpi.run.text.generate_command", "generate text with a saved model"),
            "tokenize": ("nnmpi.tokenize.__main__", "write the tokens of a text to a file"),
        },
        files=("nnmpi/data/embedded/new-testament.txt.gz",),
    ),
    "loggers": AddOn(
        modules=("nnmpi.options.parts.loggers", "nnmpi.io.loggers"),
        uses=("planning", "pages"),
        rows={
            "options": {"loggers": "nnmpi.options.parts.loggers:PART"},
            "names": {"loggers": "nnmpi.io.loggers"},
            "callbacks": {"logger": "nnmpi.io.loggers:loggers_of"},
        },
    ),
    "notebook": AddOn(
        modules=("nnmpi.run.notebook",),
        uses=("simulator", "planning", "pages"),
        rows={
            "names": {
                "notebook": "nnmpi.run.notebook",
                "load_ipython_extension": "nnmpi.run.notebook:load_ipython_extension",
            },
            "in_ipython": {"pictures": "nnmpi.run.notebook.pictures"},
        },
        files=("tests/examples/test_notebooks.py",),
    ),
    "servers": AddOn(
        modules=("nnmpi.options.parts.servers", "nnmpi.parallel.server"),
        uses=("averaging",),
        rows={
            "options": {"servers": "nnmpi.options.parts.servers:PART"},
            "checks": {"servers": "nnmpi.parallel.server:check"},
            "serving_ranks": {"servers": "nnmpi.options.parts.servers:server_count"},
            "fewer_ranks": {"servers": "nnmpi.options.parts.servers:with_fewer"},
            "strategy_kinds": {"servers": "nnmpi.parallel.server:KIND"},
            "layout_fields": {"servers": "nnmpi.parallel.server.strategy:layout_fields"},
            "sync_phrases": {"servers": "nnmpi.parallel.server.text:phrases"},
            "result_lines": {"staleness": "nnmpi.parallel.server.text:staleness"},
            "fitted_notes": {"servers": "nnmpi.options.parts.servers:note_of_fitted"},
        },
    ),
    "averaging": AddOn(
        modules=("nnmpi.options.parts.averaging", "nnmpi.parallel.averaging"),
        uses=("compression",),
        rows={
            "options": {"averaging": "nnmpi.options.parts.averaging:PART"},
            "graph_checks": dict.fromkeys(
                ("every", "fragments", "apply_after"),
                "nnmpi.parallel.averaging.fragments:check_fragments",
            ),
            "strategy_kinds": {"averaging": "nnmpi.parallel.averaging:KIND"},
            "sync_phrases": {"every": "nnmpi.parallel.averaging.rounds:phrases"},
        },
    ),
    "pipedream": AddOn(
        modules=("nnmpi.options.parts.pipedream", "nnmpi.parallel.pipedream"),
        rows={
            "options": {"pipedream": "nnmpi.options.parts.pipedream:PART"},
            "checks": {"pipedream": "nnmpi.parallel.pipedream:check"},
            "strategy_kinds": {"pipedream": "nnmpi.parallel.pipedream:KIND"},
        },
    ),
    "checks": AddOn(
        modules=("nnmpi.options.parts.checks", "nnmpi.parallel.checks"),
        rows={
            "options": {"checks": "nnmpi.options.parts.checks:PART"},
            "checks": {
                "reproducible": "nnmpi.parallel.checks.reproducible:check",
                "slow_rank": "nnmpi.parallel.checks.slow_ranks:check",
                "jitter": "nnmpi.parallel.checks.slow_ranks:check",
            },
            "batch_checks": {"reproducible": "nnmpi.parallel.checks.reproducible:check_batch"},
            "strategy_kinds": {"reproducible": "nnmpi.parallel.checks.slices:KIND"},
            "slowed": dict.fromkeys(
                ("slow_rank", "jitter"), "nnmpi.parallel.checks.slow_ranks:slowed"
            ),
            "layout_fields": {"reproducible": "nnmpi.parallel.checks.slices:layout_fields"},
            "phrases": {
                name: f"nnmpi.parallel.checks.text:{name}"
                for name in ("reproducible", "slow_rank", "jitter", "verify")
            },
            "event_texts": {"verify": "nnmpi.parallel.checks.text:compared"},
            "result_lines": {"largest_differences": "nnmpi.parallel.checks.text:largest"},
            "twins": {"verify": "nnmpi.parallel.checks.twin:single_rank"},
            "compared": {"verify": "nnmpi.parallel.checks.verify:VerifiedStrategy"},
            "read_every": {"verify": "nnmpi.parallel.checks.verify:read_every"},
            "fitted": {"slow_rank": "nnmpi.parallel.checks.slow_ranks:fitted"},
            "start_fields": dict.fromkeys(
                ("slow_rank", "jitter"), "nnmpi.parallel.checks.slow_ranks:start_fields"
            ),
        },
    ),
    "recovery": AddOn(
        modules=(
            "nnmpi.options.parts.recovery",
            *("nnmpi.parallel.recovery", "nnmpi.run.recovery", "nnmpi.comm.ulfm"),
        ),
        uses=("checkpoints",),
        rows={
            "options": {"recovery": "nnmpi.options.parts.recovery:PART"},
            "outliving": {"ulfm": "nnmpi.comm.ulfm.start"},
            "job_checks": {"backup": "nnmpi.parallel.recovery.backup:check"},
            "event_texts": {"recovered": "nnmpi.run.recovery.text:recovered"},
            "supervisors": {"elastic": "nnmpi.run.recovery.recovery:Recovery"},
            "restarts": {"elastic": "nnmpi.run.recovery.layouts:no_checkpoint"},
            "layouts": {"elastic": "nnmpi.run.recovery.layouts:layout_of_job"},
            "backups": {"backup": "nnmpi.parallel.recovery.backups_on_paper:backups_of"},
            "layout_fields": {"backup": "nnmpi.parallel.recovery.backups_on_paper:layout_fields"},
            "layout_texts": {"backup": "nnmpi.run.recovery.text:backups"},
            "sim_options": {"backup": "nnmpi.options.parts.recovery:add_backup"},
            "undos": {
                "step": "nnmpi.parallel.recovery.step_undo:StepUndo",
                "round": "nnmpi.parallel.recovery.round_undo:RoundUndo",
            },
        },
        files=(
            *("tests/comm/test_ulfm_mpi.py", "tests/run/test_recovery_ulfm_mpi.py"),
            "benchmarks/backup.py",
        ),
    ),
    "checkpoints": AddOn(
        modules=(
            "nnmpi.options.parts.checkpoints",
            *(
                f"nnmpi.io.checkpoints.{name}"
                for name in ("forms", "keep", "manifest", "rank_file", "read", "schema", "text")
            ),
            *("nnmpi.io.checkpoints.write", "nnmpi.run.checkpointing", "nnmpi.run.resume"),
        ),
        rows={
            "options": {"checkpoints": "nnmpi.options.parts.checkpoints:PART"},
            "loss_checks": {"keep_best": "nnmpi.run.checkpointing:check_best"},
            "read_every": {"save_every": "nnmpi.run.checkpointing:read_every"},
            "checkpoints": {"checkpoint_dir": "nnmpi.run.checkpointing:Checkpoints"},
            "resumes": {"checkpoint_dir": "nnmpi.run.resume:open_on_newest"},
            "methods": {
                "resume": "nnmpi.run.resume:resuming",
                "save_checkpoint": "nnmpi.run.checkpointing:save_checkpoint",
            },
            "event_texts": {
                "checkpoint": "nnmpi.io.checkpoints.text:written",
                "complete": "nnmpi.io.checkpoints.text:complete",
                "resumed": "nnmpi.io.checkpoints.text:resumed",
                "suspended": "nnmpi.io.checkpoints.text:suspended",
            },
            "result_lines": {"checkpoints": "nnmpi.io.checkpoints.text:waited"},
        },
    ),
    "trace": AddOn(
        modules=("nnmpi.options.parts.trace", "nnmpi.io.trace"),
        uses=("simulator",),
        rows={
            "options": {"trace": "nnmpi.options.parts.trace:PART"},
            "outputs": {"trace": "nnmpi.io.trace.tracing:OUTPUT"},
            "tracers": {"trace": "nnmpi.io.trace:Tracer"},
            "result_lines": {"trace": "nnmpi.io.trace.text:times"},
        },
    ),
    "context": AddOn(
        modules=(
            "nnmpi.options.parts.context",
            *("nnmpi.parallel.context", "nnmpi.run.setup.sequences"),
        ),
        uses=("transformer",),
        rows={
            "options": {"context": "nnmpi.options.parts.context:PART"},
            "axis_set_ups": {"cp": "nnmpi.run.setup.sequences:SET_UP"},
        },
    ),
    "course": AddOn(
        modules=("nnmpi.course",),
        commands={"course": ("nnmpi.course", "hand out assignments of a course, and grade them")},
        files=("course", "tests/course"),
    ),
    "sklearn": AddOn(modules=("nnmpi.sklearn",)),
    "tensor-functions": AddOn(
        modules=(
            *("nnmpi.autograd.functions", "nnmpi.autograd.declared", "nnmpi.nn.random_writes"),
            *(
                f"nnmpi.autograd.ops.{name}"
                for name in (
                    *("arrange", "distance", "einsum", "gather", "more_elementwise", "order"),
                    *("rounding", "scatter_reduce"),
                )
            ),
        ),
        uses=("nn-functions",),
        rows={
            "tensor_methods": _FUNCTIONS_AND_METHODS
            | _places(
                {
                    "autograd.functions.gathering": "index_add_ scatter_ scatter_add_"
                    " scatter_reduce_",
                    "autograd.functions.in_place": "abs_ add_ addcdiv_ addcmul_ atan_ ceil_ clamp_"
                    " clamp_max_ clamp_min_ copy_ cos_ cumprod_ cumsum_ div_ exp_ fill_"
                    " fill_diagonal_ floor_ lerp_ log2_ log_ masked_fill_ mul_ nan_to_num_ neg_"
                    " pow_ relu_ remainder_ round_ sigmoid_ sin_ sqrt_ sub_ tanh_ zero_",
                    "autograd.functions.rearranging": "repeat unflatten unfold",
                    "autograd.functions.same_kind": "new_empty new_full new_ones new_tensor"
                    " new_zeros",
                    "autograd.functions.retained": "retain_grad",
                    "autograd.functions.type_limits": "is_contiguous stride",
                    "autograd.functions.typed": "type type_as",
                    "nn.random_writes": "bernoulli_ exponential_ multinomial normal_ uniform_",
                }
            ),
            "names": _FUNCTIONS_AND_METHODS
            | _places(
                {
                    "autograd.functions.grad_modes": "enable_grad inference_mode is_grad_enabled"
                    " set_grad_enabled",
                    "autograd.functions.joining": "hstack vstack",
                    "autograd.functions.measuring": "cdist",
                    "autograd.functions.products": "einsum",
                    "autograd.functions.rearranging": "meshgrid",
                    "autograd.functions.triangles": "tril_indices triu_indices",
                    "autograd.functions.type_limits": "finfo iinfo",
                    "autograd.functions.typed": "BoolTensor ByteTensor CharTensor DoubleTensor"
                    " FloatTensor HalfTensor IntTensor LongTensor ShortTensor is_tensor",
                }
            )
            | _places(
                {
                    "autograd.functions.custom_function": "Function",
                    "autograd.functions.differentiation": "grad",
                    "autograd.functions.grad_modes": "enable_grad inference_mode set_grad_enabled",
                    "autograd.functions.gradcheck": "gradcheck",
                    "autograd.functions.typed": "Variable",
                },
                "autograd.",
            )
            | _places({"autograd.functions.gathering": "one_hot"}, "nn.functional."),
        },
    ),
    "nn-functions": AddOn(
        modules=("nnmpi.nn.functional", "nnmpi.nn.layer_functions", "nnmpi.nn.init"),
        rows={
            "names": {"nn.functional": "nnmpi.nn.functional", "nn.init": "nnmpi.nn.init"},
        },
    ),
    "experts": AddOn(
        modules=(
            *("nnmpi.nn.layers.experts", "nnmpi.autograd.ops.experts"),
            "nnmpi.parallel.tensor.experts",
        ),
        rows={
            "names": {"nn.MixtureOfExperts": "nnmpi.nn.layers.experts:MixtureOfExperts"},
            "layer_rules": {
                "nnmpi.nn.layers.experts:Experts": "nnmpi.parallel.tensor.experts:EXPERTS_RULE",
                "nnmpi.nn.layers.experts:Router": "nnmpi.parallel.tensor.experts:ROUTER_RULE",
            },
        },
    ),
    "branches": AddOn(
        modules=(
            *("nnmpi.nn.layers.branches", "nnmpi.autograd.ops.branches"),
            "nnmpi.parallel.tensor.branches",
        ),
        rows={
            "names": {"nn.Branches": "nnmpi.nn.layers.branches:Branches"},
            "module_rules": {
                "nnmpi.nn.layers.branches:Branches": (
                    "nnmpi.parallel.tensor.branches:divide_branches"
                )
            },
        },
    ),
    "image-rows": AddOn(
        modules=("nnmpi.parallel.tensor.image_rows",),
        rows={
            "layout_axes": {"rows": "nnmpi.parallel.tensor.image_rows.cut:IMAGE_ROWS"},
            "layout_ways": {"spatial": "nnmpi.parallel.tensor.image_rows.cut:IMAGE_ROWS"},
        },
    ),
    "transformer": AddOn(
        modules=(
            "nnmpi.options.parts.transformer",
            *(f"nnmpi.nn.layers.{name}" for name in ("attention", "gates", "sequences")),
            *(f"nnmpi.nn.layers.{name}" for name in ("multihead", "transformer")),
            *("nnmpi.nn.dot_product_attention", "nnmpi.autograd.ops.attention"),
            "nnmpi.autograd.ops.gates",
            *("nnmpi.arrays.kernels.attention", "nnmpi.arrays.kernels.scores"),
            "nnmpi.parallel.tensor.transformer",
        ),
        rows={
            "options": {"transformer": "nnmpi.options.parts.transformer:PART"},
            "recomputed": {"selective": "nnmpi.nn.layers.attention:SelfAttention"},
            "layer_rules": {
                "nnmpi.nn.layers.attention:SelfAttention": (
                    "nnmpi.parallel.tensor.transformer:ATTENTION_RULE"
                ),
                "nnmpi.nn.layers.sequences:PositionalEmbedding": (
                    "nnmpi.parallel.tensor.transformer:EMBEDDING_RULE"
                ),
                "nnmpi.nn.layers.gates:SwiGLU": "nnmpi.parallel.tensor.transformer:GATES_RULE",
            },
            "names": {
                **_places({"nn.dot_product_attention": "scaled_dot_product_attention"}),
                **_places(
                    {"nn.dot_product_attention": "scaled_dot_product_attention"}, "nn.functional."
                ),
                **_places(
                    {
                        "nn.layers.attention": "SelfAttention",
                        "nn.layers.gates": "SwiGLU",
                        "nn.layers.multihead": "MultiheadAttention",
                        "nn.layers.sequences": "PositionalEmbedding RotaryPositionalEmbeddings",
                        "nn.layers.transformer": "TransformerEncoder TransformerEncoderLayer",
                    },
                    "nn.",
                ),
            },
        },
    ),
    "recurrent": AddOn(
        modules=(
            *("nnmpi.nn.layers.recurrent", "nnmpi.nn.layers.recurrent_cells"),
            *("nnmpi.autograd.ops.recurrent", "nnmpi.autograd.ops.distinct_rows"),
            "nnmpi.arrays.kernels.recurrent",
            *("nnmpi.nn.packed", "nnmpi.nn.utils.rnn"),
        ),
        rows={
            "names": {
                "nn.utils.rnn": "nnmpi.nn.utils.rnn",
                **_places(
                    {
                        "nn.layers.recurrent": "GRU LSTM RNN",
                        "nn.layers.recurrent_cells": "GRUCell LSTMCell RNNCell",
                    },
                    "nn.",
                ),
            }
        },
    ),
    "more-layers": AddOn(
        modules=(
            *(
                "nnmpi.nn.layers.padding",
                "nnmpi.nn.layers.distances",
                "nnmpi.nn.layers.more_activations",
            ),
            "nnmpi.nn.layers.embedding_bag",
            *("nnmpi.nn.utils.norms", "nnmpi.nn.utils.vectors"),
            "nnmpi.nn.more_losses",
            *("nnmpi.autograd.ops.element_losses", "nnmpi.autograd.ops.more_activations"),
        ),
        uses=("tensor-functions", "nn-functions"),
        rows={
            "names": {
                **{
                    f"nn.{kind}Pad{axes}d": f"nnmpi.nn.layers.padding:{kind}Pad{axes}d"
                    for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero")
                    for axes in (1, 2)
                },
                **_places(
                    {
                        "nn.layers.distances": "CosineEmbeddingLoss CosineSimilarity"
                        " MarginRankingLoss PairwiseDistance TripletMarginLoss",
                        "nn.layers.embedding_bag": "EmbeddingBag",
                        "nn.layers.more_activations": "Hardsigmoid Hardswish Hardtanh LogSigmoid"
                        " Mish ReLU6 SELU Softsign",
                        "nn.layers.padding": "PixelShuffle PixelUnshuffle Unflatten",
                        "nn.more_losses": "BCELoss BCEWithLogitsLoss HuberLoss KLDivLoss"
                        " SmoothL1Loss",
                    },
                    "nn.",
                ),
                **_places(
                    {
                        "nn.layers.distances": "cosine_similarity normalize pairwise_distance"
                        " triplet_margin_loss",
                        "nn.layers.more_activations": "hardsigmoid hardswish hardtanh logsigmoid"
                        " mish relu6 selu softsign",
                        "nn.more_losses": "binary_cross_entropy binary_cross_entropy_with_logits"
                        " huber_loss kl_div smooth_l1_loss",
                    },
                    "nn.functional.",
                ),
                **_places(
                    {
                        "nn.utils.norms": "remove_spectral_norm remove_weight_norm spectral_norm"
                        " weight_norm",
                        "nn.utils.vectors": "parameters_to_vector vector_to_parameters",
                    },
                    "nn.utils.",
                ),
            }
        },
    ),
    "optimizers": AddOn(
        modules=(
            "nnmpi.options.parts.optimizers",
            *("nnmpi.optim.adaptive", "nnmpi.optim.layerwise", "nnmpi.optim.muon"),
            *("nnmpi.optim.lbfgs", "nnmpi.optim.line_search"),
        ),
        rows={
            "options": {"optimizers": "nnmpi.options.parts.optimizers:PART"},
            "names": _places(
                {
                    "optim.adaptive": "ASGD Adadelta Adagrad Adamax NAdam RAdam Rprop",
                    "optim.layerwise": "LAMB LARS",
                    "optim.lbfgs": "LBFGS",
                    "optim.muon": "Muon",
                },
                "optim.",
            ),
            "optimizers": {
                **{
                    name.lower(): f"nnmpi.optim.adaptive:{name}"
                    for name in ("ASGD", "Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam")
                },
                "lamb": "nnmpi.optim.layerwise:LAMB",
                "lars": "nnmpi.optim.layerwise:LARS",
                "muon": "nnmpi.optim.muon:Muon.with_adamw",
            },
        },
    ),
    "torch-settings": AddOn(
        modules=(
            *("nnmpi.accelerator", "nnmpi.amp", "nnmpi.backends", "nnmpi.cuda", "nnmpi.jit"),
            *("nnmpi.autograd.autocasting", "nnmpi.memory_formats"),
        ),
        rows={
            "names": {
                "accelerator": "nnmpi.accelerator",
                "amp": "nnmpi.amp",
                "cuda": "nnmpi.cuda",
                "cuda.amp": "nnmpi.cuda.amp",
                "backends": "nnmpi.backends",
                "jit": "nnmpi.jit",
                **_places(
                    {
                        "autograd.autocasting": "autocast get_autocast_dtype is_autocast_enabled",
                    }
                ),
                **_places({"memory_formats": "channels_last contiguous_format preserve_format"}),
            }
        },
    ),
    "distributions": AddOn(
        modules=("nnmpi.distributions",),
        uses=("tensor-functions", "nn-functions", "more-layers"),
        rows={"names": {"distributions": "nnmpi.distributions"}},
    ),
    "utils": AddOn(
        modules=(
            "nnmpi.utils",
            *("nnmpi.optim.lr_scheduler", "nnmpi.optim.scheduler", "nnmpi.optim.cycles"),
            "nnmpi.optim.swa_utils",
        ),
        rows={
            "names": {
                "utils": "nnmpi.utils",
                "optim.lr_scheduler": "nnmpi.optim.lr_scheduler",
                "optim.swa_utils": "nnmpi.optim.swa_utils",
            }
        },
    ),
    "state-files": AddOn(
        modules=("nnmpi.io.nested", "nnmpi.io.streams", "nnmpi.io.torch_files"),
        rows={
            "state_files": {
                "nested": "nnmpi.io.nested",
                "streams": "nnmpi.io.streams",
                "pickle": "nnmpi.io.torch_files.reading:read",
                "torch": "nnmpi.io.torch_files.writing:write",
                "tensors": "nnmpi.io.torch_files.tensors:tensors",
            }
        },
    ),
    "distributed": AddOn(
        modules=(
            *("nnmpi.distributed", "nnmpi.nn.parallel", "nnmpi.utils.data.distributed"),
            "nnmpi.run.__main__",
        ),
        uses=("utils",),
        rows={
            "names": {
                "distributed": "nnmpi.distributed",
                "verify": "nnmpi.distributed.replicas:verify",
                "nn.parallel": "nnmpi.nn.parallel",
                "nn.parallel.DistributedDataParallel": (
                    "nnmpi.distributed.data_parallel:DistributedDataParallel"
                ),
                "utils.data.distributed": "nnmpi.utils.data.distributed",
                **{
                    f"utils.data.{name}": "nnmpi.distributed.sampler:DistributedSampler"
                    for name in ("DistributedSampler", "distributed.DistributedSampler")
                },
            }
        },
    ),
    "torch": AddOn(modules=("nnmpi.torch",), uses=("distributed",)),
    "compile": AddOn(
        modules=(
            *("nnmpi.optim.compiled", "nnmpi.optim.recorded_step", "nnmpi.optim.call_form"),
            *("nnmpi.optim.step_code", "nnmpi.optim.step_replay", "nnmpi.optim.step_state"),
            "nnmpi.arrays.meta.number",
        ),
        rows={"names": {"compile": "nnmpi.optim.compiled:compile"}},
    ),
    "checkpoint": AddOn(
        modules=("nnmpi.checkpoint", "nnmpi.io.checkpoints.export"),
        uses=("checkpoints",),
        commands={"checkpoint": ("nnmpi.checkpoint", "list, verify and export checkpoints")},
    ),
    "doctor": AddOn(
        modules=("nnmpi.doctor", "nnmpi.comm.transport.installed"),
        commands={"doctor": ("nnmpi.doctor", "check the installation")},
    ),
    "completion": AddOn(
        modules=("nnmpi.completion",),
        commands={"completion": ("nnmpi.completion", "print the completion script of a shell")},
    ),
}
"""The add-ons by name."""
