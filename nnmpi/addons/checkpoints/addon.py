"""Saves a run to a folder while it continues, and resumes it."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.addons.checkpoints",
        *(
            f"nnmpi.io.checkpoints.{name}"
            for name in ("forms", "keep", "manifest", "rank_file", "read", "schema", "text")
        ),
        *("nnmpi.io.checkpoints.write", "nnmpi.run.checkpointing", "nnmpi.run.resume"),
    ),
    rows={
        "options": {"checkpoints": "nnmpi.addons.checkpoints.options:PART"},
        "loss_checks": {"keep_best": "nnmpi.run.checkpointing:check_best"},
        "read_every": {"save_every": "nnmpi.run.checkpointing:read_every"},
        "checkpoints": {"checkpoint_dir": "nnmpi.run.checkpointing:Checkpoints"},
        "resumes": {"checkpoint_dir": "nnmpi.run.resume:open_on_newest"},
        "methods": {
            "resume": "nnmpi.run.resume:resuming",
            "save_checkpoint": "nnmpi.run.checkpointing:save_checkpoint",
        },
        "event_texts": {
            "checkpoint": "nnmpi.io.checkpoints.text:written",
            "complete": "nnmpi.io.checkpoints.text:complete",
            "resumed": "nnmpi.io.checkpoints.text:resumed",
            "suspended": "nnmpi.io.checkpoints.text:suspended",
        },
        "result_lines": {"checkpoints": "nnmpi.io.checkpoints.text:waited"},
    },
)
