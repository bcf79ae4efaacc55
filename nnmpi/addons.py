"""The add-ons of nnmpi: parts that can be left out, and the rows that they add to tables of core.

Core imports no add-on. It asks here for the rows of a table, and a row is loaded when it is asked
for. Without the modules of an add-on and its entry here everything else works: `scripts/without
NAME` tries it.

    table           key                the function, and what it returns
    names           a name of nnmpi    what `nnmpi.NAME` is
    methods         one of Trainer     what it calls, with the session and its arguments
    instead         an option          (config, comm): the exit status of the command, which does
                                       this instead of training
    plans           an option          (setup, config, comm): the RunPlan of a run
    arrangements    an option          (arrangement, comm, model, samples, backend): the arrangement
    callbacks       an option          (config): callbacks of a run
    samplers        an option          (comm, config, dataset): the Sampler of a run
    tracers         an option          (config, comm): the Tracer of a run
    reports         an option          (outputs, config, report, writes): None; writes at the end
    start_fields    any                (arrangement, batches): fields of the start event
    rank_fields     any                (arrangement): its fields about ranks, where it is reported
    event_texts     a kind of event    (event): its text
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple


class AddOn(NamedTuple):
    """An add-on.

    modules   its folders and files
    uses      the add-ons that it imports
    rows      of core's tables, by key: "module:name", or "module" for the module itself
    commands  by name: the module whose `parser()` has the options, and what the command does
    files     other files and folders that go with it, besides tests that import its modules
    """

    modules: tuple[str, ...]
    uses: tuple[str, ...] = ()
    rows: Mapping[str, Mapping[str, str]] = {}
    commands: Mapping[str, tuple[str, str]] = {}
    files: tuple[str, ...] = ()


ADD_ONS = {
    "simulator": AddOn(modules=("nnmpi.sim",)),
    "planning": AddOn(
        modules=(
            *("nnmpi.planning", "nnmpi.run.planning"),
            *("nnmpi.plan", "nnmpi.measure", "nnmpi.simulate"),
        ),
        uses=("simulator",),
        rows={
            "names": {"machines": "nnmpi.planning.described:machines"},
            "instead": {"dry_run": "nnmpi.run.planning.dry_run:print_dry_run"},
            "plans": {"plan": "nnmpi.run.planning.planning:planned_run"},
            "arrangements": {"memory": "nnmpi.planning.residences:within_memory"},
            "start_fields": {"pipeline": "nnmpi.planning.stage_costs:pipeline_fields"},
            "rank_fields": {"kinds": "nnmpi.run.planning.layout_events:rank_fields"},
            "event_texts": {
                "dry-run": "nnmpi.run.planning.layout_text:arranged",
                "layout": "nnmpi.run.planning.layout_text:arranged",
            },
        },
        commands={
            "simulate": ("nnmpi.simulate", "predict and draw what layouts cost, without MPI"),
            "plan": ("nnmpi.plan", "find the layout that trains a model fastest, without MPI"),
            "measure": (
                "nnmpi.measure",
                "measure the times of a model on this machine, for plan",
            ),
        },
    ),
    "pages": AddOn(
        modules=(
            *("nnmpi.io.page", "nnmpi.io.output.plot", "nnmpi.io.output.curves"),
            *("nnmpi.plot", "nnmpi.report", "nnmpi.watch"),
        ),
        uses=("simulator", "planning"),
        rows={
            "names": {"plot": "nnmpi.io.output.plot:plot"},
            "reports": {"report": "nnmpi.io.page.page:write_at_end"},
        },
        commands={
            "plot": ("nnmpi.io.output.plot", "draw loss and accuracy, from logs of runs"),
            "report": ("nnmpi.report", "write a page of runs, from their logs and traces"),
            "watch": ("nnmpi.watch", "serve that page, and update it while a run continues"),
        },
    ),
    "language": AddOn(
        modules=("nnmpi.run.text", "nnmpi.generate", "nnmpi.tokenize"),
        uses=("planning",),
        rows={
            "names": {"generate": "nnmpi.run.text.generation:generate"},
            "methods": {"generate": "nnmpi.run.text.samples:generate"},
            "samplers": {"sample_every": "nnmpi.run.text.samples:agreed_sampler"},
        },
        commands={
            "generate": ("nnmpi.run.text.generate_command", "generate text with a saved model"),
            "tokenize": ("nnmpi.tokenize.__main__", "write the tokens of a text to a file"),
        },
    ),
    "loggers": AddOn(
        modules=("nnmpi.io.loggers",),
        uses=("planning", "pages"),
        rows={
            "names": {"loggers": "nnmpi.io.loggers"},
            "callbacks": {"logger": "nnmpi.io.loggers:loggers_of"},
        },
    ),
    "trace": AddOn(
        modules=("nnmpi.io.trace",),
        uses=("simulator",),
        rows={"tracers": {"trace": "nnmpi.io.trace:Tracer"}},
    ),
    "notebook": AddOn(
        modules=("nnmpi.run.notebook",),
        uses=("simulator", "planning", "pages"),
        rows={
            "names": {
                "notebook": "nnmpi.run.notebook",
                "load_ipython_extension": "nnmpi.run.notebook:load_ipython_extension",
            }
        },
        files=("tests/examples/test_notebooks.py",),
    ),
    "course": AddOn(
        modules=("nnmpi.course",),
        commands={"course": ("nnmpi.course", "hand out assignments of a course, and grade them")},
        files=("course", "tests/course"),
    ),
    "sklearn": AddOn(modules=("nnmpi.sklearn",)),
}
"""By name."""


def table(name: str) -> dict[str, str]:
    """The rows of a table of all add-ons, by key: where each is."""
    return {key: where for a in ADD_ONS.values() for key, where in a.rows.get(name, {}).items()}


def row(name: str, key: str) -> Any:
    """The row of a table with this key, or None if no add-on has it."""
    where = table(name).get(key)
    return None if where is None else loaded(where)


def rows(name: str) -> Iterator[Any]:
    """Yields all rows of a table."""
    return map(loaded, table(name).values())


def given(name: str, options: object) -> Iterator[Any]:
    """Yields the rows of a table whose option is given: not None, and not False."""
    keys = table(name).items()
    return (loaded(where) for key, where in keys if getattr(options, key) not in (None, False))


def chosen(name: str, options: object) -> Any:
    """The first row of a table whose option is given, or None."""
    return next(given(name, options), None)


def loaded(where: str) -> Any:
    """Loads what is at "module:name", or the module itself, and returns it."""
    module, _, attribute = where.partition(":")
    value = import_module(module)
    return getattr(value, attribute) if attribute else value
