"""Reads and writes models in folders in the format of GPT-2 or Llama, with config.json beside
model.safetensors or its shards, and other names and layouts of tensors than the model's."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nnmpi.addons.language.data.tokenizer import BPETokenizer, tokenizer_of
from nnmpi.addons.language.models import gpt2
from nnmpi.addons.language.models.folders import Sizes, format_in, format_of, sizes_named, sizes_of
from nnmpi.data.dataset import TOKENIZER
from nnmpi.io.files.atomic import NotSavedError, check_target, refusing, replaced
from nnmpi.io.files.model_files import Build, ModelFile, Prepared
from nnmpi.nn.state import FileFormat
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown

PUBLISHED = "published"
"""The metadata key for the texts of the JSON files in the folder from which a model was loaded."""

TOKENIZER_FILE = "tokenizer.json"


class ModelFolder(ModelFile):
    """A GPT or Llama model stored in a folder: config.json and model.safetensors or its shards."""

    @property
    def weights(self) -> str:
        """The file to which the tensors are written."""
        return os.path.join(self.path, gpt2.WEIGHTS)

    @property
    def source(self) -> Path:
        """The file from which the tensors are read, or the index of its shards."""
        return gpt2.weights_in(self.path)

    def form(self) -> FileFormat:
        """Returns names and layouts of tensors in the folder's file."""
        return format_of(sizes_in(self.path))

    def resolved(self, config: Config, is_named: bool) -> tuple[Config, Build]:
        """Returns the config with the model in the folder, and the function that builds it; raises
        ValueError if the user has named a model (`is_named`) of other sizes."""
        sizes, named = sizes_in(self.path), sizes_named(config.model)
        if is_named and (named is None or named.model != sizes.model):
            raise ValueError(
                f"model {shown(config.model)} with --load {shown(self.path)}, whose config.json "
                f"has {sizes.layers} layers, {sizes.heads} heads and width {sizes.width}: leave "
                f"--model out, or give --model {sizes.model}"
            )
        files = gpt2.published_in(self.path)
        build = partial(format_of(sizes).model, config.dropout, files)
        return replace(config, model=sizes.model), build

    def check(self) -> None:
        """Raises NotSavedError if no model can be written to the folder."""
        if not os.path.isdir(self.path):
            check_target(self.path.rstrip(os.sep))
            try:
                os.mkdir(self.path)
                os.rmdir(self.path)
            except OSError as error:
                raise NotSavedError(
                    f"cannot save {shown(self.path)}: the folder cannot be made: {error.strerror}; "
                    "leave out the slash at its end for a file, or name another place"
                ) from None
            return
        for name in (gpt2.CONFIG, gpt2.GENERATION, gpt2.WEIGHTS, TOKENIZER_FILE):
            check_target(Path(self.path, name))

    def check_model(self, sizes: tuple[Any, ...] | None, model: str) -> None:
        """Raises NotSavedError if `sizes` is None: the model is neither a GPT nor a Llama."""
        if sizes is None:
            raise NotSavedError(
                f"cannot save {shown(self.path)}: it is a directory; name a file in it, since a "
                f"folder is for a GPT or a Llama, and the model is a {shown(model)}"
            )

    @contextmanager
    def prepared(
        self, sizes: tuple[Any, ...] | None, about: Mapping[str, str]
    ) -> Iterator[Prepared]:
        """A context in which the tensors of a model of these sizes are written to a file of the
        folder; it yields the file, and the names and metadata to write.

        The folder is created, and removed after a failure. Its other files are replaced when the
        block ends, right after the tensors; config.json is the last.
        """
        assert sizes is not None
        self.check()
        is_there = os.path.isdir(self.path)
        try:
            with refusing(self.path), ExitStack() as files:
                os.makedirs(self.path, exist_ok=True)
                form = format_of(sizes_of(sizes))
                texts = gpt2.json_texts(form, json.loads(about.get(PUBLISHED, "{}")))
                about = {key: text for key, text in about.items() if key != PUBLISHED}
                if tokenizer := _tokenizer(about):
                    texts = {TOKENIZER_FILE: tokenizer.to_json(), **texts}
                    about[TOKENIZER] = tokenizer.describe(TOKENIZER_FILE)
                for name, text in reversed(texts.items()):  # an ExitStack closes them in reverse
                    file = files.enter_context(replaced(Path(self.path, name), "xb"))
                    file.write(text.encode())
                yield Prepared(self.weights, form, {**gpt2.METADATA, **about})
        finally:
            if not is_there:
                with suppress(OSError):  # fails, as it should, unless the folder was left empty
                    os.rmdir(self.path)


def sizes_in(folder: str | os.PathLike[str]) -> Sizes:
    """Returns the sizes of the model in a folder, from its config.json."""
    if os.path.isdir(folder) and not os.path.lexists(Path(folder, gpt2.CONFIG)):
        raise ValueError(
            f"cannot load {shown(folder)}: it is a directory; name a file in it (it is not a "
            f"folder of GPT-2 or Llama, since it has no {gpt2.CONFIG})"
        )
    sizes: Sizes = format_in(folder).sizes
    return sizes


def _tokenizer(about: Mapping[str, str]) -> BPETokenizer | None:
    """Returns the BPE tokenizer that a model's metadata `about` describe, so that its files are
    saved with the model; None if they describe none, or its files cannot be read any more."""
    with suppress(ValueError):
        tokenizer = tokenizer_of(about.get(TOKENIZER, ""))
        return tokenizer if isinstance(tokenizer, BPETokenizer) else None
    return None
