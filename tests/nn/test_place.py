"""Places: a part of a tensor is drawn, loaded and named as the same part of the whole one."""

import numpy as np
import pytest
from helpers.datafiles import refused

from nnmpi import nn
from nnmpi.nn.initial import normal
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place

PARTS = [((0, 6), (0, 4)), ((2, 5), (0, 4)), ((0, 6), (1, 3)), ((5, 6), (3, 4)), ((3, 3), (0, 4))]


class Layer(nn.Module):
    """A weight (6, 4) and a buffer (6,), of which this rank may have a part."""

    def __init__(self, part: tuple[tuple[int, int], ...]) -> None:
        self.weight = Parameter.lazy(Place("", (6, 4), part), normal(1.0), (1, 0))
        place = Place("", (6,), part[:1])
        self.register_buffer("scale", np.ones(place.local_shape), place=place)


def model(part: tuple[tuple[int, int], ...] = PARTS[0]) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 2), Layer(part))
    made.seed = 5
    return made


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_part_is_drawn_as_in_the_whole_tensor(part: tuple[tuple[int, int], ...]) -> None:
    cut, whole = model(part)[1].weight, model()[1].weight
    rows, columns = (slice(*edges) for edges in part)
    assert cut.shape == whole.data[rows, columns].shape
    np.testing.assert_array_equal(cut.data, whole.data[rows, columns])


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_part_is_loaded_from_the_whole_state(part: tuple[tuple[int, int], ...]) -> None:
    whole, cut = model(), model(part)
    whole[1].weight.data = np.random.default_rng(0).standard_normal((6, 4))
    whole[1].scale[...] = np.arange(6)
    cut.load_state_dict(whole.state_dict())
    rows, columns = (slice(*edges) for edges in part)
    np.testing.assert_array_equal(cut[1].weight.data, whole[1].weight.data[rows, columns])
    np.testing.assert_array_equal(cut[1].scale, np.arange(6)[rows])


def test_every_entry_of_the_state_dict_has_a_place() -> None:
    cut = model(PARTS[1])
    places = [place for place, _ in cut.tensors()]
    assert [place.path for place in places] == list(cut.state_dict())
    assert [place.shape for place in places] == [(2, 2), (2,), (6, 4), (6,)]
    assert [place.part for place in places][2:] == [((2, 5), (0, 4)), ((2, 5),)]


def test_a_tied_parameter_has_both_its_names() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert [place.path for place, _ in tied.tensors()] == list(tied.state_dict())


OUTSIDE = [((4, 9),), ((-1, 2),), ((3, 2),), (), ((0, 6), (0, 1))]


@pytest.mark.parametrize("part", OUTSIDE, ids=str)
def test_a_part_outside_of_the_tensor_is_refused(part: tuple[tuple[int, int], ...]) -> None:
    place = Place("", (6,), part)
    with refused("does not lie within a tensor of shape (6,)"):
        Parameter.lazy(place, normal(1.0))
    with refused("Module.scale: the part", "does not lie within a tensor of shape (6,)"):
        nn.Module().register_buffer("scale", np.ones(3), place=place)


def test_a_buffer_has_the_shape_of_its_part() -> None:
    with refused("scale: the buffer has shape (3,), but its place describes a part of shape (2,)"):
        nn.Module().register_buffer("scale", np.ones(3), place=Place("", (6,), ((1, 3),)))
