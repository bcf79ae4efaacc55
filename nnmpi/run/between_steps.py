"""BetweenSteps: what users do with a model between two steps, and after the last one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from nnmpi.comm import Comm
from nnmpi.data import Loader, Split, samples_like
from nnmpi.data.inputs import arrays
from nnmpi.metrics import Sums
from nnmpi.nn import GPT
from nnmpi.nn.gpt2 import sizes_of
from nnmpi.parallel import refusals
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.entries import Entries, load_state
from nnmpi.parallel.step.outputs import Measured, Outputs, Scores
from nnmpi.parallel.stores import reading, stores_of
from nnmpi.run import consistency, models
from nnmpi.run.decoder import Decoder
from nnmpi.run.files import saving
from nnmpi.run.generation import checked_prompt, generated, texts
from nnmpi.run.report import Event
from nnmpi.run.resumable import Resumable
from nnmpi.run.samples import TOKENS, agreed_sampler
from nnmpi.run.sampling import Sampling
from nnmpi.run.setup import Setup


class BetweenSteps(Resumable):
    """A session whose model is evaluated, saved, read and written."""

    def __init__(self, setup: Setup, comm: Comm) -> None:
        self.dataset, self.standardiser = setup.dataset, setup.standardiser
        self.train, self.test = setup.train, setup.test
        self._sampler = agreed_sampler(comm, setup.config, setup.dataset)
        super().__init__(setup, comm)

    @property
    def last_lr(self) -> float:
        """The learning rate of the first group, as the schedule has it in the last step."""
        rate = float(self.optimizer.param_groups[0]["lr"])
        return rate * self.lr_factor(max(self.step - 1, 0))

    @property
    def scale(self) -> dict[str, float]:
        """What events say of the loss scale, in 16 bits."""
        scaler = self.task.scaler
        return {} if scaler is None else {"loss_scale": scaler.now.scale}

    @property
    def step(self) -> int:
        """The number of steps made so far."""
        return self.state.step

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and saves."""
        return self.comm.rank == 0

    # ---- outputs of the model

    def evaluate(self) -> Sums:
        """Loss and metrics on the test split; every rank calls it, after the same step or epoch.

        The model is left in evaluation mode; within an epoch it trains on, and is not.
        """
        self._meet("evaluate")
        return self._tested()

    def _tested(self) -> Sums:
        measured = Measured(self.task.objective)
        self._evaluate(self.test, measured)
        return measured.sums

    def predict(self, x: Any) -> Any:
        """The scores of any number of samples, whole and on every rank; every rank calls it.

        x is an array, or a tuple or dict of arrays, like those of training, and is standardised as
        they were; of an iterator of such batches, scores come as an iterator.
        """
        if isinstance(x, Iterator):
            return map(self.predict, x)
        self._meet("predict")
        given = all_or_none(self.comm, lambda: samples_like(x, self.dataset.train))
        consistency.check_samples(self.comm, given)
        graph, n, c = self.arrangement.graph, len(arrays(given)[0]), self.config
        edge = graph.edges[graph.outputs[0]]
        scores = Scores(self.task.objective, n, edge.shape(n), edge.dtype)
        if n:
            how: Any = {"standardiser": self.standardiser, "dtype": c.dtype, "shuffle": False}
            self._evaluate(Loader(Split(given, np.zeros(n)), c.batch_size, **how), scores)
        return scores.array

    def generate(
        self,
        tokens: Iterable[int],
        max_new_tokens: int = 100,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> np.ndarray:
        """The tokens that the model writes behind these, as `nnmpi.generate`, on every rank; every
        rank calls it, after the same step or epoch. It changes nothing in training."""
        self._meet("generate")

        def checked() -> tuple[list[int], Sampling]:
            if why := refusals.why_not("sample_every", self.config, self.comm.size):
                raise ValueError(f"no text is generated with {why}")
            models.check_stages(self.model, self.config.pp)
            how = Sampling(temperature, top_k, top_p, seed).checked()
            return checked_prompt(tokens, max_new_tokens, self.model), how

        prompt, how = all_or_none(self.comm, checked)
        what = "the tokens and options of generate"
        given = (prompt, max_new_tokens, how)
        consistency.check_same(self.comm, [(what, given, "give all ranks the same")])
        return np.array([*self._generated(prompt, max_new_tokens, how)])

    def _sample(self) -> Event | None:
        """A piece of text that the model writes now, where --sample-every asks for one."""
        one = self._sampler
        if one is None or self.step % one.every:
            return None
        self._meet("generate")
        tokens = self._generated(one.prompt, TOKENS, one.how, one.tokenizer.size)
        text = one.beginning + "".join(texts(tokens, one.tokenizer))
        return {"event": "sample", "step": self.step, "text": text}

    def _generated(
        self, prompt: Sequence[int], count: int, how: Sampling, size: int | None = None
    ) -> Iterator[int]:
        """So many tokens, of the first `size` ones; every rank iterates to the end."""
        window = arrays(self.dataset.train.x)[0].shape[1]
        positions = sizes_of(self.model).positions if isinstance(self.model, GPT) else window
        whole, layout = self.task.objective.whole, self.strategy.layout
        decoder = Decoder(self.part, layout, positions, self.task.on, whole)
        with self._evaluating(), reading(self.part.parameters):
            yield from generated(decoder, prompt, count, how, size)

    def _evaluate(self, loader: Loader, outputs: Outputs) -> None:
        """Gives `outputs` those of all samples, in evaluation mode."""
        with self._evaluating():
            self.strategy.evaluate(loader, self.step, outputs)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Within it the model is in evaluation mode, and what it does is no part of a step."""
        self.model.eval()
        with self._tracer.recorder.evaluation():
            yield
        self.model.train(self._in_epoch)

    # ---- the model

    def save(self, path: str | None) -> None:
        """Write the model; every rank calls it, after the same step or epoch, the first writes.

        Where the first rank has all of the model, it may call it alone.
        """
        self._check_together("save", self._closed and self.comm.size > 1)
        if not self._first_has_all:
            self.comm.meet("save")
            self._save(path)
        elif self.is_first:
            self._write(path)

    def _save(self, path: str | None) -> None:
        all_or_none(self.comm, lambda: self._write(path))

    @property
    def _first_has_all(self) -> bool:
        """Whether the first rank can write the model now without a message."""
        whole = self.arrangement.store.is_whole or self._rests
        return whole and self.strategy.entries.parts.writer_has_all

    def _write(self, path: str | None) -> None:
        about = {
            "model": models.name_of(self.model, self.config),
            "data": self.dataset.name,
            **models.language_of(self.dataset),
            **self.standardiser.metadata(),
        }
        where = path if self.is_first else None
        saving.write_entries(where, self.strategy.entries, about, self.model)

    @contextmanager
    def gathered_parameters(self) -> Iterator[None]:
        """Within it every rank can read, write and run what it has of the model.

        With ZeRO ranks along dp have parts of the parameters between steps. Here each gets all
        of them, in memory of its own, as from PyTorch's `FSDP.summon_full_params`. So every rank
        enters it, and leaves it before the next step; what is written, each rank writes alike.
        Without ZeRO the parameters are there at all times, and it does nothing.
        """
        with ExitStack() as stack:
            for store in stores_of(self.part.parameters):
                stack.enter_context(store.gathered())
            yield

    def optimizer_state_dict(self) -> dict[str, np.ndarray]:
        """`Optimizer.state_dict` of all ranks, whole, on the first rank; every rank calls it."""
        self._check_together("optimizer_state_dict")
        self.comm.meet("optimizer_state_dict")
        entries = Entries.of_optimizer(self.optimizer, self.model, self.comm)
        return {entry.place.path: entry.value for entry in entries}

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies what this rank has from a whole state; every rank calls it, with all of it."""
        load_state(self.optimizer, self.model, state, self.comm)
