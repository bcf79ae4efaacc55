"""GPT-2 in the files in which its weights are published: config.json, model.safetensors, and
generation_config.json, which is kept as it is.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import save_file

from nnmpi.arrays import backend
from nnmpi.data.files import read_json
from nnmpi.nn.gpt import GPT, check_gpt
from nnmpi.nn.place import Place
from nnmpi.nn.state import AS_IS, FileFormat, StorageOrder, check_state
from nnmpi.nn.tensor_files import INDEX, StoredTensor, check_tied, sources_in
from nnmpi.nn.utils import skip_init
from nnmpi.options.quoting import shown

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
SHARDED = "model" + INDEX
PREFIX = "transformer."
LM_HEAD = "lm_head.weight"
NO_PARAMETERS = (".attn.bias", ".attn.masked_bias", LM_HEAD)
TRANSPOSED = ("attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
EMBEDDING, POSITIONS, HEAD = "wte.weight", "wpe.weight", "head.weight"
EXPECTED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}
EQUAL = {"activation_function": ("gelu_pytorch_tanh",)}
"""Other values that mean the same as the expected ones."""

REMEDY = "take the file that belongs to the weights"

TYPE_OF_WEIGHTS = ("torch_dtype", "dtype")
"""Keys of config.json for the type of the weights; not saved, since the type may have changed."""

BEGIN, END = "bos_token_id", "eos_token_id"
"""Keys, in both JSON files, of the tokens that begin and end a text."""

METADATA = {"format": "pt"}
"""The metadata that transformers expects in the file with the weights."""


class Sizes(NamedTuple):
    """The sizes of a GPT."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    positions: int

    @property
    def model(self) -> str:
        """The name of a model of these sizes, as `--model` takes it."""
        return f"gpt:{self.layers}x{self.heads}x{self.width}"


KEYS = ("n_layer", "n_head", "n_embd", "vocab_size", "n_positions")
"""The names of the fields of `Sizes` in config.json."""

GPT2 = Sizes(12, 12, 768, 50_257, 1024)
"""The sizes of the smallest published model, with 124 million parameters."""


