"""Saves a run to a folder while it continues, and resumes it."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.checkpoints", "nnmpi.checkpoint"),
    rows={
        "options": {"checkpoints": "nnmpi.addons.checkpoints.options:ADDED"},
        "texts": {
            "checkpoint": "nnmpi.addons.checkpoints.text:WRITTEN",
            "complete": "nnmpi.addons.checkpoints.text:COMPLETE",
            "resumed": "nnmpi.addons.checkpoints.text:RESUMED",
            "suspended": "nnmpi.addons.checkpoints.text:SUSPENDED",
            "checkpoints": "nnmpi.addons.checkpoints.text:CHECKPOINTS",
        },
        "checks": {"keep_best": "nnmpi.addons.checkpoints.checkpointing:CHECKS"},
        "run_parts": {"checkpoint_dir": "nnmpi.addons.checkpoints.checkpointing:PARTS"},
        "names": {
            "Trainer.resume": "nnmpi.addons.checkpoints.resume:resuming",
            "Trainer.save_checkpoint": "nnmpi.addons.checkpoints.checkpointing:save_checkpoint",
        },
    },
    commands={
        "checkpoint": (
            "nnmpi.addons.checkpoints.command",
            "list, verify and export checkpoints",
        )
    },
)
