"""Text of a small gpt or llama in any layout, beside full passes of the whole model over each
window."""

from collections.abc import Callable

import numpy as np
from helpers.once import by_first, folder
from helpers.training.laws_gpt2 import llama, model, save
from helpers.training.pipelined import Options

import nnmpi
from nnmpi import Config
from nnmpi.addons.language.models.folders import LanguageModel, Sizes
from nnmpi.addons.language.run.decoder import loaded
from nnmpi.addons.language.run.generation import Sampling, generated
from nnmpi.arrays.backend import CPU
from nnmpi.comm import Comm

PROMPT = [3, 1, 4]
COUNT = 15  # more than the 8 positions: the window slides
LAYOUTS: dict[int, list[Options]] = {
    1: [{}],
    2: [{"tp": 2}, {"pp": 2}],
    3: [{"tp": 3}, {"pp": 3}],
    4: [{"pp": 2, "tp": 2}, {"tp": 4}],
}
SAMPLINGS = (
    Sampling(0.0),
    Sampling(1.5),
    Sampling(0.7, top_k=5, seed=1),
    Sampling(1.0, top_p=0.6, seed=2),
    Sampling(3.0, top_k=9, top_p=0.9, seed=3),
)


def by_full_passes(
    made: LanguageModel, prompt: list[int], choose: Callable[[np.ndarray, int], int]
) -> list[int]:
    """Each token by a pass through all that the window has, without anything kept."""
    made.to("float64").eval()
    positions, tokens, begin = made.sizes.positions, list(prompt), 0
    for _ in range(COUNT):
        if len(tokens) - begin > positions:
            begin = len(tokens) - positions // 2
        scores = made(nnmpi.tensor(np.array([tokens[begin:]]))).numpy()[0, :, -1]
        tokens.append(choose(scores, len(tokens)))
    return tokens[len(prompt) :]


def ours(
    comm: Comm,
    folder: str,
    prompt: list[int],
    how: Sampling,
    dtype: str = "float64",
    sizes: Sizes | None = None,
    **layout: int,
) -> list[int]:
    """What the command does, without the texts."""
    sizes = sizes or model().sizes
    config = Config(model=sizes.model, load=folder, dtype=dtype, **layout)
    decoder = loaded(config, sizes, comm, CPU)
    found = list(generated(decoder, prompt, COUNT, how, sizes.vocabulary))
    decoder.close()
    return found


def is_what_full_passes_give(comm: Comm) -> None:
    """On every rank, for each way to draw, and for prompts shorter and longer than the window."""
    _is_what_full_passes_give(comm, model)


def a_llama_writes_what_full_passes_give(comm: Comm) -> None:
    _is_what_full_passes_give(comm, llama)


def _is_what_full_passes_give(comm: Comm, make: Callable[[], LanguageModel]) -> None:
    cases = [*((PROMPT, how) for how in SAMPLINGS), (PROMPT * 5, SAMPLINGS[0])]

    def reference() -> list[list[int]]:
        return [by_full_passes(make(), prompt, how.choose) for prompt, how in cases]

    wanted = by_first(comm, reference)
    assert len({*map(tuple, wanted)}) == len(cases)
    with folder(comm) as name:
        if comm.rank == 0:
            save(make(), name)
        comm.barrier()
        for layout in LAYOUTS[comm.size]:
            for (prompt, how), tokens in zip(cases, wanted, strict=True):
                found = ours(comm, name, prompt, how, sizes=make().sizes, **layout)
                assert found == tokens, (layout, how)
