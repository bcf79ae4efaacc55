"""Where a model is on disk: in a file of ours, or in a folder of GPT-2 (config.json beside
model.safetensors, or beside shards), whose tensors have other names and orders."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nnmpi.data.tokenizer import BPETokenizer, tokenizer_of
from nnmpi.io.files.atomic import NotSavedError, check_target, refusing, replaced
from nnmpi.nn import GPT, Module, gpt2
from nnmpi.nn.state import PLAIN, FileFormat
from nnmpi.options.quoting import shown

TOKENIZER = "tokenizer"
"""The key of the metadata that describes the tokens of a text."""

PUBLISHED = "published"
"""The key of the metadata that has the files of JSON of the folder that a GPT is from."""

TOKENIZER_FILE = "tokenizer.json"


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a folder: it is one, or ends in a slash."""
    return os.fspath(path).endswith(os.sep) or os.path.isdir(path)


def weights_of(path: str) -> str:
    """The file to which the tensors are written."""
    return os.path.join(path, gpt2.WEIGHTS) if is_folder(path) else path


def source_of(path: str | os.PathLike[str]) -> Path:
    """The file from which the tensors are read, or the index of its shards."""
    return gpt2.weights_in(path) if is_folder(path) else Path(path)


def form_of(path: str | os.PathLike[str]) -> FileFormat:
    """The names and orders of the tensors of a file or a folder that is there."""
    return gpt2.GPT2Format(sizes_in(path).heads) if is_folder(path) else PLAIN


def sizes_in(folder: str | os.PathLike[str]) -> gpt2.Sizes:
    """The sizes of the model of a folder."""
    if os.path.isdir(folder) and not os.path.lexists(Path(folder, gpt2.CONFIG)):
        raise ValueError(
            f"cannot load {shown(folder)}: it is a directory; name a file in it, since a folder is "
            f"taken for one of GPT-2, and it has no {gpt2.CONFIG}"
        )
    return gpt2.read_sizes(folder)


def check_folder(path: str) -> None:
    """Raises NotSavedError if no model can be written there; called before a run trains."""
    if not os.path.isdir(path):
        check_target(path.rstrip(os.sep))
        try:
            os.mkdir(path)
            os.rmdir(path)
        except OSError as error:
            raise NotSavedError(
                f"cannot save {shown(path)}: no such folder can be made: {error.strerror}; leave "
                "out the slash at its end for a file, or name another place"
            ) from None
        return
    for name in (gpt2.CONFIG, gpt2.GENERATION, gpt2.WEIGHTS, TOKENIZER_FILE):
        check_target(Path(path, name))


def gpt_sizes(model: Module) -> gpt2.Sizes | None:
    """The sizes of a GPT, which a folder can have; None of another model."""
    return gpt2.sizes_of(model) if isinstance(model, GPT) else None


def check_kind(path: str | None, sizes: gpt2.Sizes | None, model: str) -> None:
    """Raises NotSavedError for a folder, unless it can have a model of these sizes."""
    if path and is_folder(path) and sizes is None:
        raise NotSavedError(
            f"cannot save {shown(path)}: it is a directory; name a file in it, since a folder is "
            f"for a GPT-2, and the model is a {shown(model)}"
        )


@contextmanager
def prepared(
    path: str, sizes: gpt2.Sizes | None, about: Mapping[str, str]
) -> Iterator[tuple[str, FileFormat, Mapping[str, str]]]:
    """Where the tensors of a model are written, how, and the metadata there.

    A folder is for a GPT of these sizes. It is made, and removed after a failure. The other files
    in it are replaced behind the block, right after the tensors, config.json last.
    """
    if not is_folder(path):
        yield path, PLAIN, about
        return
    assert sizes is not None
    check_folder(path)
    is_there = os.path.isdir(path)
    try:
        with refusing(path), ExitStack() as files:
            os.makedirs(path, exist_ok=True)
            texts = gpt2.json_texts(sizes, json.loads(about.get(PUBLISHED, "{}")))
            about = {key: text for key, text in about.items() if key != PUBLISHED}
            if tokenizer := _tokenizer(about):
                texts = {TOKENIZER_FILE: tokenizer.to_json(), **texts}
                about[TOKENIZER] = tokenizer.describe(TOKENIZER_FILE)
            for name, text in reversed(texts.items()):  # an ExitStack ends with the first
                files.enter_context(replaced(Path(path, name), "xb")).write(text.encode())
            yield weights_of(path), gpt2.GPT2Format(sizes.heads), {**gpt2.METADATA, **about}
    finally:
        if not is_there:
            with suppress(OSError):  # it is empty after a failure only
                os.rmdir(path)


def _tokenizer(about: Mapping[str, str]) -> BPETokenizer | None:
    """The tokenizer of BPE that metadata describe; None if its files cannot be read any more."""
    with suppress(ValueError):
        tokenizer = tokenizer_of(about.get(TOKENIZER, ""))
        return tokenizer if isinstance(tokenizer, BPETokenizer) else None
    return None
