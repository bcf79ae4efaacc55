"""Finds options that cannot be combined, from what each relies on. A Feature declares which
properties of a run an option (or a value of it) relies on, and which it breaks.

A run has properties, such as steps that all ranks make together. A feature that relies on one
cannot be combined with a feature that breaks it, so neither has to name the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from nnmpi.addons import Table
from nnmpi.options.quoting import shown

LEAVE_ONE = "leave one of the two out"

Asks: TypeAlias = Callable[[Any, int], str]
"""(config, ranks): returns the feature asked for as text, or ""."""


class Property(NamedTuple):
    """A property that a run has unless a feature (an option) breaks it. `words` say which, as they
    follow "it needs" in an error message: "all ranks to make each step together"."""

    words: str


EXACT_SUMS = Property("ranks that update by the exact sum of all gradients in each step")
STEPS_TOGETHER = Property("all ranks to make each step together")
WHOLE_MODEL = Property("the whole model on each rank that computes")
PLAIN_PASSES = Property("a forward pass and then a backward pass of the whole model")
ALL_REDUCE = Property("gradients that are summed by an all-reduce")
WHOLE_STATE = Property("all of a replica's state on one rank")
WHOLE_MATRICES = Property("updates of whole matrices")
HOST_MEMORY = Property("arrays in the memory of the host")


class Feature(NamedTuple):
    """An option that a run uses, or several, with the properties that it relies on or breaks.

    name       the name of an option of Config or, with `asks`, any other name
    asks       (config, ranks): the options as text if a run uses the feature, else ""; None: a run
               uses it if the option `name` differs from its default
    relies_on  properties that no other feature of the run may break
    breaks     properties that a run with this feature lacks, each with the reason
    conflicts  names of other features that it cannot be combined with, each with the reason
    requires   options without which it has no effect, as "option" or "option value or value", each
               with the reason
    remedy     how to do without it, for a message
    covers     where `name` is not that of an option: the options that it stands for
    """

    name: str
    asks: Asks | None = None
    relies_on: Sequence[Property] = ()
    breaks: Mapping[Property, str] = {}
    conflicts: Mapping[str, str] = {}
    requires: Mapping[str, str] = {}
    remedy: str = LEAVE_ONE
    covers: str = ""

    def asked(self, config: Any, ranks: int) -> str:
        """Returns, if a run with this config on `ranks` ranks uses this feature, the option that
        asks for it with its value, such as "pp 4"; otherwise ""."""
        return self.asks(config, ranks) if self.asks else given(config, self.name)


class MeshAxis(NamedTuple):
    """An axis of the mesh, the grid of ranks: one for each kind of parallelism.

    name         that of the option with the number of ranks along it, too
    replicas     True if its ranks have copies of the same parameters, and sum their gradients
    batch        True if its ranks have different samples of each batch
    same_loss    True if its ranks compute the same loss, so that only one of them counts it
    before       an axis before which it always stands; "": the option --order places it
    cuts         what is divided along it, as text for the first lines of a run
    activations  for an axis of an add-on: the axes of activations that --layout may divide along it
    """

    name: str
    replicas: bool = False
    batch: bool = False
    same_loss: bool = False
    before: str = ""
    cuts: str = ""
    activations: Sequence[str] = ()


class OutputFile(NamedTuple):
    """A file that a run writes besides its log and its model, named by an option. A file of its
    `kind`, such as "a page", may be replaced; `fits` tells by the first 9 bytes."""

    option: str
    kind: str
    fits: Callable[[bytes], bool]


class AddOnOptions(NamedTuple):
    """The contribution of an add-on to the options of a run.

    options   a dataclass, from which Config inherits; None: it only adds values to other options
    features  the features that these options and values ask for
    choices   a dict: option outside the add-on -> the values that the add-on adds to it
    costs     options on which the time and memory of a layer depend
    meetings  options that say when ranks exchange gradients or parameters; --plan does not change
              them
    appends   options of runs that may add to a log with the events of another run, which they
              continue
    axes      axes of the mesh that the add-on adds; their sizes are options of it
    outputs   files that its options name
    """

    options: type | None = None
    features: Sequence[Feature] = ()
    choices: Mapping[str, Sequence[str]] = {}
    costs: Sequence[str] = ()
    meetings: Sequence[str] = ()
    appends: Sequence[str] = ()
    axes: Sequence[MeshAxis] = ()
    outputs: Sequence[OutputFile] = ()


OPTIONS: Table[AddOnOptions] = Table("options")
"""By an add-on's name: its contribution to the options of a run."""


class Refusal(NamedTuple):
    """Two options (or combinations) that cannot be combined in any run; `refusals.check` raises
    ValueError for a run that uses both, with `reason` and `remedy`."""

    feature: Feature
    beside: Feature
    reason: str
    remedy: str


class Requires(NamedTuple):
    """An option `feature` that has no effect unless `other`, "option" or "option value or value",
    is given too; `refusals.check` raises ValueError for a run without it, with `reason`."""

    feature: Feature
    other: str
    reason: str


def choice(option: str, *values: object) -> Asks:
    """Returns `Feature.asks` for an option with one of these values."""
    return lambda config, ranks: (
        f"{option} {value}" if (value := getattr(config, option)) in values else ""
    )


def given(config: Any, option: str) -> str:
    """Returns an option with its value as text, such as "pp 4"; "" if it has its default."""
    value, field = getattr(config, option), type(config).__dataclass_fields__[option]
    if value == field.default:
        return ""
    is_bare = value is True or value == field.metadata["bare"]
    return option if is_bare else f"{option} {shown(value)}"


def refusals(features: Sequence[Feature]) -> Iterator[Refusal]:
    """Yields a Refusal (two features that no run may combine, with the reason) for each such pair
    among these features (options of a run, and what each relies on and breaks)."""
    by_name = {feature.name: feature for feature in features}
    for feature in features:
        for other, reason in feature.conflicts.items():
            if beside := by_name.get(other):  # it may belong to an add-on that is left out
                yield Refusal(feature, beside, reason, _remedy(feature, beside))
        for beside in features:
            broken = next((p for p in feature.relies_on if p in beside.breaks), None)
            if broken and beside is not feature:
                reason = f"it needs {broken.words}, and {beside.breaks[broken]}"
                yield Refusal(feature, beside, reason, _remedy(feature, beside))


def _remedy(*features: Feature) -> str:
    """Returns advice for an error message: how to do without one of the features."""
    return ", or ".join(f.remedy for f in features if f.remedy != LEAVE_ONE) or LEAVE_ONE


def requirements(features: Sequence[Feature]) -> list[Requires]:
    """Returns a Requires, the rule that an option has no effect without another one, for each entry
    of `requires` in these features (options of a run)."""
    return [Requires(f, other, reason) for f in features for other, reason in f.requires.items()]
