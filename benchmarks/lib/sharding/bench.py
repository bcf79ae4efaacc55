"""Bench: what the sections of benchmarks/sharding.py have in common."""

from dataclasses import dataclass, field

from lib import study
from lib.runs import SHARDING, Case
from lib.sharding.layers import LayerCase
from lib.timing import Row


@dataclass
class Bench(study.Bench):
    """Flags, facts of the machine, and sizes of models."""

    sizes: dict[str, int] = field(default_factory=dict)

    def case(self, model: str, ranks: int = 1, **layout: object) -> Case:
        """A run with `ranks` times the samples of the model."""
        batch = ranks * SHARDING[model][self.small].samples
        return Case("sharding", model, batch, small=self.small)._replace(**layout)

    def parameters(self, case: Case) -> int:
        """How many its model has, counted once."""
        if case.model not in self.sizes:
            self.sizes[case.model] = sum(p.size for p in case.built.build().parameters())
        return self.sizes[case.model]

    def row(self, section: str, case: Case, **more: object) -> Row:
        """What every row of a training run has."""
        return {
            "benchmark": "sharding",
            "section": section,
            "case": case.model,
            "model": case.built.text,
            "layout": name_of(case),
            "ranks": case.ranks,
            "dp": case.dp,
            "pp": case.pp,
            "tp": case.tp,
            "zero": case.zero,
            "micro_batches": case.micro_batches,
            "batch_size": case.batch,
            "algorithm": case.allreduce if case.dp > 1 else "",
            "parameters": self.parameters(case),
            **more,
            **self.facts,
        }

    def layer_row(self, section: str, case: LayerCase, **more: object) -> Row:
        """What every row of library layers has."""
        return {
            "benchmark": "sharding",
            "section": section,
            "case": "x".join(map(str, case.sizes)),
            "layout": case.kind,
            "ranks": case.ranks,
            **more,
            **self.facts,
        }


def name_of(case: Case) -> str:
    """The layout, in the words of the command line."""
    axes = {"dp": case.dp, "pp": case.pp, "tp": case.tp, "zero": case.zero}
    used = [f"{axis} {n}" for axis, n in axes.items() if n > (axis != "zero")]
    used += [case.allreduce] * (case.dp > 1)
    return "apart" if case.apart else ", ".join(used) or "1 rank"
