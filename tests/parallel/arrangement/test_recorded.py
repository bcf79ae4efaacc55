"""Graphs that are recorded without numbers, beside those of passes of zeros."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from helpers.training import laws_goals, laws_ported
from helpers.training.conformance import FAMILIES, rows
from helpers.training.pipelined import digits

from nnmpi import Config, nn
from nnmpi.arrays.backend import CPU
from nnmpi.comm import comm_self
from nnmpi.nn import tracing
from nnmpi.nn.graph import Graph
from nnmpi.run.setup import objectives
from nnmpi.run.setup.setup import Setup, TrainerArguments, build_model, set_up

OF_MODELS = ("model", "build", "given", "dtype")


def models() -> Iterator[Any]:
    """What is trained in the rows of the table, each once."""
    seen = set[tuple[Any, ...]]()
    for family in FAMILIES:
        for row in rows(family):
            options = {**(row.case or {}), **(row.options or {})}
            made = {key: options[key] for key in OF_MODELS if key in options}
            build = made.get("build")  # the same function, or one with the same arguments
            key = getattr(build, "func", build), repr(getattr(build, "args", ())), repr(made)
            if made and key not in seen:
                seen.add(key)
                yield pytest.param(made, id=row.name)
    for name, build in laws_ported.MODELS.items():
        yield pytest.param({"build": build}, id=name)


def graphs(setup: Setup) -> list[Graph]:
    """Without numbers, and of zeros."""
    found = []
    for on in (tracing.META, CPU):
        model = build_model(setup.config, setup.build, setup.dataset)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(objectives, "trace", strictly(on))
            config, dataset, loss = setup.config, setup.dataset, setup.loss
            graph = objectives.model_graph(config, model, dataset, loss)
            found.append(graph._replace(source=None))
    return found


def strictly(on: Any) -> Callable[..., Graph]:
    """`trace`, but that what needs numbers is an error."""

    def trace(*args: Any, **named: Any) -> Graph:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tracing, "NumbersReadError", ZeroDivisionError)
            return tracing.trace(*args, **named, on=on)

    return trace


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where two values differ."""
    if a is b:
        return []
    if is_dataclass(a) and not isinstance(a, type) and type(a) is type(b):
        parts = [(f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
    elif isinstance(a, tuple | list) and type(a) is type(b) and len(a) == len(b):
        names = getattr(a, "_fields", range(len(a)))
        parts = [(str(name), x, y) for name, x, y in zip(names, a, b, strict=True)]
    elif isinstance(a, Mapping) and isinstance(b, Mapping) and [*a] == [*b]:
        parts = [(key, a[key], b[key]) for key in a]
    elif isinstance(a, np.ndarray) and type(a) is type(b):
        return [] if np.array_equal(a, b) else [where]
    else:
        return [] if type(a) is type(b) and (a == b or repr(a) == repr(b)) else [where]
    return [path for name, x, y in parts for path in differences(x, y, f"{where}.{name}")]


@pytest.mark.parametrize("made", [*models()])
def test_graphs_are_those_of_zeros(made: dict[str, Any]) -> None:
    options = {key: value for key, value in made.items() if key in ("model", "dtype")}
    config = Config(**{"dtype": "float64", "batch_size": 24} | options)
    given = made.get("given", digits)()
    a, b = graphs(set_up(config, comm_self(), TrainerArguments(made.get("build"), given)))
    assert differences(a, b) == []


@pytest.mark.parametrize("name", laws_goals.GOALS)
def test_graphs_of_other_goals_are_too(name: str) -> None:
    y, outputs, loss, metrics, x, net, _ = laws_goals.GOALS[name]
    config = Config(dtype="float64", batch_size=laws_goals.BATCH)
    given = TrainerArguments(lambda: net(outputs), (x, y), loss(), metrics)
    setup = set_up(config, comm_self(), given)
    a, b = graphs(setup)
    assert differences(a, b) == []


def test_what_differs_is_found() -> None:
    config = Config(dtype="float64", batch_size=24)
    one, other = (
        graphs(
            set_up(
                config,
                comm_self(),
                TrainerArguments(
                    lambda k=k: nn.Sequential(nn.Flatten(), nn.Linear(64, k)), digits()
                ),
            )
        )[0]
        for k in (10, 11)
    )
    assert ".edges.2.axes.1.size" in differences(one, other)
