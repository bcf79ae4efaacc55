"""What the ranks of a run do when one of them is lost, under `mpirun --with-ft ulfm`.

    fit ── RankLost ─► abandon ─► shrink ─► what each has ─► the version ─► arrange_fewer
     ▲                              ▲                                            │
     │                              └──────────── RankLost ──────────┐           ▼
     └────────── a new Session, from a Snapshot of stretches that moves bring ── split ─► spare ranks
                                                                                          wait
Rules:

- An era is the time between two losses; it has one Comm of all ranks that are left. Each rank ends
  its era once (`Comm.unanimous`): with a run that is over, or with a loss. All get the same answer,
  so no rank leaves a run that another one has to make again.
- What a rank does between two losses is a function of what all of them have told since the last
  one. Nothing is decided from what one rank alone knows.
- What was told is not told again, and what was not is: `Told` has the last step of each thing.
- A rank has its snapshot until all ranks have the session that was made of it.
"""
