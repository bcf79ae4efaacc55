"""Recovery of a run after the loss of a rank, under `mpirun --with-ft ulfm`, also where a layout
has no place for some of the ranks that are left.

    fit ── RankLost ─► shrink ─► what each has: the newest ─► arrange_fewer ─► split ─► spare ranks
     ▲                   ▲       whole copy                                       │      wait
     │                   └──── RankLost ◄── moves ◄── a new Session ◄─────────────┘
     └──────────────────────────────────────────────────┘

Rules:

- An era is the time between two losses; it has one Comm of all ranks that are left. A run is over,
  or has failed with an AgreedError, when all of them have confirmed it (`Comm.confirm`): no rank
  leaves a run of which another one has to make a part again.
- What a rank does between two losses is a function of what all of them have exchanged since the
  last one. Nothing is decided from what one rank alone knows.
- What follows the last step of that copy follows again, and so do later steps. Events that
  were reported are not reported again: `Reported` has the place of the last one.
- A rank has its snapshot until all ranks have the session that was made of it.
"""
