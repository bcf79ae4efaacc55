"""The SHA-256 of a whole safetensors file, which is part of its own metadata.

It covers the header with names, shapes and metadata, and all tensors. The file is hashed with 64
zeros in the place of the digest itself.
"""

import hashlib
import re
from typing import IO

KEY = "file_sha256"
BLANK = "0" * 64
ENTRY = re.compile(rb'"file_sha256"\s*:\s*"([0-9a-f]{64})"')
"""The entry in a header. It cannot be within another string, where quotes are escaped."""

BLOCK = 1 << 20


def file_sha256(file: IO[bytes], place: int) -> str:
    """The digest of an open file, which has room for it at `place`."""
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(file.read(place))
    digest.update(BLANK.encode())
    file.seek(place + len(BLANK))
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def said_and_found(file: IO[bytes]) -> tuple[str, str]:
    """The digest in the metadata of an open file, and that of its bytes."""
    header = file.read(8 + int.from_bytes(file.read(8), "little"))
    entry = ENTRY.search(header)
    if entry is None:
        return "not a digest", ""
    return entry[1].decode(), file_sha256(file, 8 + entry.start(1))
