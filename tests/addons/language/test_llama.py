"""Llama beside transformers: `llama/` is a folder of random weights that transformers 5.24 wrote,
in bfloat16, with the logits that it computed of them in float64."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.shards import cut
from safetensors.numpy import load_file, save_file

import nnmpi
from nnmpi import nn
from nnmpi.addons.language.models.llama import LlamaSizes
from nnmpi.addons.language.models.llama_folder import load_llama, save_llama
from nnmpi.autograd.check import directional_error

FOLDER = Path(__file__).with_name("llama")
GIVEN = load_file(FOLDER / "logits.safetensors")


def logits(model: nn.Module) -> np.ndarray:
    """(N, T, vocabulary), in float64, of the tokens of the fixture."""
    scores: np.ndarray = model.to("float64")(nnmpi.tensor(GIVEN["tokens"])).numpy()
    return scores.transpose(0, 2, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "start")
    (tmp_path / "start" / "logits.safetensors").unlink()
    return tmp_path / "start"


def changed(folder: Path, **settings: Any) -> Path:
    """The folder, whose config.json now has these settings; None: has not."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({key: v for key, v in config.items() if v is not None}))
    return folder


def test_logits_are_those_of_transformers() -> None:
    """Which computes norms and angles in float32, also in a model of float64."""
    np.testing.assert_allclose(logits(load_llama(FOLDER)), GIVEN["logits"], rtol=0, atol=1e-6)


def test_a_folder_is_written_as_transformers_writes_it(folder: Path) -> None:
    new = folder.parent / "new"
    save_llama(load_llama(folder).to("float32"), new)
    before, after = (load_file(p / "model.safetensors") for p in (folder, new))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value.astype("float32"), err_msg=name)
    configs = [json.loads((p / "config.json").read_text()) for p in (folder, new)]
    assert configs[0].pop("dtype") == "bfloat16"
    assert {key: configs[1][key] for key in configs[0]} == configs[0]
    assert configs[1]["rope_theta"] == 500  # as transformers 4 has it
    files = [(p / "generation_config.json").read_text() for p in (folder, new)]
    assert json.loads(files[0]) == json.loads(files[1])


SAME: dict[str, dict[str, Any]] = {
    "of transformers 4": {"rope_parameters": None, "rope_theta": 500, "head_dim": None},
    "with both": {"rope_theta": 7.0},
    "with all of a head": {
        "partial_rotary_factor": 1,
        "rope_parameters": {"rope_theta": 500, "partial_rotary_factor": 1.0},
    },
    "without defaults": {"hidden_act": None, "mlp_bias": None, "tie_word_embeddings": None},
}


@pytest.mark.parametrize("case", SAME)
def test_other_forms_of_config_are_read(case: str, folder: Path) -> None:
    wanted = logits(load_llama(FOLDER))
    np.testing.assert_array_equal(logits(load_llama(changed(folder, **SAME[case]))), wanted)


