"""Continues a run when ranks are lost."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.options.parts.recovery",
        *("nnmpi.parallel.recovery", "nnmpi.run.recovery", "nnmpi.comm.ulfm"),
    ),
    uses=("checkpoints",),
    rows={
        "options": {"recovery": "nnmpi.options.parts.recovery:PART"},
        "outliving": {"ulfm": "nnmpi.comm.ulfm.start"},
        "job_checks": {"backup": "nnmpi.parallel.recovery.backup:check"},
        "event_texts": {"recovered": "nnmpi.run.recovery.text:recovered"},
        "supervisors": {"elastic": "nnmpi.run.recovery.recovery:Recovery"},
        "restarts": {"elastic": "nnmpi.run.recovery.layouts:no_checkpoint"},
        "layouts": {"elastic": "nnmpi.run.recovery.layouts:layout_of_job"},
        "backups": {"backup": "nnmpi.parallel.recovery.backups_on_paper:backups_of"},
        "layout_fields": {"backup": "nnmpi.parallel.recovery.backups_on_paper:layout_fields"},
        "layout_texts": {"backup": "nnmpi.run.recovery.text:backups"},
        "sim_options": {"backup": "nnmpi.options.parts.recovery:add_backup"},
        "undos": {
            "step": "nnmpi.parallel.recovery.step_undo:StepUndo",
            "round": "nnmpi.parallel.recovery.round_undo:RoundUndo",
        },
    },
    files=(
        *("tests/comm/test_ulfm_mpi.py", "tests/run/test_recovery_ulfm_mpi.py"),
        "benchmarks/backup.py",
    ),
)
