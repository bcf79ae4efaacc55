"""Values in 16 bits and their float32 masters: functions of a Comm."""

from typing import Any

import numpy as np
from helpers.once import folder
from helpers.training.pipelined import Options, contents, digits

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.arrays.dtypes import HALVES
from nnmpi.comm import Comm
from nnmpi.io.output import Event, NullReport
from nnmpi.nn.store import values_of

LAYOUTS: dict[str, Options] = {
    "replicas": {"allreduce": "ring"},
    "node": {"allreduce": "shared"},
    **{f"zero {zero}": {"zero": zero, "bucket_mb": 0.005} for zero in (1, 2, 3)},
}


def trainer_of(comm: Comm, layout: str, dtype: str = "float16", **options: Any) -> Trainer:
    plain: Options = {"dtype": dtype, "batch_size": 20, "epochs": 1, "model": "mlp:64-16-10"}
    own = options.pop("callbacks", ())
    config = Config(**plain | LAYOUTS[layout] | options)
    return Trainer(config, data=digits(), comm=comm, callbacks=own)


def values_are_the_rounding_of_masters(comm: Comm, name: str) -> None:
    for dtype in HALVES:
        _values_are_the_rounding_of_masters(comm, name, dtype)


def _values_are_the_rounding_of_masters(comm: Comm, layout: str, dtype: str) -> None:
    """Before the first step and after the last one; masters have more digits."""
    with trainer_of(comm, layout, dtype) as trainer:
        for _ in range(2):
            masters = contents(trainer)
            for path, p in trainer.model.named_parameters():
                values = values_of(p)
                assert values.dtype.name == dtype
                np.testing.assert_array_equal(masters[path].astype(dtype), values, err_msg=path)
                is_exact = masters[path] == values.astype("float32")
                assert masters[path].dtype == "float32"
                assert is_exact.mean() < 0.5, path
            if not trainer.step:
                trainer.fit(NullReport())


class Writes:
    """After the third step the first weight becomes 0.5, written in place or assigned."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.masters: dict[str, np.ndarray] = {}

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] != 3:
            return
        with trainer.gathered_parameters():
            p = next(iter(trainer.model.parameters()))
            if self.in_place:
                p.array[...] = 0.5
            else:
                p.array = np.full(p.shape, 0.5, "float16")
        trainer.comm.barrier()
        self.masters = contents(trainer)


def what_is_written_wins(comm: Comm, name: str) -> None:
    """Over masters, which have moved on from there; others keep all of their digits."""
    rate = 1e-3
    for in_place in (True, False):
        writes = Writes(in_place)
        options: Options = {"optimizer": "adam", "lr": rate, "lr_schedule": "constant"}
        with trainer_of(comm, name, callbacks=[writes], **options) as trainer:
            trainer.fit(NullReport())
            after, (first, *others) = contents(trainer), writes.masters
            assert (writes.masters[first] == 0.5).all()
            steps = trainer.step - 3
        moved = np.abs(after[first] - 0.5).max()
        assert 0 < moved <= 3 * rate * steps
        for path in others:
            kept = writes.masters[path]
            assert (kept != kept.astype("float16").astype("float32")).mean() > 0.5, path


def a_file_has_the_masters(comm: Comm, name: str) -> None:
    """All of their digits, which a run that loads it has too."""
    with folder(comm) as within:
        path = f"{within}/m.safetensors"
        with trainer_of(comm, name) as trainer:
            trainer.fit(NullReport())
            masters = contents(trainer)
            trainer.save(path)
        comm.barrier()
        saved = nnmpi.load(path)
        with trainer_of(comm, name, load=path) as trainer:
            loaded = contents(trainer)
    for key, array in masters.items():
        np.testing.assert_array_equal(saved[key], array, strict=True)
        np.testing.assert_array_equal(loaded[key], array, strict=True)
