"""Published steps of language models, and what nnmpi predicts for them on described machines.

    a file of vTrain (CSV) ─┐
    published/NAME.json ────┴─► Table ─► Rows (arranged on paper) ─► price by a Description

A JSON file says what all of its rows have in common: the machine, the config and the vocabulary.
Its rows have seconds, or teraflops a GPU by the formula of their paper.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi import Config
from nnmpi.addons.planning.described import RooflineTimes, description_named
from nnmpi.addons.planning.described.description import Description
from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.run.planning import PlanRequest, plan_models
from nnmpi.addons.planning.step_time import StepTime, step_time
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.run.setup.cutting import UncutModel, uncut_of

FOLDER = Path(__file__).parent.parent / "published"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

COLUMNS = {
    "# GPUs": "ranks",
    "global batch": "batch",
    "micro batch": "micro",
    "hidden size": "width",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "context",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
}
"""The columns of vTrain's files."""

VTRAIN = {
    "title": "vTrain",
    # "inter_node_bandwidth": 800 Gbit/s in its config/validation/multi, so 4 interfaces of a node
    "machine": {"name": "a100-80g:8", "far_nics": 4},
    "config": {
        "dtype": "float16",
        "reduce_dtype": "float16",
        "dropout": 0.1,
        "bucket_mb": 1e6,
        "recompute": "block",
    },
    "vocabulary": 50257,  # of GPT-2
    "fitted": ["products_share", "products_start", "memory_share", "kernel_launch", "far_share"],
    "drawn": 20,
}
"""What the rows of vTrain (github.com/VIA-Research/vTrain, MIT) have in common."""


class Published(NamedTuple):
    """A published step: its model and layout as numbers by name, and its seconds."""

    options: Mapping[str, int]
    seconds: float

    @property
    def model(self) -> tuple[int, ...]:
        """What rows of one model on one cluster have in common."""
        return tuple(self.options[k] for k in ("layers", "width", "heads", "ranks", "batch"))


class Table(NamedTuple):
    """Published steps, and what they have in common: see published/*.json."""

    name: str
    title: str
    sheet: Description
    common: Mapping[str, Any]
    steps: list[Published]


def read_vtrain(path: Path) -> Table:
    """The steps of a file of vTrain."""
    with path.open(encoding="utf-8-sig") as file:
        steps = [
            Published(
                {name: int(row[column]) for column, name in COLUMNS.items()} | {"virtual": 1},
                float(row["iteration time (ms)"]) / 1e3,
            )
            for row in csv.DictReader(file)
        ]
    where = "several nodes" if max(step.options["ranks"] for step in steps) > 8 else "one node"
    return _table(path.stem, {**VTRAIN, "title": f"vTrain, {where}"}, steps)


def read_table(name: str) -> Table:
    """The steps of published/NAME.json."""
    common = json.loads((FOLDER / f"{name}.json").read_text())
    steps = []
    for row in common["rows"]:
        o = dict(zip(common["columns"], row, strict=True))
        o |= {"context": common["config"]["context"], "dp": o["ranks"] // o["tp"] // o["pp"]}
        teraflops, seconds = o.pop("teraflops", None), o.pop("seconds", None)
        if teraflops is not None:
            is_again = "recompute" in common["config"]
            operations = operations_of(o, common["vocabulary"], is_again)
            seconds = operations / o["ranks"] / (teraflops * 1e12)
        steps.append(Published(o, seconds))
    return _table(name, common, steps)


def _table(name: str, common: Mapping[str, Any], steps: list[Published]) -> Table:
    machine = dict(common["machine"])
    sheet = description_named(machine.pop("name"))
    assert sheet is not None
    return Table(name, common["title"], sheet._replace(**machine), common, steps)


def operations_of(o: Mapping[str, int], vocabulary: int, is_again: bool) -> float:
    """The operations of a step by the formula of Narayanan et al. (2021): 96 B s l h^2 (1 + s/6h +
    V/16lh), or 72 B s l h^2 (1 + s/6h + V/12lh) if nothing is recomputed."""
    of_layers = (96 if is_again else 72) * o["layers"] * o["width"] ** 2
    of_layers *= 1 + o["context"] / (6 * o["width"])
    return float(o["batch"] * o["context"] * (of_layers + 6 * o["width"] * vocabulary))


# ---- on paper


class Row(NamedTuple):
    """A published step, its arrangement on paper, and the seconds of its units."""

    published: Published
    arrangement: Arrangement
    times: RooflineTimes


@cache
def _on_paper(
    model: str, config: tuple[tuple[str, Any], ...], vocabulary: int, machine: str
) -> tuple[UncutModel, RooflineTimes]:
    """A GPT on paper, and the seconds of its units; these are the same for all layouts."""
    _, uncut = uncut_of(Config(model=model, **dict(config)), vocabulary)
    sheet = description_named(machine)
    assert sheet is not None
    dtype = uncut.config.dtype
    by = sheet.machine(dtype)
    assert by.sheet is not None
    return uncut, RooflineTimes(uncut.graph, by, dtype, by.sheet)


def on_a_machine(step: Published, table: Table) -> Row:
    """A published step, arranged as Megatron-LM does it: blocks in equal parts."""
    o, common, sheet = step.options, table.common, table.sheet
    config = {**common["config"], "context": o["context"], "batch_size": o["batch"]}
    if o["tp"] == 1:
        config.pop("sequence_parallel", None)
    uncut, times = _on_paper(
        f"gpt:{o['layers']}x{o['heads']}x{o['width']}",
        tuple(sorted(config.items())),
        common["vocabulary"],
        common["machine"]["name"],
    )
    nodes = max(o["ranks"] // sheet.ranks, 1)
    cluster = Cluster.on_paper(o["ranks"], nodes, sheet.device)
    request = PlanRequest(o["ranks"], nodes, None, sheet.title)
    machine = sheet.machine(uncut.config.dtype)
    arranger = plan_models(request, uncut, cluster, machine).arranger
    begins = {uncut.graph.nodes[unit.nodes.start].name: unit.first for unit in times.units}
    stages = o["pp"] * o["virtual"]
    firsts = (f"h.{k * o['layers'] // stages}.ln_1" for k in range(1, stages))
    interleaved = {"schedule": "interleaved", "virtual_stages": o["virtual"]}
    layout = replace(
        uncut.config,
        dp=o["dp"],
        tp=o["tp"],
        pp=o["pp"],
        micro_batches=o["batch"] // o["dp"] // o["micro"],
        cut=",".join(str(begins[name]) for name in firsts) or None,
        **(interleaved if o["virtual"] > 1 else {}),
    )
    return Row(step, arranger.arranged_by(layout), times)


def price(row: Row, sheet: Description) -> StepTime:
    """The predicted time of a row."""
    machine = sheet.machine(row.arrangement.config.dtype)
    assert machine.sheet is not None
    exchanges = ExchangeTimes(machine, row.arrangement.cluster)
    return step_time(row.arrangement, CostModel(machine, row.times.by(machine.sheet), exchanges))
