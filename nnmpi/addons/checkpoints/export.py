"""Exports a checkpoint as one file of the whole model, assembled tensor by tensor.

    rank-00000   w 0..5   b 0..1  ─┐
    rank-00001   w 5..9           ─┴─►  w, then b ─►  model.safetensors

No model is built: the manifest has the names, shapes and types of the tensors.
"""

from collections.abc import Sequence
from pathlib import Path

from nnmpi.addons.checkpoints.forms import RunFacts
from nnmpi.addons.checkpoints.read import StoredCheckpoint
from nnmpi.addons.checkpoints.schema import DamagedError
from nnmpi.arrays.dtypes import named
from nnmpi.comm import comm_self
from nnmpi.io.files import saving
from nnmpi.nn.place import StateArray
from nnmpi.optim.replica_state import sources_of
from nnmpi.options.quoting import shown
from nnmpi.parallel.model.whole import WholeArrays, state_of_one


def export(stored: StoredCheckpoint, out: str, optimizer: bool) -> list[str]:
    """Writes the model of a checkpoint to `out`, a file or a folder in the format of GPT-2, and
    with `optimizer` the optimizer's state beside it. Returns the file names."""
    about, arrays = stored.about(), stored.snapshot().arrays
    known = {x.name: x for x in arrays}
    for first in about.tensors.values():
        if first not in known:
            raise DamagedError(f"no file has values of {shown(first)}")
    name = stored.manifest.snapshot.config.model
    try:
        model = of_model(about, arrays)
    except ValueError as error:
        raise DamagedError(f"its files do not have all values of a tensor: {error}") from error
    files = [saving.write_whole(out, model, about.metadata, about.sizes, name)]
    if optimizer:
        files.append(str(Path(files[0]).with_suffix(".optimizer.safetensors")))
        state = of_optimizer(about, arrays)
        rows = [saving.HeaderRow(x.name, named(x.dtype), x.place.shape) for x in state.arrays]
        saving.write(files[1], rows, (values for _, values in state), {}, {})
    return files


def of_model(about: RunFacts, arrays: Sequence[StateArray]) -> WholeArrays:
    """Returns the parameters and buffers of a checkpoint as --save writes them: whole tensors,
    16-bit parameters as float32. `arrays`, which may be parts, are the stored ones."""
    known, first = {x.name: x for x in arrays}, about.tensors
    return WholeArrays(
        [known[first[name]].named(name).as_whole() for name in first],
        [(x.file, x) for x in arrays],
        comm_self(),
        lambda: arrays,
        lambda name: (first[name],),
        {*first.values()} - {*about.buffers},
    )


def of_optimizer(about: RunFacts, arrays: Sequence[StateArray]) -> WholeArrays:
    """Returns the optimizer state in a checkpoint as whole arrays, by the names of
    `Trainer.optimizer_state_dict`. `arrays`, which may be parts, are the stored ones."""
    values = {*about.tensors.values()}
    state = [x for x in arrays if x.name not in values]
    sources, have = sources_of(state, 1, 1), [(x.file, x) for x in state]
    return WholeArrays(
        state_of_one(about.tensors, state), have, comm_self(), lambda: state, sources
    )
