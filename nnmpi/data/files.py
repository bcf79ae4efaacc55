"""Errors while reading data files, as one line with the remedy."""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REMEDY = "delete it and run again with --download, or put a good copy in its place"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises ValueError if the file is damaged or cannot be read."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{path} is damaged: {_one_line(error)}; {REMEDY}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {_one_line(error)}; {REMEDY}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
