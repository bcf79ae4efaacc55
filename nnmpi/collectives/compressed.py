"""Sizes of compressed arrays: what each form sends, exactly."""

from collections.abc import Mapping

BLOCK = 256
"""Elements of a block, which is rounded by itself."""

WIDTHS: Mapping[str, int] = {"bfloat16": 2 * BLOCK, "int8": BLOCK + 4}
"""The bytes of a block in each form: int8 has a float32 scale."""