def test_shards_are_read(folder: Path) -> None:
    cut(folder, 3)
    np.testing.assert_array_equal(logits(load_llama(folder)), logits(load_llama(FOLDER)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scaling of rope": (
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}},
        "has rope_parameters {'rope_type': 'llama3', 'factor': 8.0}, which a Llama of nnmpi does",
    ),
    "scaling in transformers 4": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "has rope_scaling {'type': 'linear', 'factor': 2.0}, which",
    ),
    "no object": ({"rope_parameters": 3}, "has rope_parameters 3, which"),
    "biases": ({"attention_bias": True, "mlp_bias": True}, "attention_bias True, mlp_bias True,"),
    "an activation": ({"hidden_act": "gelu"}, "has hidden_act gelu, which"),
    "dropout": ({"attention_dropout": 0.1}, "has attention_dropout 0.1, which"),
    "heads of a size": ({"head_dim": 8}, "has head_dim 8, not 4"),
    "heads of a text": ({"head_dim": "4"}, "has head_dim '4', not 4"),
    "a part of a head": ({"partial_rotary_factor": 0.5}, "has partial_rotary_factor 0.5, not 1.0"),
    "a part in transformers 5": (
        {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.25}},
        "has partial_rotary_factor 0.25, not 1.0",
    ),
    **{
        f"{key} {value}": (
            {"rope_parameters": None, "rope_theta": 1.0, key: value},
            f"{key} {value}: it",
        )
        for key, value in (
            *(("num_key_value_heads", 0), ("num_key_value_heads", -2), ("num_attention_heads", 0)),
            *(("rms_norm_eps", 0.0), ("rms_norm_eps", float("nan")), ("intermediate_size", 0)),
            *(("max_position_embeddings", 0), ("rope_theta", 0), ("rope_theta", -1.0)),
            *(("rms_norm_eps", 1e308), ("rms_norm_eps", 1e-320), ("rms_norm_eps", 1.5)),
            *(("rope_theta", 1e308), ("rope_theta", 0.5), ("rope_theta", float("inf"))),
            *(("max_position_embeddings", 2**31), ("intermediate_size", 10**30)),
        )
    },
    "quantised": ({"quantization_config": {"bits": 4}}, "has quantization_config {'bits': 4},"),
    "no sizes": ({"hidden_size": None}, "has hidden_size None, which"),
    "a text": ({"num_hidden_layers": "2"}, "has num_hidden_layers 2, which"),
    "no number": ({"rope_theta": "1", "rope_parameters": None}, "has rope_theta 1, which"),
    "layers": ({"num_hidden_layers": 10**9}, "it says 1,000,000,000 layers, the"),
    "no layers": ({"num_hidden_layers": 0}, "a llama of 0 layers, 4 heads and width 16: all must"),
    "key heads": ({"num_key_value_heads": 1}, "has shape (16, 16, 8, 16, 8, 16), the model"),
    "no divisor": (
        {"num_key_value_heads": 3},
        "heads 3, which does not divide num_attention_heads 4",
    ),
    "hidden layer": ({"intermediate_size": 13}, "has shape (24, 16), the model needs (26, 16)"),
    "tied": ({"tie_word_embeddings": True}, "lm_head.weight differs from model.embed_tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_model_does_not_have_is_refused(case: str, folder: Path) -> None:
    settings, words = REFUSED[case]
    with refused(words):
        load_llama(changed(folder, **settings))


def test_a_part_of_a_packed_weight_is_needed_and_has_its_shape(folder: Path) -> None:
    file, name = folder / "model.safetensors", "model.layers.1.self_attn.k_proj.weight"
    tensors = load_file(file)
    save_file({k: v for k, v in tensors.items() if k != name}, file)
    with refused("only the model has layers.1.qkv_proj.weight (32, 16)"):
        load_llama(folder)
    v = tensors[name.replace("k_proj", "v_proj")]
    wrong = {name: v[:4], name.replace("k_proj", "v_proj"): np.concatenate([v, v[:4]])}
    save_file(tensors | wrong, file)
    with refused("layers.1.qkv_proj.weight has shape (16, 16, 4, 16, 12, 16), the model needs"):
        load_llama(folder)
    save_file({**tensors, "model.layers.0.self_attn.q_proj.bias": v[0]}, file)
    with refused("only the state has model.layers.0.self_attn.q_proj.bias"):
        load_llama(folder)


def test_a_tied_output_layer_is_saved_once(tmp_path: Path) -> None:
    made = nn.Llama(LlamaSizes(1, 2, 8, 11, 5, is_tied=True))
    assert made.lm_head.weight is made.embed_tokens.weight
    save_llama(made, tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    again = load_llama(tmp_path)
    assert again.sizes == made.sizes
    assert again.lm_head.weight is again.embed_tokens.weight
    np.testing.assert_array_equal(logits(again), logits(made))


WIDTHS = {64: 192, 128: 352, 768: 2048, 1024: 2816, 2048: 5632, 4096: 11008, 5120: 13824}
"""The widths of the hidden layer of an MLP; from 4,096 on published ones."""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_hidden_layer_has_the_width_of_the_rule(width: int) -> None:
    assert LlamaSizes(1, 1, width, 1, 1).checked().intermediate == WIDTHS[width]


def test_swiglu_takes_pairs_of_gate_and_value() -> None:
    x = np.random.default_rng(2).standard_normal((3, 5, 8))
    gate, up = x[..., ::2], x[..., 1::2]
    found = nn.SwiGLU()(nnmpi.tensor(x)).numpy()
    np.testing.assert_allclose(found, gate / (1 + np.exp(-gate)) * up, rtol=1e-14)
    assert directional_error(nn.SwiGLU(), x) < 1e-8


def test_repr_says_which_channels_are_pairs() -> None:
    made = nn.SelfAttention(4, rotary=50.0, num_kv_heads=2, interleaved=False)
    words = "4, is_causal=False, rotary=50.0, num_kv_heads=2"
    assert repr(made) == f"SelfAttention({words}, interleaved=False)"
    assert repr(nn.SelfAttention(4, rotary=50.0, num_kv_heads=2)) == f"SelfAttention({words})"


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_grouped_queries_are_repeated_keys_and_values(dropout: float) -> None:
    """Also with dropout: its mask depends on the head of the query."""
    N, T, K, G, D = 2, 500, 3, 2, 4  # long enough for tiles of some heads
    x = np.random.default_rng(3).standard_normal((N, T, K, G + 2, D))
    kv = np.repeat(x[:, :, :, None, G:], G, axis=3)
    packed = np.concatenate([x[:, :, :, :G, None], kv], axis=4)
    layers = [
        nn.SelfAttention(K * G, True, dropout, 50.0, heads, interleaved=False)
        for heads in (K, None)
    ]
    inputs = (nnmpi.tensor(a.reshape(N, T, -1), requires_grad=True) for a in (x, packed))
    (a, ours), (b, repeated) = ((i, layer(i)) for i, layer in zip(inputs, layers, strict=True))
    np.testing.assert_allclose(ours.numpy(), repeated.numpy(), rtol=1e-12, atol=1e-14)
    for y in (ours, repeated):
        (y * y).sum().backward()
    of_x = b.grad.reshape(packed.shape)
    wanted = np.concatenate([of_x[:, :, :, :, 0], of_x[:, :, :, :, 1:].sum(axis=3)], axis=3)
    np.testing.assert_allclose(a.grad.reshape(x.shape), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_and_the_library_read_each_other(tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    made = nn.Llama(LlamaSizes(2, 6, 24, 11, 8, 2, 20, 700.0, 1e-4, tied))
    save_llama(made, tmp_path / "ours")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    with torch.no_grad():
        wanted = theirs(torch.tensor(GIVEN["tokens"])).logits.numpy()
    np.testing.assert_allclose(logits(made), wanted, rtol=0, atol=1e-6)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="3KB")
    again = load_llama(tmp_path / "theirs")
    assert again.sizes == made.sizes
    for (name, a), (_, b) in zip(again.named_parameters(), made.named_parameters(), strict=True):
        np.testing.assert_array_equal(a.data, b.data.astype("float32"), err_msg=name)
