"""The mutants of mutant_table.toml, each with what finds it, or why nothing can."""

import tomllib
from pathlib import Path
from typing import Any

from simulation.case import Case, Fault, Sleep
from simulation.mutants import Mutant

POWER_CUT = "test_no_power_cut_loses_a_checkpoint"
ABANDONED = "test_a_writer_that_was_abandoned_names_no_folder_of_the_next_one"


def case_of(row: dict[str, Any]) -> Case:
    """The case in a row of the table."""
    for name in {"kills", "signals", "jumps"} & row.keys():
        row[name] = tuple(Fault(*fault) for fault in row[name])
    if "asleep" in row:
        row["asleep"] = Sleep(*row["asleep"])
    return Case(**{"drawn": None if "seed" in row else (), **row})


def mutants() -> tuple[Mutant, ...]:
    """All rows of the table."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = table["groups"]
    found = list[Mutant]()
    for name, row in table["mutants"].items():
        module, _, function = row.pop("function").partition(":")
        layouts = [one for of in row.pop("layouts", ()) for one in groups.get(of, [of])]
        finds = row.pop("found_by", "")
        killed_by = finds if isinstance(finds, str) else case_of(finds)
        found.append(
            Mutant(name, (module, function), **row, layouts=(*layouts,), killed_by=killed_by)
        )
    return tuple(found)


MUTANTS = mutants()