@dataclass(frozen=True)
class GPT2Format(FileFormat):
    """The file format of a GPT-2 with this number of heads (see `nnmpi.nn.state.FileFormat`)."""

    heads: int

    def names_by_path(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the names in a file by the path of their tensor in the model."""
        names_in_file = {n.removeprefix(PREFIX): n for n in names if not n.endswith(NO_PARAMETERS)}
        if EMBEDDING in names_in_file:
            names_in_file[HEAD] = names_in_file[EMBEDDING]
        return names_in_file

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Returns the pair of embedding and output layer, if a file has both."""
        names_in_file = {n.removeprefix(PREFIX): n for n in names}
        has_both = {EMBEDDING, LM_HEAD} <= names_in_file.keys()
        return [(names_in_file[EMBEDDING], names_in_file[LM_HEAD])] if has_both else []

    def name(self, path: str) -> str | None:
        """Returns the name to write a tensor under; None for the tied weight under its second
        path."""
        return None if path == HEAD else PREFIX + path

    def order(self, path: str) -> StorageOrder:
        """Returns how a file stores the elements of a tensor."""
        if path.endswith("attn.c_attn.weight"):
            return StorageOrder(is_transposed=True, heads=self.heads)
        if path.endswith("attn.c_attn.bias"):
            return StorageOrder(heads=self.heads)
        return StorageOrder(is_transposed=True) if path.endswith(TRANSPOSED) else AS_IS


def load_gpt2(folder: str | os.PathLike[str], dropout: float = 0.0) -> GPT:
    """Returns the model of a folder with config.json and model.safetensors, or with the shards of
    an index; `dropout` applies if it is
    trained further."""
    sizes = read_sizes(folder)
    model = GPT(*sizes, dropout, published_in(folder))
    form, file = GPT2Format(sizes.heads), weights_in(folder)
    check_tied(file, form)
    sources, places = sources_in(file, form), [place for place, _ in model.tensors()]
    try:
        check_state(sources, sources, places)
    except ValueError as error:
        raise ValueError(f"cannot load {shown(file)}: {error}") from None
    skip_init(model.parameters())
    model.load_state_dict({place.path: sources[place.path].read(place) for place in places})
    return model


def weights_in(folder: str | os.PathLike[str]) -> Path:
    """Returns the path of the weights of a folder, or of the index of their shards if it has no
    such file."""
    whole_file, index = Path(folder, WEIGHTS), Path(folder, SHARDED)
    return index if os.path.lexists(index) and not os.path.lexists(whole_file) else whole_file


def save_gpt2(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Writes config.json and model.safetensors of a model into a folder, which is created, and
    generation_config.json if the model was loaded from a folder that has one.

    The files are written to a temporary folder first, so a failure leaves nothing behind.
    """
    path, form = Path(folder), GPT2Format(model.heads)
    texts = json_texts(sizes_of(model), model.published)
    state = {
        name: form.order(path).to_file(backend.to_host(value))
        for path, value in model.state_dict().items()
        if (name := form.name(path))
    }
    # in the folder or beside it, so that os.replace does not cross file systems
    path.parent.mkdir(parents=True, exist_ok=True)
    parent = path if path.is_dir() else path.parent
    with tempfile.TemporaryDirectory(prefix=".nnmpi-", dir=parent) as temporary:
        new = Path(temporary)
        for file, text in texts.items():
            (new / file).write_text(text, encoding="utf-8")
        save_file(state, new / WEIGHTS, METADATA)
        path.mkdir(exist_ok=True)
        for file in (WEIGHTS, *texts):
            os.replace(new / file, path / file)


def sizes_of(model: GPT) -> Sizes:
    """Returns the sizes of a model, of which this rank may have only a part."""
    vocabulary, width = model.wte.weight.place.shape
    return Sizes(len(model.h), model.heads, width, vocabulary, model.wpe.num_positions)


def published_in(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the JSON files of a folder that are saved with the model again, by name, config.json
    last."""
    path = Path(folder, GENERATION)
    files = {GENERATION: read_json(path, REMEDY)} if os.path.lexists(path) else {}
    return {**files, CONFIG: _read_config(Path(folder, CONFIG))}


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


def json_texts(sizes: Sizes, published: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of config.json and generation_config.json by name, config.json last.

    They repeat the settings of the folder that the model was loaded from, except for those that
    describe the weights now.
    """
    end = GPT2.vocabulary - 1 if sizes.vocabulary == GPT2.vocabulary else None
    start = {BEGIN: end, END: end}  # the token <|endoftext|>
    config = {**EXPECTED, **published.get(CONFIG, start), **dict(zip(KEYS, sizes, strict=True))}
    config = {key: value for key, value in config.items() if key not in TYPE_OF_WEIGHTS}
    config |= {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    return {
        file: json.dumps(value, indent=1) + "\n"
        for file, value in {**published, CONFIG: config}.items()
    }


def read_sizes(folder: str | os.PathLike[str]) -> Sizes:
    """Reads the sizes from config.json of a folder; raises ValueError unless this file and the
    tensors beside it are those of a GPT-2."""
    path = Path(folder) / CONFIG
    config = _read_config(path)
    sizes = Sizes(*(config[key] for key in KEYS))
    check_sources(path, sizes, sources_in(weights_in(folder), GPT2Format(sizes.heads)))
    return sizes


def check_sources(file: object, sizes: Sizes, sources: Mapping[str, StoredTensor]) -> None:
    """Raises ValueError unless the tensors, by their paths in the model, fit the sizes that a file
    states.

    It runs before the model is built, since a file may claim a billion layers.
    """
    vocabulary, positions = (sizes.vocabulary, sizes.width), (sizes.positions, sizes.width)
    layers = len({path.split(".")[1] for path in sources if path.startswith("h.")})
    try:
        check_gpt(*sizes[:3])
        places = (EMBEDDING, vocabulary), (POSITIONS, positions)
        check_state((), sources, [Place.of_whole(*place) for place in places])
        if layers != sizes.layers:
            raise ValueError(f"it says {sizes.layers:,} layers, but the weights have {layers:,}")
    except ValueError as error:
        remedy = "use an intact copy, with sizes and weights of the same model"
        raise ValueError(f"{shown(file)}: {shown(error)}; {remedy}") from None


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path, REMEDY)
    if not isinstance(config, dict) or not config.keys() >= {*KEYS}:
        raise ValueError(
            f"{shown(path)} is not a configuration of GPT-2, which has the keys {', '.join(KEYS)}"
        )
    missing = [key for key in KEYS if type(config[key]) is not int]
    # a setting that the file leaves out has its default in transformers, the expected value
    others = [
        key
        for key, value in EXPECTED.items()
        if config.get(key, value) not in (value, *EQUAL.get(key, ()))
    ]
    if missing or others:
        values = ", ".join(f"{key} {shown(str(config[key]))}" for key in (*missing, *others))
        raise ValueError(f"{shown(path)} has {values}, which GPT-2 does not have")
    return config
