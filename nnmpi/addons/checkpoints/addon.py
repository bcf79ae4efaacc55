"""Saves a run to a folder while it continues, and resumes it."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.checkpoints", "nnmpi.checkpoint"),
    rows={
        "options": {"checkpoints": "nnmpi.addons.checkpoints.options:ADDED"},
        "loss_checks": {"keep_best": "nnmpi.addons.checkpoints.checkpointing:check_best"},
        "read_every": {"save_every": "nnmpi.addons.checkpoints.checkpointing:read_every"},
        "checkpoints": {"checkpoint_dir": "nnmpi.addons.checkpoints.checkpointing:Checkpoints"},
        "resumes": {"checkpoint_dir": "nnmpi.addons.checkpoints.resume:open_on_newest"},
        "methods": {
            "resume": "nnmpi.addons.checkpoints.resume:resuming",
            "save_checkpoint": "nnmpi.addons.checkpoints.checkpointing:save_checkpoint",
        },
        "event_texts": {
            "checkpoint": "nnmpi.addons.checkpoints.text:written",
            "complete": "nnmpi.addons.checkpoints.text:complete",
            "resumed": "nnmpi.addons.checkpoints.text:resumed",
            "suspended": "nnmpi.addons.checkpoints.text:suspended",
        },
        "result_lines": {"checkpoints": "nnmpi.addons.checkpoints.text:waited"},
    },
    commands={
        "checkpoint": (
            "nnmpi.addons.checkpoints.command",
            "list, verify and export checkpoints",
        )
    },
)
