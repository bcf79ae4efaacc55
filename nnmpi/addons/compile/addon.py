"""Steps of loops of one's own that are recorded once and replayed."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        *("nnmpi.optim.compiled", "nnmpi.optim.recorded_step", "nnmpi.optim.call_form"),
        *("nnmpi.optim.step_code", "nnmpi.optim.step_replay", "nnmpi.optim.step_state"),
        "nnmpi.arrays.meta.number",
    ),
    rows={"names": {"compile": "nnmpi.optim.compiled:compile"}},
)
