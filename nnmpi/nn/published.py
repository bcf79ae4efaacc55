"""Folders in which the weights of language models are published: config.json, model.safetensors or
its shards, and generation_config.json, which is kept as it is."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from safetensors.numpy import save_file

from nnmpi.arrays import backend
from nnmpi.data.files import read_json
from nnmpi.nn.module import Module
from nnmpi.nn.place import Place
from nnmpi.nn.state import FileFormat, check_state
from nnmpi.nn.tensor_files import INDEX, StoredTensor, check_tied, sources_in
from nnmpi.nn.utils import skip_init
from nnmpi.options.quoting import shown

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
SHARDED = "model" + INDEX
REMEDY = "take the file that belongs to the weights"

TYPE_OF_WEIGHTS = ("torch_dtype", "dtype")
"""Keys of config.json for the type of the weights; not saved, since the type may have changed."""

BEGIN, END = "bos_token_id", "eos_token_id"
"""Keys, in both JSON files, of the tokens that begin and end a text."""

METADATA = {"format": "pt"}
"""The metadata that transformers expects in the file with the weights."""


Format = TypeVar("Format", bound="FolderFormat")
Model = TypeVar("Model", bound=Module)


@dataclass(frozen=True)
class FolderFormat(FileFormat):
    """The base of the formats of folders, for a model of some sizes.

    kind    the model_type in config.json
    blocks  the Sequential that has the blocks of the model
    """

    sizes: Any
    kind: ClassVar[str]
    blocks: ClassVar[str]

    @classmethod
    def of(cls, config: Mapping[str, Any], path: Path) -> Self:
        """Returns the format for the sizes in config.json; raises ValueError, with the path of that
        file, for settings that the model does not have."""
        raise NotImplementedError

    def config(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Returns config.json of a model that was loaded from a folder with these files."""
        raise NotImplementedError

    def model(self, dropout: float = 0.0, published: Mapping[str, Any] | None = None) -> Module:
        """Returns a model of these sizes, with the files of its folder; `dropout` is for
        training."""
        raise NotImplementedError

    def check_sources(self, file: object, sources: Mapping[str, StoredTensor]) -> None:
        """Raises ValueError unless the tensors, by their paths in the model, fit the sizes that a
        file states.

        It runs before the model is built, since a file may claim a billion layers.
        """
        layers = len({path.split(".")[1] for path in sources if path.startswith(self.blocks + ".")})
        try:
            places, stated = self.outer()
            check_state((), sources, places)
            if layers != stated:
                raise ValueError(
                    f"its number of layers is {stated:,}, but the weights have {layers:,}"
                )
        except ValueError as error:
            remedy = "take config.json and the weights of the same model"
            raise ValueError(f"{shown(file)}: {shown(error)}; {remedy}") from None

    def outer(self) -> tuple[list[Place], int]:
        """Returns the places of the tensors outside of blocks, and the number of blocks; raises
        ValueError for sizes that no model has."""
        raise NotImplementedError


def weights_in(folder: str | os.PathLike[str]) -> Path:
    """Returns the path of the weights of a folder, or of the index of their shards if it has no
    such file."""
    whole_file, index = Path(folder, WEIGHTS), Path(folder, SHARDED)
    return index if os.path.lexists(index) and not os.path.lexists(whole_file) else whole_file


def published_in(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the JSON files of a folder that are saved with the model again, by name, config.json
    last."""
    path = Path(folder, GENERATION)
    files = {GENERATION: read_json(path, REMEDY)} if os.path.lexists(path) else {}
    return {**files, CONFIG: read_json(Path(folder, CONFIG), REMEDY)}


def special_tokens(published: Mapping[str, Any], key: str, vocabulary: int) -> list[int]:
    """Returns the tokens listed under BEGIN or END in the files of a folder, without those beyond
    the vocabulary.

    As in transformers, generation_config.json has precedence over config.json.
    """
    for file in (GENERATION, CONFIG):
        settings = published.get(file, {})
        if not isinstance(settings, dict) or key not in settings:
            continue
        value = settings[key]
        tokens = value if isinstance(value, list) else [value] * (value is not None)
        if any(type(token) is not int for token in tokens):
            raise ValueError(
                f"{key} of {file} is {shown(repr(value), 80)}: give a token as a number, a list of "
                "them, or null"
            )
        return [token for token in tokens if 0 <= token < vocabulary]
    return []


def json_texts(form: FolderFormat, published: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of config.json and generation_config.json by name, config.json last.

    They repeat the settings of the folder that the model was loaded from, except for those that
    describe the weights now.
    """
    config = {k: v for k, v in form.config(published).items() if k not in TYPE_OF_WEIGHTS}
    return {
        file: json.dumps(value, indent=1) + "\n"
        for file, value in {**published, CONFIG: config}.items()
    }


def read_folder(format_class: type[Format], folder: str | os.PathLike[str]) -> Format:
    """Reads the sizes of the model in a folder; raises ValueError unless config.json and the
    tensors beside it are those of such a model."""
    path = Path(folder) / CONFIG
    form = format_class.of(read_json(path, REMEDY), path)
    form.check_sources(path, sources_in(weights_in(folder), form))
    return form


def load_weights(model: Model, form: FileFormat, folder: str | os.PathLike[str]) -> Model:
    """Returns the model with the weights of a folder."""
    file = weights_in(folder)
    check_tied(file, form)
    sources, places = sources_in(file, form), [place for place, _ in model.tensors()]
    try:
        check_state(sources, sources, places)
    except ValueError as error:
        raise ValueError(f"cannot load {shown(file)}: {error}") from None
    skip_init(model.parameters())
    model.load_state_dict({place.path: sources[place.path].read(place) for place in places})
    return model


def save_folder(
    state: Mapping[str, Any],
    form: FolderFormat,
    published: Mapping[str, Any],
    folder: str | os.PathLike[str],
) -> None:
    """Writes config.json and model.safetensors of a model into a folder, which is created, and
    generation_config.json if the model was loaded from a folder that has one.

    The files are written to a temporary folder first, so a failure leaves nothing behind.
    """
    path, texts = Path(folder), json_texts(form, published)
    tensors = {
        name: part
        for place, value in state.items()
        if (names := form.names(place))
        for name, part in zip(
            names, form.order(place).to_files(backend.to_host(value), len(names)), strict=True
        )
    }
    # in the folder or beside it, so that os.replace does not cross file systems
    path.parent.mkdir(parents=True, exist_ok=True)
    parent = path if path.is_dir() else path.parent
    with tempfile.TemporaryDirectory(prefix=".nnmpi-", dir=parent) as temporary:
        new = Path(temporary)
        for file, text in texts.items():
            (new / file).write_text(text, encoding="utf-8")
        save_file(tensors, new / WEIGHTS, METADATA)
        path.mkdir(exist_ok=True)
        for file in (WEIGHTS, *texts):
            os.replace(new / file, path / file)
