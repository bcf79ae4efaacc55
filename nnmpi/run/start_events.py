"""Events that describe the start of a run, and the environment in which it runs."""

import copy
import math
import platform
from collections.abc import Sequence

import numpy as np

from nnmpi.arrays import blas, native
from nnmpi.data.loader import Loader, padding
from nnmpi.io.checkpoints.differences import versions
from nnmpi.io.output.messages import EVENT_FIELDS, Event
from nnmpi.options.config import options
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.mesh import CUT_BY_AXIS
from nnmpi.run.resume_point import ResumePoint
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.setup import threads


def devices(a: Arrangement) -> Event:
    """Returns {"devices": ...}, the GPU number of each rank on its node; {} on the CPU."""
    return {"devices": list(a.cluster.devices)} if a.cluster.has_devices else {}


def start_event(session: Session, run: RunState) -> Event:
    """Returns the first event of a run, a dict that the log and the terminal get: model, data,
    numbers of samples and steps, options, and how the ranks divide the work."""
    setup, config, d = session.setup, session.config, session.setup.dataset
    a = session.arrangement
    left = run.total_steps - run.state.step + run.state.batch
    return {
        "event": "start",
        "model": config.model,
        "parameters": sum(math.prod(p.place.shape) for p in session.model.parameters()),
        "data": d.name,
        "train_samples": len(d.train.y),
        "test_samples": len(d.test.y),
        "note": d.note,
        **({} if setup.train.lengths is None else _padding(setup.train, setup.train.lengths)),
        "steps": run.total_steps,
        "batch_size": config.batch_size,
        "dtype": config.dtype,
        "device": setup.on.name,
        "seed": config.seed,
        "ranks": session.comm.size,
        "sync": config.sync,
        **{axis: n for axis in CUT_BY_AXIS if (n := getattr(config, axis)) > 1},
        **setup.user_functions,
        **session.strategy.describe(),
        **{
            k: v
            for fields in EVENT_FIELDS.given(config)
            for k, v in fields.start(a, len(setup.train)).items()
        },
        "epochs": -(-left // len(setup.train)),
        **devices(a),
        **({"loaded": run.loaded._asdict()} if run.loaded and config.load_partial else {}),
        **(run.plan.started if run.plan else {}),
        **({"warning": session.warning} if session.warning else {}),
    }


def resumed_event(session: Session, run: RunState) -> Event:
    """Returns the first event of a run that continues from a checkpoint: the fields of
    `start_event`, and the step, the path and notes of the checkpoint."""
    assert run.resumed is not None
    resumed = run.resumed
    facts = {"step": run.state.step, "checkpoint": resumed.path, "notes": resumed.lines}
    facts |= {"passed_over": resumed.passed_over} if resumed.passed_over else {}
    return {**start_event(session, run), "event": "resumed", **facts}


def complete_event(resumed: ResumePoint, digest: str) -> Event:
    """Returns the only event of a run that had no steps left when it was resumed; `digest` is the
    hash of its parameters."""
    steps = resumed.snapshot.state.step
    facts = {"checkpoint": resumed.path, "notes": resumed.passed_over}
    return {"event": "complete", "steps": steps, **facts, "parameters_sha256": digest}


def _padding(loader: Loader, lengths: np.ndarray) -> Event:
    """Returns the fields of the start event for --bucket-by-length: the share of padding in the
    batches of the first epoch, and what it would be in random order."""
    plain = copy.copy(loader)
    plain.lengths = None
    shares = [padding(lengths, order.batches(0)) for order in (loader, plain)]
    return dict(zip(("padding", "padding_unsorted"), shares, strict=True))


def environment(session: Session) -> Event:
    """Returns everything a run depends on besides data and model: options, versions, the BLAS of
    rank 0, and hosts; and advice on how to make it right or faster. Every rank calls it."""
    comm, a = session.comm, session.arrangement
    useful, number = threads.agreed_threads(a, comm), blas.cores(len(comm.node()))
    of_threads = threads.advice(a, useful)
    halves = native.cost_of_halves(session.config.dtype) if session.config.device == "cpu" else ""
    facts = {
        "kernels": blas.core(),
        "threads": blas.threads(),
        "why": threads.reason(a, useful, number),
    }
    return {
        "options": {o.name: getattr(session.config, o.name) for o in options()},
        "versions": versions(),
        "blas": facts,
        "native": native.INSTRUCTIONS,
        "hosts": hosts(gather_objects(comm, platform.node())),
        "advice": [*filter(None, (session.setup.guess, native.missing(), halves, of_threads))],
    }


def hosts(names: Sequence[str]) -> dict[str, list[int]]:
    """Returns the ranks on each host, by the host's name; `names` has that of each rank's host."""
    ranks_of: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks_of.setdefault(name, []).append(rank)
    return ranks_of
