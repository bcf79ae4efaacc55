"""Where a model is on disk: in a file of nnmpi, or in a folder of GPT-2 or Llama (config.json
beside model.safetensors or its shards), whose tensors have other names and layouts."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nnmpi.data.tokenizer import BPETokenizer, tokenizer_of
from nnmpi.io.files.atomic import NotSavedError, check_target, refusing, replaced
from nnmpi.nn import Module, gpt2
from nnmpi.nn.language import LanguageModel, Sizes, format_in, format_of
from nnmpi.nn.state import PLAIN, FileFormat
from nnmpi.options.quoting import shown

TOKENIZER = "tokenizer"
"""The metadata key under which the tokenizer of a text is described."""

PUBLISHED = "published"
"""The metadata key of the JSON files in the folder from which a model was loaded."""

TOKENIZER_FILE = "tokenizer.json"


def is_folder(path: str | os.PathLike[str]) -> bool:
    """True if a path names a folder: it exists as one, or ends in a slash."""
    return os.fspath(path).endswith(os.sep) or os.path.isdir(path)


def weights_of(path: str) -> str:
    """The file to which the tensors are written."""
    return os.path.join(path, gpt2.WEIGHTS) if is_folder(path) else path


def source_of(path: str | os.PathLike[str]) -> Path:
    """The file from which the tensors are read, or the index of its shards."""
    return gpt2.weights_in(path) if is_folder(path) else Path(path)


def form_of(path: str | os.PathLike[str]) -> FileFormat:
    """The names and layouts of the tensors in an existing file or folder."""
    return format_of(sizes_in(path)) if is_folder(path) else PLAIN


def sizes_in(folder: str | os.PathLike[str]) -> Sizes:
    """The sizes of the model in a folder."""
    if os.path.isdir(folder) and not os.path.lexists(Path(folder, gpt2.CONFIG)):
        raise ValueError(
            f"cannot load {shown(folder)}: it is a directory; name a file in it (it is not a "
            f"folder of GPT-2 or Llama, since it has no {gpt2.CONFIG})"
        )
    sizes: Sizes = format_in(folder).sizes
    return sizes


def check_folder(path: str) -> None:
    """Raises NotSavedError if no model can be written to this folder; called before a run
    trains."""
    if not os.path.isdir(path):
        check_target(path.rstrip(os.sep))
        try:
            os.mkdir(path)
            os.rmdir(path)
        except OSError as error:
            raise NotSavedError(
                f"cannot save {shown(path)}: the folder cannot be made: {error.strerror}; leave "
                "out the slash at its end for a file, or name another place"
            ) from None
        return
    for name in (gpt2.CONFIG, gpt2.GENERATION, gpt2.WEIGHTS, TOKENIZER_FILE):
        check_target(Path(path, name))


def sizes_of(model: Module) -> Sizes | None:
    """The sizes of a language model, which can be saved as a folder; None for any other model."""
    return model.sizes if isinstance(model, LanguageModel) else None


def check_kind(path: str | None, sizes: Sizes | None, model: str) -> None:
    """Raises NotSavedError if `path` is a folder and the model is no GPT or Llama."""
    if path and is_folder(path) and sizes is None:
        raise NotSavedError(
            f"cannot save {shown(path)}: it is a directory; name a file in it, since a folder is "
            f"for a GPT or a Llama, and the model is a {shown(model)}"
        )


@contextmanager
def prepared(
    path: str, sizes: Sizes | None, about: Mapping[str, str]
) -> Iterator[tuple[str, FileFormat, Mapping[str, str]]]:
    """A context that yields where the tensors of a model are written, in which form, and with which
    metadata.

    For a folder, it is made, and removed after a failure. Its other files are replaced when the
    block ends, right after the tensors, config.json last.
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
            form = format_of(sizes)
            texts = gpt2.json_texts(form, json.loads(about.get(PUBLISHED, "{}")))
            about = {key: text for key, text in about.items() if key != PUBLISHED}
            if tokenizer := _tokenizer(about):
                texts = {TOKENIZER_FILE: tokenizer.to_json(), **texts}
                about[TOKENIZER] = tokenizer.describe(TOKENIZER_FILE)
            for name, text in reversed(texts.items()):  # an ExitStack closes them in reverse
                files.enter_context(replaced(Path(path, name), "xb")).write(text.encode())
            yield weights_of(path), form, {**gpt2.METADATA, **about}
    finally:
        if not is_there:
            with suppress(OSError):  # fails, as it should, unless the folder was left empty
                os.rmdir(path)


def _tokenizer(about: Mapping[str, str]) -> BPETokenizer | None:
    """The BPE tokenizer that the metadata describe; None if its files cannot be read any more."""
    with suppress(ValueError):
        tokenizer = tokenizer_of(about.get(TOKENIZER, ""))
        return tokenizer if isinstance(tokenizer, BPETokenizer) else None
    return None
