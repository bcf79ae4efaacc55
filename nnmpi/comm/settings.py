"""How closely ranks are watched: NNMPI_DEBUG and NNMPI_TIMEOUT."""

import math
from collections.abc import Mapping
from typing import NamedTuple, Self


class DebugSettings(NamedTuple):
    """What the environment asks for."""

    compare: bool = False  # whether the ranks compare their calls before each collective
    timeout: float = math.inf  # seconds that a rank may wait in one call

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """From NNMPI_DEBUG=collectives and NNMPI_TIMEOUT=seconds."""
        debug, limit = environment.get("NNMPI_DEBUG", ""), environment.get("NNMPI_TIMEOUT", "")
        if debug not in ("", "collectives"):
            raise ValueError(f"NNMPI_DEBUG is {debug!r}: set it to 'collectives' or not at all")
        try:
            timeout = float(limit or math.inf)
        except ValueError:
            timeout = math.nan
        if not timeout > 0:
            raise ValueError(f"NNMPI_TIMEOUT is {limit!r}: set it to seconds above 0 or not at all")
        return cls(debug == "collectives", timeout)
