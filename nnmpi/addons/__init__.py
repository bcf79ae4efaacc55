"""The add-ons of nnmpi: parts that can be left out, and the objects that they add to tables of
core.

Each add-on has a folder here, whose `addon.py` says what the add-on needs and what it adds. Core
imports no add-on. It asks here for the object that a table has under a key, and its module is
imported only then. `scripts/without NAME` takes out an add-on's folder and modules, and tests the
rest.

    table           key                the value, or the function and what it returns
    options         its name           AddOnOptions: options of Config, and the features (what a
                                       run can be asked to do) that they switch on
    names           a name of nnmpi    what `nnmpi.NAME` is; NAME may be in a package, as nn.GPT
    modules         a module of nnmpi  the module that its import finds, if it has no file of its
                                       own; the modules in it likewise
    of_step         any                a module whose functions change nothing but their arguments,
                                       so that a recorded step may call them
    classes_of_step any                a module whose classes a recorded step may use
    tensor_methods  a method of        the function that it calls, with the tensor
                    tensors
    memory          its name           a function: what programs for PyTorch do with memory, such as
                                       writes to views, that plain runs do not
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
    captures        a device           (backend, stage, criteria, forward, micro): a Replay of the
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
from importlib.machinery import SourceFileLoader
from operator import attrgetter
from pathlib import Path
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


@cache
def table(name: str) -> Mapping[str, str]:
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


def places(modules: Mapping[str, str], package: str = "") -> dict[str, str]:
    """Returns rows for the table `names`, which lists what add-ons add to the namespace of nnmpi.

    The result is {"package.name": "nnmpi.module:name"}. `modules` has for each module its names,
    separated by spaces; `package` is a prefix of the keys.
    """
    return {
        f"{package}{name}": f"nnmpi.{module}:{name}"
        for module, names in modules.items()
        for name in names.split()
    }


def _read(name: str) -> AddOn:
    """Returns the AddOn that `addon.py` in the folder of an add-on defines. The file is run without
    being imported, since an import would load the package around it."""
    module = f"{__name__}.{name}.addon"
    code = SourceFileLoader(module, str(_HERE / name / "addon.py")).get_code(module)
    assert code is not None
    defined = dict[str, Any]()
    exec(code, defined)
    add_on: AddOn = defined["ADD_ON"]
    return add_on


NAMES = """
simulator compression swapping nccl cuda winograd planning pages images language servers averaging
pipedream checks recovery checkpoints trace course layer_ways transformer recurrent
torchlike optimizers interop compile doctor
"""
"""The names of the add-ons, which are those of their folders, in the order of their options in
`--help`."""

_HERE = Path(__file__).parent
ADD_ONS = {name: _read(name) for name in NAMES.split() if (_HERE / name / "addon.py").is_file()}
"""The add-ons that are installed, by name."""
