"""PipeDream over MPI: the command, and how it ends."""

import json

from helpers.mpijob import run

COMMAND = ("-m", "nnmpi.train", "--json", "--data", "digits", "--model", "mlp:64-48-40-32-10")
PIPELINE = ("--pp", "3", "--schedule", "pipedream", "--cut", "3,5")


def test_it_trains() -> None:
    ran = run(3, *COMMAND, *PIPELINE, "--epochs", "8", "--batch-size", "32")
    assert ran.status == 0, ran.err
    *_, done = map(json.loads, ran.out.splitlines())
    assert (done["event"], done["steps"], done["weight_versions"]) == ("done", 8 * 45, 3)
    assert done["accuracy"] > 0.7


def test_a_loss_or_gradient_that_is_not_finite_ends_the_job_by_name() -> None:
    ran = run(3, *COMMAND, *PIPELINE, "--optimizer", "sgd", "--lr", "1e30")
    assert ran.status == 1
    assert ": stage " in ran.err
    assert "e+29, and pipedream cannot skip a step; try a smaller --lr or" in ran.err
