"""GPT-2 in its published files: beside a forward pass written from their layout, and transformers
where it is installed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.shards import cut
from safetensors.numpy import load_file, save_file

import nnmpi
from nnmpi import nn
from nnmpi.addons.language.models.gpt2 import load_gpt2, save_gpt2

L, H, W, V, P = 2, 3, 12, 23, 7
CONFIG = {"n_layer": L, "n_head": H, "n_embd": W, "vocab_size": V, "n_positions": P}
BLOCK = {
    "ln_1.weight": (W,),
    "ln_1.bias": (W,),
    "attn.c_attn.weight": (W, 3 * W),
    "attn.c_attn.bias": (3 * W,),
    "attn.c_proj.weight": (W, W),
    "attn.c_proj.bias": (W,),
    "ln_2.weight": (W,),
    "ln_2.bias": (W,),
    "mlp.c_fc.weight": (W, 4 * W),
    "mlp.c_fc.bias": (4 * W,),
    "mlp.c_proj.weight": (4 * W, W),
    "mlp.c_proj.bias": (W,),
}


def published(prefix: str = "") -> dict[str, np.ndarray]:
    """Random weights under the published names, with a mask."""
    rng = np.random.default_rng(3)
    shapes = {"wte.weight": (V, W), "wpe.weight": (P, W), "ln_f.weight": (W,), "ln_f.bias": (W,)}
    shapes |= {f"h.{n}.{name}": shape for n in range(L) for name, shape in BLOCK.items()}
    found = {prefix + k: rng.standard_normal(s).astype("float32") for k, s in shapes.items()}
    return found | {f"{prefix}h.0.attn.bias": np.tril(np.ones((1, 1, P, P), "float32"))}


def written(folder: Path, tensors: dict[str, np.ndarray], **config: object) -> Path:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


def forward(w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Logits (N, T, V) in float64: x @ weight, and q, k and v one behind the other."""
    w = {name: value.astype("float64") for name, value in w.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    N, T = tokens.shape
    x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
    for n in range(L):
        qkv = linear(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn")
        q, k, v = (a.reshape(N, T, H, W // H).swapaxes(1, 2) for a in np.split(qkv, 3, axis=-1))
        s = q @ k.swapaxes(-1, -2) / np.sqrt(W // H)
        s = np.where(np.tril(np.ones((T, T), bool)), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        y = (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(N, T, W)
        x = x + linear(y, f"h.{n}.attn.c_proj")
        u = linear(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
        u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
        x = x + linear(u, f"h.{n}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


TOKENS = np.random.default_rng(0).integers(0, V, (2, 6))


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_logits_are_those_of_the_published_layout(prefix: str, tmp_path: Path) -> None:
    model = load_gpt2(written(tmp_path, published(prefix)))
    model.to("float64")
    wanted = forward(published(), TOKENS)
    np.testing.assert_allclose(
        model(nnmpi.tensor(TOKENS)).numpy(), wanted.transpose(0, 2, 1), rtol=1e-9, atol=1e-11
    )


def test_a_file_that_is_written_has_the_published_layout(tmp_path: Path) -> None:
    save_gpt2(load_gpt2(written(tmp_path, published())), tmp_path / "new")
    found = load_file(tmp_path / "new" / "model.safetensors")
    wanted = {f"transformer.{k}": v for k, v in published().items() if k != "h.0.attn.bias"}
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name], err_msg=name)
    assert load_gpt2(tmp_path / "new").heads == H


def test_an_output_layer_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    tensors = published("transformer.")
    equal = {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].copy()}
    load_gpt2(written(tmp_path, equal))
    other = equal["lm_head.weight"].copy()
    other[-1, -1] += 1e-3
    for wrong in (other, other[1:]):
        for config in ({}, {"tie_word_embeddings": True}):
            folder = written(tmp_path, {**equal, "lm_head.weight": wrong}, **config)
            with refused("lm_head.weight differs from transformer.wte.weight", str(folder)):
                load_gpt2(folder)


@pytest.mark.parametrize("shape", [(), (W,), (W, 35), (3 * W, W), (0,)])
def test_a_tensor_of_another_shape_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    name = "h.1.attn.c_attn.weight"
    folder = written(tmp_path, {**published(), name: np.zeros(shape, "float32")})
    with refused(f"{folder}/model.safetensors: ", f"{name} has shape {shape[::-1]}"):
        load_gpt2(folder)


def test_shards_of_bfloat16_are_read(tmp_path: Path) -> None:
    """With the name of GELU that newer files have; numbers of 16 bits are as many here."""
    bfloat16 = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes").bfloat16
    rounded = {name: value.astype(bfloat16) for name, value in published().items()}
    cut(written(tmp_path, rounded, activation_function="gelu_pytorch_tanh"), 3)
    found = load_gpt2(tmp_path).to("float64")(nnmpi.tensor(TOKENS)).numpy()
    wanted = forward(rounded, TOKENS).transpose(0, 2, 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


def test_shards_of_transformers_are_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    save_gpt2(nn.GPT(L, H, W, V, P), tmp_path / "whole")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "whole")
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "cut", max_shard_size="3KB")
    assert len([*(tmp_path / "cut").glob("model-*.safetensors")]) > 1
    ours = load_gpt2(tmp_path / "cut")
    for name, value in theirs.transformer.state_dict().items():
        if not name.startswith("h."):
            wanted = value.float().numpy()
            np.testing.assert_array_equal(ours.state_dict()[name], wanted, err_msg=name)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = nn.GPT(L, H, W, V, P)
    save_gpt2(model, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        wanted = theirs(torch.as_tensor(TOKENS)).logits.numpy()
    found = model(nnmpi.tensor(TOKENS)).numpy().transpose(0, 2, 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({}, {"n_head": 5}, "5 heads and width 12"),
        ({}, {"n_head": 0}, "0 heads and width 12"),
        ({}, {"n_layer": 3000}, "it says 3,000 layers, the weights have 2"),
        ({}, {"n_layer": 10**9}, "it says 1,000,000,000 layers, the weights have 2"),
        ({}, {"n_layer": 10**18}, "the weights have 2"),
        ({}, {"n_layer": 1e18}, "has n_layer 1e+18, which GPT-2 does not have"),
        ({}, {"vocab_size": 10**18}, "the model needs (1000000000000000000, 12)"),
        ({}, {"vocab_size": 10**4000}, "wte.weight has shape (23, 12)"),
        ({}, {"n_positions": 10**18}, "the model needs (1000000000000000000, 12)"),
        ({}, {"n_embd": 3 * 10**9}, "the model needs (23, 3000000000)"),
        ({}, {"activation_function": ["gelu_new"]}, "has activation_function ['gelu_new']"),
        ({}, {"n_head": "3"}, "config.json has n_head 3, which GPT-2 does not have"),
        ({}, {"activation_function": "relu"}, "has activation_function relu"),
        ({}, {"vocab_size": 24}, "wte.weight"),
        ({"wpe.weight": None}, {}, "wpe.weight"),
    ],
)
def test_what_does_not_fit_is_refused(change, config, message, tmp_path: Path) -> None:
    tensors = {name: value for name, value in published().items() if name not in change}
    with pytest.raises(ValueError, match=re.escape(message)):
        load_gpt2(written(tmp_path, tensors, **config))
