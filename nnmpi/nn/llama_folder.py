"""Llama in the folders that transformers writes.

in the files, behind "model."            in the model
layers.0.self_attn.{q,k,v}_proj.weight   layers.0.qkv_proj.weight: for each key head the rows of its
                                         queries, of its key and of its value
layers.0.mlp.{gate,up}_proj.weight       layers.0.gate_up_proj.weight: in turn a row of each
layers.0.self_attn.o_proj.weight         layers.0.o_proj.weight
layers.0.mlp.down_proj.weight            layers.0.down_proj.weight
lm_head.weight, without "model."         also there; if tied only embed_tokens.weight, in the files
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nnmpi.nn.llama import Llama, LlamaSizes
from nnmpi.nn.place import Place
from nnmpi.nn.published import (
    BEGIN,
    CONFIG,
    END,
    FolderFormat,
    load_weights,
    published_in,
    read_folder,
    save_folder,
)
from nnmpi.nn.state import AS_IS, StorageOrder
from nnmpi.options.quoting import shown

PREFIX, EMBEDDING, NORM, HEAD = "model.", "embed_tokens.weight", "norm.weight", "lm_head.weight"
NAMES = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o_proj": ("self_attn.o_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
}
"""The names in a file of a layer of a block."""

LAYERS = {name: layer for layer, names in NAMES.items() for name in names}

KEYS = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "width": "hidden_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "is_tied": "tie_word_embeddings",
}
"""The names in config.json of the fields of `LlamaSizes`."""

DEFAULTS: Mapping[str, Any] = {
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
"""The values in transformers of settings that a file leaves out."""

EXPECTED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0},
    "rope_scaling": None,
    "quantization_config": None,
}
"""The only values of these settings that the model computes."""


@dataclass(frozen=True)
class LlamaFormat(FolderFormat):
    """The format of a folder of a Llama of these sizes (see `nnmpi.nn.state.FileFormat`)."""

    sizes: LlamaSizes
    kind, blocks = "llama", "layers"

    def names_by_path(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Returns the names in a file by the path of their tensor in the model."""
        paths: dict[str, tuple[str, ...]] = {}
        for name in names:
            path = name.removeprefix(PREFIX)
            for part, layer in LAYERS.items():
                path = path.replace(part, layer)
            paths[path] = self.names(path) if name in self.names(path) else (name,)
        return paths | ({HEAD: self.names(EMBEDDING)} if self.sizes.is_tied else {})

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Returns the pair of embedding and output layer, if a file has both and they are tied."""
        pair = (PREFIX + EMBEDDING, HEAD)
        return [pair] if self.sizes.is_tied and {*pair} <= {*names} else []

    def names(self, path: str) -> tuple[str, ...]:
        """Returns the names to write a tensor under; none for the tied weight under its second
        path."""
        if path == HEAD:
            return () if self.sizes.is_tied else (HEAD,)
        layer = path.split(".")[-2:][0]
        return tuple(PREFIX + path.replace(layer, name) for name in NAMES.get(layer, (layer,)))

    def order(self, path: str) -> StorageOrder:
        """Returns how files store the rows of a tensor."""
        sizes = self.sizes
        if path.endswith("qkv_proj.weight"):
            return StorageOrder(False, sizes.kv_heads, (sizes.heads // sizes.kv_heads, 1, 1))
        is_packed = path.endswith("gate_up_proj.weight")
        return StorageOrder(False, sizes.intermediate, (1, 1)) if is_packed else AS_IS

    @classmethod
    def of(cls, config: Mapping[str, Any], path: Path) -> Self:
        """Returns the format for the sizes in config.json; raises ValueError for settings that the
        model does not have."""
        given = {**DEFAULTS, **{key: v for key, v in config.items() if v is not None}}
        rope = given.get("rope_parameters")
        if isinstance(rope, dict):  # of transformers 5, which writes rope_theta in it
            given["rope_theta"] = rope.get("rope_theta", given["rope_theta"])
            others = {key: value for key, value in rope.items() if key != "rope_theta"}
            given["rope_parameters"] = {**EXPECTED["rope_parameters"], **others}
        given.setdefault("num_key_value_heads", given.get("num_attention_heads"))
        values: list[Any] = [given.get(key) for key in KEYS.values()]
        sizes = LlamaSizes(*values)
        wrong = [
            KEYS[name]
            for name, kind in LlamaSizes.__annotations__.items()
            if type(getattr(sizes, name)) not in ((int, float) if kind is float else (kind,))
        ]
        if not wrong:
            expected = {**EXPECTED, "head_dim": sizes.width // max(sizes.heads, 1)}
            wrong = [key for key, value in expected.items() if given.get(key, value) != value]
        if wrong:
            text = ", ".join(f"{key} {shown(config.get(key), 80)}" for key in wrong)
            raise ValueError(f"{shown(path)} has {text}, which nnmpi's Llama does not have")
        return cls(sizes)

    def config(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Returns config.json of a model that was loaded from a folder with these files."""
        sizes = dict(zip(KEYS.values(), self.sizes, strict=True))
        rope = {"rope_theta": self.sizes.rope_theta, "rope_type": "default"}
        named = {"model_type": self.kind, "architectures": ["LlamaForCausalLM"]}
        # transformers takes tokens 1 and 2 where the file has none
        kept = published.get(CONFIG, {BEGIN: None, END: None})
        return {**kept, **sizes, **named, "rope_parameters": rope}

    def model(self, dropout: float = 0.0, published: Mapping[str, Any] | None = None) -> Llama:
        """Returns a model of these sizes, which has no dropout."""
        return Llama(self.sizes, published)

    def outer(self) -> tuple[list[Place], int]:
        """Returns the places of embedding, last norm and output layer, and the number of blocks."""
        layers, _, width, vocabulary, *_ = self.sizes.completed()
        shapes = {EMBEDDING: (vocabulary, width), NORM: (width,), HEAD: (vocabulary, width)}
        return [Place.of_whole(path, shape) for path, shape in shapes.items()], layers


def load_llama(folder: str | os.PathLike[str]) -> Llama:
    """Returns the model of a folder with config.json and model.safetensors, or with the shards of
    an index."""
    form = read_folder(LlamaFormat, folder)
    return load_weights(form.model(0.0, published_in(folder)), form, folder)


def save_llama(model: Llama, folder: str | os.PathLike[str]) -> None:
    """Writes a model into a folder, as `nnmpi.nn.published.save_folder` does."""
    save_folder(model.state_dict(), LlamaFormat(model.sizes), model.published, folder)
