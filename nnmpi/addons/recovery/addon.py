"""Recovery of a run after the loss of a rank, under `mpirun --with-ft ulfm`; also layouts with
fewer places than there are ranks, so that some ranks are spare and wait.

    fit ── RankLost ─► shrink ─► find the newest copy of  ─► fit_layout    ─► split ─► spare ranks
     ▲                   ▲       which ranks have all parts                       │      wait
     │                   └──── RankLost ◄── moves ◄── a new Session ◄─────────────┘
     └──────────────────────────────────────────────────┘

Rules:

- An era is the time between the losses of two ranks; it has one Comm of all remaining ranks. A run
  is over, or has failed with an AgreedError, only when all of them have confirmed it
  (`Comm.confirm`): no rank leaves a run of which another rank has to repeat a part.
- What a rank does in an era is a function of data that all ranks have exchanged in that era. No
  decision depends on data that only one rank has.
- Ranks continue from a copy of the model. The work that followed the copy's last step is repeated,
  and so are later steps. Events that were reported are not reported again: `ReportedEvents` has the
  position of the last one.
- A rank keeps its snapshot until all ranks have the session that was made from it.
- No message is sent between the new session of a Trainer and the update of its step counters: after
  a loss at that point, a rank would send the values of one step with the number of another.
"""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.recovery",),
    uses=("checkpoints",),
    rows={
        "options": {"recovery": "nnmpi.addons.recovery.options:ADDED"},
        "texts": {
            "recovered": "nnmpi.addons.recovery.run.text:RECOVERED",
            "backup": "nnmpi.addons.recovery.run.text:BACKUP",
        },
        "outliving": {"ulfm": "nnmpi.addons.recovery.ulfm.start"},
        "checks": {"backup": "nnmpi.addons.recovery.parallel.backup:CHECKS"},
        "supervisions": {"elastic": "nnmpi.addons.recovery.run.recovery:SUPERVISION"},
        "backups": {"backup": "nnmpi.addons.recovery.parallel.backups_on_paper:backups_of"},
        "event_fields": {"backup": "nnmpi.addons.recovery.parallel.backups_on_paper:FIELDS"},
        "undos": {
            "step": "nnmpi.addons.recovery.parallel.step_undo:StepUndo",
            "round": "nnmpi.addons.recovery.parallel.round_undo:RoundUndo",
        },
    },
    files=("benchmarks/backup.py",),
)
