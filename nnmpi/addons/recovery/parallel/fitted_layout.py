"""Adapts the options of a run to the number of ranks that exist, or that survive a loss.

    dp 4 x tp 2, 8 ranks    7 left   dp 3 x tp 2, 1 waits   dp is reduced first
    pp 4, 4 ranks           3 left   pp 3                   the nearest layout that fits
    pp 2 x tp 2, 4 ranks    3 left   tp 2, 1 waits          one axis changes, and tp is kept

The nearest layout is chosen by these rules:

1. as few axes besides dp as possible have fewer ranks than the options request, and none has more;
2. of these layouts, the one whose copy of the model uses most ranks, as each then holds least;
3. then the one that keeps tp, then the one that keeps pp.

dp is as large as possible, and may grow if there are more ranks than before. Layouts that the
options or the model do not allow are skipped. `fit_layout` is a pure function, so all ranks get the
same result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

from nnmpi.options.amounts import plural
from nnmpi.options.config import Config
from nnmpi.parallel.fitting import FITTINGS
from nnmpi.parallel.layout import server_count
from nnmpi.parallel.mesh import AXES, sizes_text
from nnmpi.parallel.refusals import PLAIN, REFUSALS, REQUIREMENTS, is_met

AXES_BESIDE_DP = tuple(axis.name for axis in AXES if axis.name != "dp")

Check: TypeAlias = Callable[[Config, int], object]
"""A function (config, ranks) that raises ValueError if a config cannot arrange so many ranks."""


class FittedLayout(NamedTuple):
    """The options with which a run continues on the ranks that exist.

    config   the options of the next session (part of the run between two losses)
    ranks    the number of ranks that work: the first ones; servers, if any, are the last of these
    why      the layout and the reasons for it, in one line
    """

    config: Config
    ranks: int
    spare: int
    why: str


def fit_layout(
    config: Config, ranks: int, check: Check, divide: Check = lambda config, ranks: None
) -> FittedLayout:
    """Returns the layout for `ranks` ranks that is nearest to the one that `config` requests;
    raises ValueError if none fits.

    check    (config, ranks): raises ValueError for options that cannot be combined
    divide   (config, ranks): raises ValueError if the model cannot be divided among fewer ranks
             along an axis; called only if the number of ranks along an axis other than dp changes
    """
    serving, passed_over = config, list[str]()
    for of_option in FITTINGS.given(config):
        serving = of_option.fewer(serving, ranks)
    asked = {axis: getattr(serving, axis) for axis in AXES_BESIDE_DP}
    workers = ranks - server_count(serving)
    for sizes in _nearest(asked, workers):
        try:
            fitting, working = _most_copies(serving, sizes, workers, check)
            if sizes != asked:
                divide(fitting, working)
        except ValueError as error:
            if sizes == asked:  # these options cannot be combined on any ranks
                raise
            passed_over.append(f"{sizes_text(sizes)} is not possible: {error}")
        else:
            why = _why(config, fitting, working, ranks, passed_over[:1])
            return FittedLayout(fitting, working, ranks - working, why)
    raise ValueError(f"no layout fits {plural(ranks, 'rank')}: {passed_over[-1]}")


def _nearest(asked: Mapping[str, int], workers: int) -> Iterator[dict[str, int]]:
    """Yields the possible sizes of the axes other than dp, those first that differ least from
    `asked`."""

    def distance(sizes: dict[str, int]) -> tuple[int, ...]:
        changed = sum(sizes[axis] < n for axis, n in asked.items())
        sizes_kept = (sizes[axis] for axis in reversed(AXES_BESIDE_DP))
        return (changed, -prod(sizes.values()), *(-n for n in sizes_kept))

    all_sizes = product(*(range(1, n + 1) for n in asked.values()))
    layouts = (dict(zip(asked, sizes, strict=True)) for sizes in all_sizes)
    yield from sorted((sizes for sizes in layouts if prod(sizes.values()) <= workers), key=distance)


def _most_copies(
    config: Config, sizes: Mapping[str, int], workers: int, check: Check
) -> tuple[Config, int]:
    """Returns (config, number of ranks) with the largest dp for which `workers` ranks are enough.
    Layouts that `check` refuses, by a ValueError, are skipped."""
    copy_ranks, servers, refused = prod(sizes.values()), server_count(config), ValueError()
    for dp in range(workers // copy_ranks, 0, -1):
        fitting = _fitted(config, sizes, dp)
        try:
            check(fitting, dp * copy_ranks + servers)
        except ValueError as error:
            refused = error
        else:
            return fitting, dp * copy_ranks + servers
    raise refused


def _fitted(config: Config, sizes: Mapping[str, int], dp: int) -> Config:
    """Returns the config for a mesh of these sizes; options without effect on it are reset."""
    workers = dp * prod(sizes.values())
    changes: dict[str, Any] = {
        **sizes,
        "dp": None if config.dp is None else dp,
        "cut": config.cut if sizes["pp"] == config.pp else None,  # it is for one number of stages
    }
    for of_option in FITTINGS.given(config):
        changes |= of_option.options(config, workers)
    fitting = replace(config, **changes)
    useless = pointless(fitting, workers + server_count(fitting))
    never = pointless(config, ranks=2)  # kept, so that `check` refuses them
    changes |= {name: getattr(PLAIN, name) for name in useless if name not in never}
    return replace(config, **changes)


def pointless(config: Config, ranks: int) -> list[str]:
    """Returns the options without effect on so many ranks: they need several, or another option."""
    alone = (row.feature for row in REFUSALS if row.beside.name == "one rank" and ranks == 1)
    unmet = (row.feature for row in REQUIREMENTS if not is_met(row.other, config))
    asked = (feature.name for feature in (*alone, *unmet) if feature.asked(config, ranks))
    return [name.partition(" ")[0] for name in asked]  # of "layout length:cp" the option


# ---- the text of the reasons


def _why(config: Config, fitting: Config, working: int, ranks: int, passed_over: list[str]) -> str:
    asked, sizes = ({axis: getattr(c, axis) for axis in AXES_BESIDE_DP} for c in (config, fitting))
    copy_ranks, servers = prod(sizes.values()), server_count(fitting)
    layout = sizes_text({"dp": (working - servers) // copy_ranks, **sizes})
    layout += f" and {plural(servers, 'server')}" if servers else ""
    parts = [f"{layout} on {plural(working, 'rank')}"]
    if ranks > working:
        takes = "no more can work" if copy_ranks == 1 else f"a copy of the model takes {copy_ranks}"
        parts.append(f"{plural(ranks - working, 'spare rank')}, since {takes}")
    if sizes != asked:
        parts.append(f"{sizes_text(asked)} takes {prod(asked.values())}")
    parts += [*passed_over, *_changes(config, fitting)]
    parts += (of_option.note(config) for of_option in FITTINGS.given(config))
    return "; ".join(filter(None, parts))


def _changes(config: Config, fitting: Config) -> Iterator[str]:
    """Yields a text for each option that differs in the fitting config, except the mesh axes."""
    for name, value in vars(config).items():
        new = getattr(fitting, name)
        if new != value and name not in ("dp", *AXES_BESIDE_DP):
            is_left_out = new == getattr(PLAIN, name)
            yield f"without {name} {value}" if is_left_out else f"{name} {new} for {value}"
