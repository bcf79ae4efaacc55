"""Recovery of a run after the loss of a rank, under `mpirun --with-ft ulfm`; also of layouts that
have no place for some of the remaining ranks.

    fit ── RankLost ─► shrink ─► what each has: the newest ─► arrange_fewer ─► split ─► spare ranks
     ▲                   ▲       whole copy                                       │      wait
     │                   └──── RankLost ◄── moves ◄── a new Session ◄─────────────┘
     └──────────────────────────────────────────────────┘

Rules:

- An era is the time between two losses; it has one Comm of all remaining ranks. A run is over, or
  has failed with an AgreedError, only when all of them have confirmed it (`Comm.confirm`): no rank
  leaves a run of which another rank has to repeat a part.
- What a rank does between two losses is a function of what all ranks have exchanged since the last
  one. Nothing is decided from what only one rank knows.
- The work after the last step of the copy is done again, and so are later steps. Events that were
  reported are not reported again: `ReportedEvents` has the position of the last one.
- A rank keeps its snapshot until all ranks have the session that was made from it.
- Between a new session of a Trainer and the counters that belong to it nothing is sent: after a
  loss there, a rank would tell the others of the values of one step with the number of another.
"""
