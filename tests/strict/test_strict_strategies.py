"""On a device: strategies that the table of conformance lacks, files, and other arrangements."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.device import needs_device
from helpers.training.on_device import on_device
from helpers.training.pipelined import (
    BOUND,
    MLP,
    contents,
    digits,
    distance,
    equals,
    reference,
    run,
)

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport

pytestmark = needs_device


@pytest.mark.parametrize("vertical", [False, True])
def test_pipedream_is_that_of_the_cpu(vertical: bool) -> None:
    options = {**MLP, "clip_norm": None, "pp": 2, "cut": "3"}
    options |= {"schedule": "pipedream", "vertical_sync": vertical}
    wanted = threads.run(2, lambda comm: run(comm, **options))[0]
    with on_device():
        found = threads.run(2, lambda comm: run(comm, **options))[0]
    here, there = (
        [stage["activation_bytes"] for stage in ran.events[0]["stages"]] for ran in (wanted, found)
    )
    assert there == pytest.approx(here, rel=0.25)  # CuPy rounds sizes up to 512 bytes
    assert found.losses == pytest.approx(wanted.losses, rel=BOUND)
    assert distance(found.state, wanted.state) < BOUND


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options", [{"sync": "asp"}, {"sync": "ssp", "staleness": 1, "servers": 2}], ids=str
)
def test_workers_at_their_own_pace_end_with_the_model_of_the_servers(options: Any) -> None:
    """BatchNorm's buffers are averaged too."""

    def one(comm: Comm) -> dict[str, np.ndarray]:
        config = Config(model="digits-cnn", batch_size=24, epochs=2, **options)
        with Trainer(config, None, digits(), comm) as trainer:
            assert np.isfinite(trainer.fit(NullReport())["test_loss"])
            return trainer.model.state_dict()

    with on_device():
        first, *others = threads.run(4, one)
    for other in others:
        for name, array in first.items():
            np.testing.assert_array_equal(other[name], array, err_msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{}, {"zero": 3}, {"tp": 2}, {"dtype": "float32"}], ids=str)
def test_verify_finds_a_layout_equal_to_one_rank(options: dict[str, Any]) -> None:
    with on_device():
        threads.run(2, lambda comm: run(comm, verify=True, **{**MLP, "steps": 3, **options}))


def test_a_helper_thread_sums_buckets_in_the_background() -> None:
    options = {**MLP, "bucket_mb": 0.001}

    def compared(comm: Comm) -> None:
        equals(comm, run(comm, progress="thread", **options), reference(comm, **MLP))

    with on_device():
        threads.run(2, compared)


def test_a_run_is_rearranged_and_saved_and_goes_on_elsewhere(tmp_path: Path) -> None:
    """From ZeRO 3 to a pipeline to tensor parallelism, as one rank would."""
    path = str(tmp_path / "m.safetensors")

    class Moves:
        def on_step(self, trainer: Trainer, event: dict[str, Any]) -> None:
            if event["step"] == 3:
                trainer.rearrange(zero=0, pp=2, cut="3")
            if event["step"] == 6:
                trainer.rearrange(pp=1, cut=None, tp=2)

    def moved(comm: Comm) -> None:
        config = Config(dtype="float64", epochs=2, batch_size=24, zero=3, save=path, **MLP)
        trainer = Trainer(config, None, digits(), comm, callbacks=[Moves()])
        trainer.fit(NullReport())
        assert trainer.config.tp == 2
        assert distance(contents(trainer), reference(comm, **MLP).state) < BOUND

    with on_device():
        threads.run(2, moved)
    saved = nnmpi.load(path)
    on_cpu = Trainer(Config(dtype="float64", load=path, **MLP), None, digits(), comm_self())
    for name, array in on_cpu.model.state_dict().items():
        np.testing.assert_array_equal(array, saved[name], err_msg=name)
