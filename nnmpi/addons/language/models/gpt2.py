"""Reads and writes GPT-2 in the files in which its weights are published: config.json,
model.safetensors or its shards, and generation_config.json, which is saved unchanged.

in the files                   in the model
h.0.attn.c_attn.weight         (W, 3 H D): inputs x outputs, q of all heads, then k, then v
                               (H 3 D, W): outputs x inputs, with q, k and v of each head together
c_proj.weight, c_fc.weight     inputs x outputs; transposed in the model
lm_head.weight                 wte.weight in the model as well; must be equal in files that have it
attn.bias, attn.masked_bias    masks, which are not parameters
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from safetensors.numpy import save_file

from nnmpi.addons.language.models.gpt import GPT, WIDER, GPTSizes
from nnmpi.autograd import on_host
from nnmpi.nn.place import Place
from nnmpi.nn.state import AS_IS, FileFormat, StorageOrder, check_state
from nnmpi.nn.tensor_files import INDEX, StoredTensor, check_tied, sources_in
from nnmpi.nn.utils import skip_init
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import read_json

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
SHARDED = "model" + INDEX
REMEDY = "take the file that belongs to the weights"
LM_HEAD = "lm_head.weight"
NUMBERS: Mapping[type, type] = {float: int}
PREFIX, EMBEDDING, POSITIONS = "transformer.", "wte.weight", "wpe.weight"
TRANSPOSED = ("attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")

GPT2 = GPTSizes(12, 12, 768, 50_257, 1024)
"""The sizes of the smallest published model, with 124 million parameters."""


TYPE_OF_WEIGHTS = ("torch_dtype", "dtype")
"""Keys of config.json for the type of the weights; not saved, since the type may have changed."""

BEGIN, END = "bos_token_id", "eos_token_id"
"""Keys, in both JSON files, of the tokens that begin and end a text."""

METADATA = {"format": "pt"}
"""The metadata that transformers expects in the file with the weights."""


Format = TypeVar("Format", bound="FolderFormat")


@dataclass(frozen=True)
class FolderFormat(FileFormat):
    """The format of a folder as the `transformers` library writes it: names and order of tensors,
    and settings in config.json. This class is for GPT-2; subclasses override its fields.

    kind      three names of this kind of model: the model_type in config.json, the class in the
              transformers library, and the name in messages
    prefix    the prefix of tensor names in a file
    blocks    the name of the Sequential that holds the transformer blocks
    head      the path of the weight of the output layer
    tables    maps the path of each embedding table to the name of the size that is its number of
              rows, such as "vocabulary"; the token embedding comes first
    layers    maps the name of a layer in the model to its names in a file
    ignored   suffixes of names of tensors in a file that are no parameters
    keys      the names of the sizes in config.json
    defaults  the sizes that transformers assumes if config.json leaves them out
    expected  settings that must have these values, since the model supports no others
    equal     for some of these settings, further values that mean the same
    """

    sizes: Any
    of_sizes: ClassVar[type[Any]] = GPTSizes
    kind: ClassVar[Sequence[str]] = ("gpt2", "GPT2LMHeadModel", "GPT-2")
    prefix: ClassVar[str] = PREFIX
    blocks: ClassVar[str] = "h"
    head: ClassVar[str] = "head.weight"
    tables: ClassVar[Mapping[str, str]] = {EMBEDDING: "vocabulary", POSITIONS: "positions"}
    layers: ClassVar[Mapping[str, Sequence[str]]] = {}
    ignored: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias")
    keys: ClassVar[Sequence[str]] = (
        *("n_layer", "n_head", "n_embd", "vocab_size", "n_positions", "n_inner"),
    )
    defaults: ClassVar[dict[str, Any]] = {"n_inner": 0}  # null: as wide as usual
    expected: ClassVar[Mapping[str, Any]] = {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    }
    equal: ClassVar[Mapping[str, Sequence[Any]]] = {"activation_function": ("gelu_pytorch_tanh",)}

    @classmethod
    def of(cls, config: Any, path: Path) -> Self:
        """Returns the format of config.json; raises ValueError for other settings."""
        stated = config.items() if isinstance(config, dict) else ()
        given = cls.defaults | {key: value for key, value in stated if value is not None}
        settings = {key: given.get(key) for key in cls.keys} | given
        types = zip(cls.keys, cls.of_sizes.__annotations__.values(), strict=True)
        wrong = [key for key, t in types if type(settings[key]) not in (t, NUMBERS.get(t, t))]
        # a setting that the file leaves out has its default in transformers, the expected value
        wrong += [
            key
            for key, value in cls.expected.items()
            if settings.get(key, value) not in (value, *cls.equal.get(key, ()))
        ]
        if wrong:
            values = ", ".join(f"{key} {shown(str(settings[key]))}" for key in wrong)
            raise ValueError(f"{shown(path)} has {values}, which {cls.kind[2]} does not have")
        return cls(cls.of_sizes(*(settings[key] for key in cls.keys)))

    def config(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Returns config.json for a model loaded with the files `published`."""
        end = GPT2.vocabulary - 1 if self.sizes.vocabulary == GPT2.vocabulary else None
        # without a folder, the token <|endoftext|> of GPT-2's vocabulary
        kept = {**self.expected, **published.get(CONFIG, {BEGIN: end, END: end})}
        named = {"model_type": self.kind[0], "architectures": [self.kind[1]]}
        return kept | dict(zip(self.keys, self.stated, strict=True)) | named

    @property
    def stated(self) -> Sequence[Any]:
        """The sizes of the model in the order of `keys` (their names in config.json), with the
        values to write there: null for the default width within an MLP."""
        *sizes, intermediate = self.sizes
        return *sizes, None if intermediate in (0, WIDER * self.sizes.width) else intermediate

    def model(self, dropout: float = 0.0, published: Mapping[str, Any] | None = None) -> Any:
        """Returns a model of these sizes with initial weights; the JSON files `published` are saved
        together with it."""
        layers, heads, width, vocabulary, positions, within = self.sizes
        return GPT(layers, heads, width, vocabulary, positions, dropout, published, within)

    def order(self, path: str) -> StorageOrder:
        """Returns how the file stores the tensor at a path, such as transposed."""
        if path.endswith(("attn.c_attn.weight", "attn.c_attn.bias")):
            return StorageOrder(path.endswith("weight"), self.sizes.heads, (1, 1, 1))
        return StorageOrder(is_transposed=True) if path.endswith(TRANSPOSED) else AS_IS

    @property
    def is_tied(self) -> bool:
        """True if the output layer and the token embedding share one weight, as always in GPT-2."""
        return bool(getattr(self.sizes, "is_tied", True))

    def names_by_path(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Returns a file's names for each path in the model, given all its names."""
        paths: dict[str, tuple[str, ...]] = {}
        parts = [(part, layer) for layer, stored in self.layers.items() for part in stored]
        known = dict.fromkeys(names)
        for name in known:
            path = name.removeprefix(self.prefix)
            if name.endswith(self.ignored) or (self.is_tied and path == LM_HEAD):
                continue
            for part, layer in parts:
                path = path.replace(part, layer)
            packed = self.names(path)  # of which a file has all or none
            paths |= {path: packed} if {name} <= {*packed} <= known.keys() else {name: (name,)}
        embedding = next(iter(self.tables))
        ties = self.is_tied and embedding in paths
        return paths | ({self.head: paths[embedding]} if ties else {})

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Returns embedding and output layer, if a file has both names of their weight."""
        paths, embedding = {n.removeprefix(self.prefix): n for n in names}, next(iter(self.tables))
        has_both = self.is_tied and {embedding, LM_HEAD} <= paths.keys()
        return [(paths[embedding], paths[LM_HEAD])] if has_both else []

    def names(self, path: str) -> tuple[str, ...]:
        """Returns a file's names for a path; none for an output layer that is tied."""
        if path == self.head:
            return () if self.is_tied else (LM_HEAD,)
        layer = path.split(".")[-2:][0]
        return tuple(self.prefix + path.replace(layer, n) for n in self.layers.get(layer, (layer,)))

    def check_sources(self, file: object, sources: Mapping[str, StoredTensor]) -> None:
        """Raises ValueError unless the tensors of a folder, by path, have the sizes that its
        config.json, `file`, states. It runs before the model is built, since a file may claim a
        billion layers."""
        layers = len({path.split(".")[1] for path in sources if path.startswith(self.blocks + ".")})
        try:
            sizes = self.sizes.checked()
            shapes = ((path, (getattr(sizes, n), sizes.width)) for path, n in self.tables.items())
            check_state((), sources, [Place.of_whole(*table) for table in shapes])
            if layers != sizes.layers:
                raise ValueError(f"it says {sizes.layers:,} layers, the weights have {layers:,}")
        except ValueError as error:
            remedy = "use an intact copy, with sizes and weights of the same model"
            raise ValueError(f"{shown(file)}: {shown(error)}; {remedy}") from None


def weights_in(folder: str | os.PathLike[str]) -> Path:
    """Returns the weights file in a folder, or the index of its shards."""
    whole_file, index = Path(folder, WEIGHTS), Path(folder, SHARDED)
    return index if os.path.lexists(index) and not os.path.lexists(whole_file) else whole_file


def published_in(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the JSON files of a folder that are saved together with the model, by name:
    generation_config.json, if there is one, then config.json."""
    path = Path(folder, GENERATION)
    files = {GENERATION: read_json(path, REMEDY)} if os.path.lexists(path) else {}
    return {**files, CONFIG: read_json(Path(folder, CONFIG), REMEDY)}


def special_tokens(published: Mapping[str, Any], key: str, vocabulary: int) -> list[int]:
    """Returns the tokens that begin or end a text, as the JSON files of a folder say under `key`,
    BEGIN or END, without those beyond the vocabulary. As in transformers, generation_config.json
    has precedence over config.json."""
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
    """Returns the texts to write, by file name, config.json last. Settings in the files from which
    the model was loaded are kept, but the sizes are those of `form`, and the type of the weights is
    left out."""
    config = {k: v for k, v in form.config(published).items() if k not in TYPE_OF_WEIGHTS}
    return {
        file: json.dumps(value, indent=1) + "\n"
        for file, value in {**published, CONFIG: config}.items()
    }


def read_folder(format_class: type[Format], folder: str | os.PathLike[str]) -> Format:
    """Reads config.json in a model's folder as an object of `format_class`; raises ValueError
    unless it and the tensors are those of such a model."""
    path = Path(folder) / CONFIG
    form = format_class.of(read_json(path, REMEDY), path)
    form.check_sources(path, sources_in(weights_in(folder), form))
    return form


def load_weights(form: FolderFormat, folder: str | os.PathLike[str], dropout: float) -> Any:
    """Returns a model with the weights in a folder; `dropout` is for more training."""
    file, model = weights_in(folder), form.model(dropout, published_in(folder))
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
    """Writes a model into a folder, which is created: config.json, model.safetensors and, if
    `published` has one, generation_config.json; by a temporary folder, so that a failure leaves
    nothing behind.

    state      the parameters of the model by path
    form       the names and the order of tensors in the file
    published  the JSON files of the folder that the model was loaded from, by name
    """
    path, texts = Path(folder), json_texts(form, published)
    tensors: dict[str, Any] = {}
    for place, value in state.items():
        tensors |= form.arrays(place, on_host(value))
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


def load_gpt2(folder: str | os.PathLike[str], dropout: float = 0.0) -> GPT:
    """Returns the GPT-2 in a folder, which has config.json and model.safetensors or the shards of
    an index; `dropout` is used if the model is trained further."""
    model: GPT = load_weights(read_folder(FolderFormat, folder), folder, dropout)
    return model


def save_gpt2(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Writes a GPT-2 into a folder, as `save_folder` does."""
    save_folder(model.state_dict(), FolderFormat(model.sizes), model.published, folder)
