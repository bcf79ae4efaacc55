"""Layers of which some channels are here: values, masks and memory are those of the whole layer."""

import numpy as np
import pytest
from helpers.in_pass import in_pass

from nnmpi import nn
from nnmpi.autograd import Tensor
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import ChannelRange
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place


@pytest.mark.parametrize(
    ("shape", "axis", "repeat"),
    [((6,), 0, 1), ((12,), -1, 2), ((6, 2, 3), 0, 1), ((4, 6), -1, 1), ((4, 12), -1, 2)],
    ids=str,
)
def test_dropout_of_some_channels_has_the_mask_of_all(
    shape: tuple[int, ...], axis: int, repeat: int
) -> None:
    x = np.ones((5, *shape), np.float32)
    with in_pass(3, [4, 9, 1, 0, 7]):
        whole = nn.Dropout(0.5)(Tensor(x)).data
        for start, stop in ((0, 1), (1, 4), (4, 6)):
            own = [slice(None)] * x.ndim
            own[axis + 1 if axis >= 0 else axis] = slice(start * repeat, stop * repeat)
            layer = nn.Dropout(0.5)
            layer.part, layer.axis = ChannelRange(start, stop, 6), axis
            part = layer(Tensor(x[tuple(own)])).data
            np.testing.assert_array_equal(part, whole[tuple(own)])
    assert 0 < (whole == 0).mean() < 1


def test_batch_norm_of_some_channels() -> None:
    x = np.random.default_rng(0).standard_normal((8, 5, 3, 3)).astype(np.float32)
    whole, part, place = nn.BatchNorm2d(5), nn.BatchNorm2d(3), Place("", (5,), ((1, 4),))
    part.weight = Parameter.lazy(place, initial.constant(1.0))
    part.bias = Parameter.lazy(place, initial.constant(0.0))
    part.register_buffer("running_mean", np.zeros(3, np.float32), place=place)
    part.register_buffer("running_var", np.ones(3, np.float32), place=place)
    found, wanted = part(Tensor(x[:, 1:4])).data, whole(Tensor(x)).data[:, 1:4]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(part.running_var, whole.running_var[1:4], rtol=1e-6)
    places = {place.path: (place.shape, place.part) for place, _ in part.tensors()}
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert places[name] == ((5,), ((1, 4),))
    with pytest.raises(ValueError, match=r"it must be \(N, C, H, W\) with C = 3"):
        part(Tensor(x))
