"""Decoder: a gpt on ranks that hold it together, which tells the scores of the next token.

stage 0 (some heads a rank)  ── x ──►  stage 1  ── scores, whole ──► a token ──► all ranks
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.backend import Backend
from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset, Split
from nnmpi.nn import GPT
from nnmpi.nn.decoding import Past, decoding
from nnmpi.nn.gpt2 import Sizes
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.division import estimated_division
from nnmpi.parallel.discovery import discover
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.tensor.parallelize import rebuild
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.sharding import UNSHARDED
from nnmpi.run import objectives
from nnmpi.run.setup import build_model, initialise
from nnmpi.sim.show import plural

AXES = 8  # of a tensor that goes to the next stage, at most
TOKEN = 1  # the tag of messages between stages


def check_ranks(config: Config, comm: Comm) -> None:
    """Raises ValueError unless the ranks are those of one model."""
    if comm.size != config.tp * config.pp:
        raise ValueError(
            f"{plural(comm.size, 'rank')} for --tp {config.tp} --pp {config.pp}: one model "
            f"generates; start it with mpirun -n {config.tp * config.pp}, or use another --tp or "
            "--pp"
        )


class Decoder:
    """A gpt of these sizes from the file of `config.load`; every rank makes it, and calls it alike.

    When all positions are full, it goes on behind the last half of them.
    """

    def __init__(self, config: Config, sizes: Sizes, comm: Comm, on: Backend) -> None:
        self.sizes, self._on, self._comm = sizes, on, comm
        all_or_none(comm, lambda: check_ranks(config, comm))
        self._layout = Layout.of(config, comm)
        self._part = self._own_part(config)
        for stage in self._part.stages.values():
            stage.eval()
        self.start()

    def _own_part(self, config: Config) -> ModelPart:
        """The weights that this rank has, of a model that is arranged as for training."""
        comm, layout = self._comm, self._layout
        zeros = np.zeros((2, 1), np.int64)
        split = Split(zeros, zeros)
        windows = Dataset("prompt", split, split, self.sizes.vocabulary, "")
        build = partial(GPT, *self.sizes)
        model = all_or_none(comm, lambda: build_model(config, build, windows))
        loss = objectives.criterion(None)
        graph = all_or_none(comm, lambda: objectives.model_graph(config, model, windows, loss))
        sharding = UNSHARDED
        if config.tp > 1:
            sharding = all_or_none(comm, lambda: shard(graph, config.tp, True))
            rebuild(model, graph, sharding, layout.axis["tp"])
        cluster = discover(comm, self._on)
        division = all_or_none(comm, lambda: estimated_division(graph, config.pp, config.pp))
        arrangement = arrange(config, cluster, graph, sharding, division, {"allreduce": "ring"})
        part = plan.own_stages(model, arrangement, comm.rank, {})
        all_or_none(comm, lambda: initialise(config, part, self._on))
        return part

    def start(self, begin: int = 0) -> None:
        """Forgets the text, or what of it is before `begin`."""
        self._begin, self._past = begin, Past(self.sizes.positions)

    def next(self, tokens: Sequence[int], choose: Callable[[np.ndarray], int]) -> int:
        """The token that is chosen by the scores (vocabulary,) behind these, on every rank.

        Only those that were not there in the last call go through the model.
        """
        if len(tokens) - self._begin > self.sizes.positions:
            self.start(len(tokens) - max(self.sizes.positions // 2, 1))
        new = np.array(tokens[self._begin + self._past.length :], np.int64)[None]
        scores = self._scores(new)
        chosen = np.array([-1 if scores is None else choose(scores)])
        self._comm.broadcast(chosen, self._layout.mesh.group(0, "pp")[-1])
        return int(chosen[0])

    def _scores(self, new: np.ndarray) -> np.ndarray | None:
        """The scores behind the last one, on the ranks of the last stage."""
        pp = self._layout.axis["pp"]
        (stage,) = self._part.stages.values()
        given = (tensor(new, on=self._on),) if not pp.rank else tuple(self._received(pp))
        with decoding(self._past, new.shape[1]):
            y = stage(*given)
        if pp.rank == pp.size - 1:
            return backend.to_host(y.data[0, :, -1])
        for one in y if isinstance(y, tuple) else (y,):
            shape = np.zeros(AXES, np.int64)
            shape[: one.ndim] = one.shape
            pp.isend(shape, pp.rank + 1, TOKEN).wait()
            pp.isend(np.ascontiguousarray(backend.to_host(one.data)), pp.rank + 1, TOKEN).wait()
        return None

    def _received(self, pp: Comm) -> Iterator[Tensor]:
        """The tensors of the stage before, of this many positions."""
        for edge in self._part.boundaries[pp.rank - 1]:
            shape = np.zeros(AXES, np.int64)
            pp.irecv(shape, pp.rank - 1, TOKEN).wait()
            array = np.empty(shape[: len(edge.axes)], edge.dtype)
            pp.irecv(array, pp.rank - 1, TOKEN).wait()
            yield tensor(array, on=self._on)

    def close(self) -> None:
        """Gives the communicators back; every rank calls it."""
        self._layout.free()
