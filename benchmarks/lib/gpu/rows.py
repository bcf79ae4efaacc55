"""The rows of a run on a GPU: a file of JSON lines, to which each figure is written at once."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A figure. `section` and `case` are its key; `more` has what was found beside it."""

    section: str
    case: str
    figure: float | None
    unit: str
    more: dict[str, Any]
    emulated: bool


class Rows:
    """The rows of a folder, and the case that is being measured. A line that was not written to
    its end, since its process was killed, is cut off."""

    def __init__(self, folder: Path) -> None:
        self.path, self._running = folder / "rows.jsonl", folder / "running"
        self.path.touch()
        text = self.path.read_bytes()
        os.truncate(self.path, text.rfind(b"\n") + 1)

    def read(self) -> list[Row]:
        """All rows, in the order in which they were written."""
        return [Row(**json.loads(line)) for line in self.path.read_bytes().splitlines()]

    def cases(self, section: str) -> set[str]:
        """The cases of a section that have a row."""
        return {row.case for row in self.read() if row.section == section}

    def begin(self, case: str) -> None:
        """Notes which case is measured, for the process that finds this one dead."""
        self._running.write_text(case, encoding="utf-8")

    def running(self) -> str:
        """The case that was begun last, and ended by no row; empty if there is none."""
        return self._running.read_text(encoding="utf-8") if self._running.exists() else ""

    def add(self, row: Row) -> None:
        """Appends a row, which is on the disk when this returns."""
        with self.path.open("ab") as file:
            file.write(json.dumps(row._asdict()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._running.unlink(missing_ok=True)
