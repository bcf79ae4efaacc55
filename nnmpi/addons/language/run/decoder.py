"""Decoder: generates text with a model that is divided among ranks, one token at a time.

stage 0 (heads divided among ranks)  ── x ──►  stage 1  ── scores ──► a token ──► all ranks
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np

from nnmpi.addons.language.models.folders import LanguageModel, Sizes, format_of
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.addons.transformer.sequences import KVCache, decoding
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Backend
from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.functional import tensor
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Split
from nnmpi.options.amounts import plural
from nnmpi.options.config import Config
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none, receive_object, send_object
from nnmpi.parallel.arrangement.cluster import discover
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.tensor.parallelize import rebuild
from nnmpi.run.setup import objectives
from nnmpi.run.setup.cutting import uncut
from nnmpi.run.setup.setup import build_model, initialise

TOKEN = 1  # the tag of messages between stages
NO_LIMIT = sys.maxsize


class Decoder:
    """Generates text with a model that is divided among ranks, one token at a time. Every rank
    makes the decoder, and makes the same calls.

    For a gpt it keeps keys and values, so that only the new token goes through the model; other
    models get their whole window again. When all positions are full, it starts again with the last
    half of them.

    positions      the most tokens that the model takes at a time
    gather_scores  makes the scores of all tokens from the part that a rank of the last stage has
    """

    def __init__(
        self,
        part: ModelPart,
        layout: Layout,
        positions: int,
        on: Backend,
        gather_scores: Callable[[Tensor], np.ndarray] = Tensor.numpy,
    ) -> None:
        if layout.axis["pp"].size == 1:  # this rank has all stages: run them as one
            part = part._replace(stages={0: part.model}, boundaries=(), place=(0,))
        self._part, self._layout, self._on, self._gather_scores = part, layout, on, gather_scores
        self._positions, self._keeps = positions, isinstance(part.model, LanguageModel)
        self.start()

    def start(self, begin: int = 0) -> None:
        """Clears the cache; the next call of `next` begins at position `begin`."""
        self._begin = begin
        self._past = KVCache(self._positions) if self._keeps else None

    def next(self, tokens: Sequence[int], choose: Callable[[np.ndarray], int]) -> int:
        """Returns the token that follows the text `tokens`, on every rank: choose(scores of all
        tokens). Raises ValueError, on all ranks, if the scores are NaN or infinite."""
        if len(tokens) - self._begin > self._positions:
            self.start(len(tokens) - max(self._positions // 2, 1))
        known = self._begin + (self._past.length if self._past else 0)
        scores = self._scores(np.array(tokens[known:], np.int64)[None])
        chosen = np.array([-1])
        if scores is not None and np.isfinite(scores.max()):
            chosen[0] = choose(scores)
        # -1 says that the scores are not finite: only the last stage has them, and all must know
        self._layout.all.broadcast(chosen, self._layout.mesh.group(0, "pp")[self._part.place[-1]])
        if chosen[0] < 0:
            self._layout.all.agree(
                ValueError(
                    f"the scores after token {len(tokens):,} of the text are NaN or infinite: the "
                    "weights of the model are not finite, or too large for its type; give another "
                    "model, or try float64"
                )
            )
        return int(chosen[0])

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def _scores(self, new: np.ndarray) -> np.ndarray | None:
        """Passes tokens through stages; returns the next one's scores on the last."""
        place, scores, pp = self._part.place, None, self._layout.axis["pp"]
        with no_grad() if self._past is None else decoding(self._past, new.shape[1]):
            given = [new]
            for number, stage in sorted(self._part.stages.items()):
                if number and place[number - 1] != pp.rank:
                    given = receive_object(pp, place[number - 1], TOKEN)
                y = stage(*(tensor(array, on=self._on) for array in given))
                if number == len(place) - 1:
                    scores = self._gather_scores(y[:, :, -1:])[0, :, 0]
                    break
                outputs = y if isinstance(y, tuple) else (y,)
                given = [backend.to_host(output.array) for output in outputs]
                if place[number + 1] != pp.rank:
                    send_object(pp, given, place[number + 1], TOKEN)
        return scores

    def close(self) -> None:
        """Frees the communicators that the decoder uses; every rank calls it."""
        self._layout.free()


# ---- of a model in a file


def loaded(config: Config, sizes: Sizes, comm: Comm, on: Backend) -> Decoder:
    """Returns a Decoder with the weights in `config.load`; every rank calls it."""
    if comm.size != config.tp * config.pp:
        comm.agree(
            ValueError(
                f"{plural(comm.size, 'rank')} cannot hold one model with --tp {config.tp} --pp "
                f"{config.pp}: start it with mpirun -n {config.tp * config.pp}, or use another "
                "--tp or --pp"
            )
        )
    layout = Layout.of(config, comm)
    part, gathered = _load_part(config, sizes, layout, on)
    for stage in part.stages.values():
        stage.eval()
    return Decoder(part, layout, sizes.positions, on, gathered)


def _load_part(
    config: Config, sizes: Sizes, layout: Layout, on: Backend
) -> tuple[ModelPart, Callable[[Tensor], np.ndarray]]:
    """Returns this rank's part of a saved model, and what makes scores whole."""
    comm, zeros = layout.all, np.zeros((2, 1), np.int64)
    split = Split(zeros, zeros)
    windows = Dataset("prompt", split, split, sizes.vocabulary, "")
    model = all_or_none(comm, lambda: build_model(config, format_of(sizes).model, windows))
    loss, cluster = objectives.criterion(None), discover(comm, on)
    a = all_or_none(comm, lambda: on_paper(uncut(config, model, windows, loss), cluster))
    if config.tp > 1:
        rebuild(model, a.graph, a.sharding, layout.axis["tp"])
    part = strategies.own_stages(model, a, comm.rank, {})
    all_or_none(comm, lambda: initialise(config, part, on))
    return part, objectives.objective(loss, {}, a.sharding, layout.axis).whole
