"""The table of mutants, each with what finds it, or why nothing can."""

from simulation.case import Case, Fault, Sleep
from simulation.mutants import Mutant

SIMPLE = ("ring", "pipelines", "tensor parallel", "zero 1, backups")
BACKUPS = (
    "zero 1, backups",
    "zero 3, backups",
    "zero 1 adam, backups",
    "one pipeline, backups",
    "zero 1 pp 2, backups",
)
CHECKPOINTS = ("zero 1, checkpoints", "ring, checkpoints", "zero 3, backups, checkpoints")
PARTS = ("pipelines", "tensor parallel", "zero 1 pp 2, backups")
ONE_BACKUP = ("zero 1, backups", "zero 3, backups", "one pipeline, backups")

ONE_KNOWS = Case(
    "tensor parallel",
    kills=(Fault(0, "decided", 2, 1),),
    asleep=Sleep(2, "deciding", 2, 0, 300),
    drawn=(),
)
"""Rank 0 dies as soon as it knows what was agreed on in the second step, while rank 2 sleeps in
that agreement."""

POWER_CUT = "test_no_power_cut_loses_a_checkpoint"
ABANDONED = "test_a_writer_that_was_abandoned_names_no_folder_of_the_next_one"

MUTANTS = (
    Mutant(
        "agree skipped",
        ("nnmpi.comm.calls", "CallRunner.agree"),
        "rank, size = self.transport.rank, self.transport.size",
        "if error is not None:\n    raise error\nreturn\nrank, size = 0, 1",
        (*SIMPLE, "zero 1, checkpoints"),
        killed_by=Case("zero 1, checkpoints", drawn=()),
    ),
    Mutant(
        "lost wait in Work.wait",
        ("nnmpi.comm.progress", "Work.wait"),
        "while not self.done:",
        "for _ in range(2 * (not self.done)):",
        ("zero 3, backups", "pipelines", "gossip", "ring"),
        killed_by=Case("gossip", drawn=()),
    ),
    Mutant(
        "a loss does not revoke",
        ("nnmpi.comm.transport.base", "TransportFamily.lost"),
        "self.abandon()",
        "pass",
        SIMPLE,
        killed_by="test_a_rank_is_lost_while_others_agree_on_an_error",
    ),
    Mutant(
        "works not ended at abandon",
        ("nnmpi.comm.progress", "Progress.abandon"),
        "work.abandon()",
        "pass",
        (*SIMPLE, "fragments", "zero 3, backups, checkpoints"),
        killed_by=Case("zero 1, backups", kills=(Fault(0, "start", 1, 374),), drawn=()),
    ),
    Mutant(
        "free without barrier",
        ("nnmpi.comm.communicator", "Comm.free"),
        "if not self.is_abandoned:",
        "if False:",
        ("rearranged", "rearranged, backups", "ring"),
        equal="on threads a Comm holds nothing; over MPI, Comm.Free and Win.Free are collective",
    ),
    Mutant(
        "one tag for all calls",
        ("nnmpi.comm.calls", "CallRunner.tag"),
        "first_tag(call[0], self.transport.marks) + call[1] % PENDING",
        "0",
        ("zero 3, backups", "zero 1, checkpoints", "ring"),
        killed_by=Case("zero 3, backups", drawn=()),
    ),
    Mutant(
        "undone checkpoints count",
        ("nnmpi.io.checkpoints.keep", "undone_by"),
        "if to < step",
        "if to < 0",
        ("restored with zero 1, checkpoints",),
        killed_by=Case(
            "restored with zero 1, checkpoints", kills=(Fault(1, "restored", 1, 20),), drawn=()
        ),
    ),
    Mutant(
        "arranged without barrier",
        ("nnmpi.run.recovery.recovery", "Recovery._restored"),
        "session.comm.barrier()",
        "pass",
        ("rearranged pp, tp",),
        killed_by=Case(
            "rearranged pp, tp", seed=1, kills=(Fault(0, "restoring", 1, 281),), order="near"
        ),
    ),
    Mutant(
        "buffers not restored",
        ("nnmpi.run.recovery.recovery", "Recovery._leave"),
        "last.restore()",
        "pass",
        ("local", "servers", "ring", "local, plain mean", "fragments"),
        killed_by=Case("local", kills=(Fault(0, "updating", 2, 5),), drawn=()),
    ),
    Mutant(
        "decided step not made",
        ("nnmpi.run.recovery.recovery", "Recovery._leave"),
        "last.finish(plan.decision[1])",
        "pass",
        (*SIMPLE, *BACKUPS),
        killed_by=ONE_KNOWS,
    ),
    Mutant(
        "backup parts not merged",
        ("nnmpi.run.recovery.kept", "KeptVersions.keep"),
        "if known is not version:",
        "if False:",
        BACKUPS,
        killed_by=Case("zero 1, backups", kills=(Fault(0, "backing up", 1, 8),), drawn=()),
    ),
    Mutant(
        "kept dropped before others have it",
        ("nnmpi.run.recovery.recovery", "Recovery._arrange_all"),
        "self._take(trainer, plan)",
        "self._take(trainer, plan)\nself._kept.clear()",
        (*BACKUPS, "ring"),
        killed_by=Case(
            "ring",
            kills=(
                Fault(0, "updating", 3, 2),
                Fault(1, "arranging", 2, 1),
            ),
            drawn=(),
        ),
    ),
    Mutant(
        "step not counted",
        ("nnmpi.run.recovery.recovery", "Recovery._take"),
        "run.count_step(run.unfollowed)",
        "pass",
        SIMPLE,
        killed_by=Case(
            "tensor parallel",
            kills=(Fault(2, "decided", 2, 1),),
            asleep=Sleep(1, "deciding", 2, 0, 300),
            drawn=(),
        ),
    ),
    Mutant(
        "oldest version",
        ("nnmpi.run.recovery.versions", "newest"),
        "reverse=True",
        "reverse=False",
        (*SIMPLE, *BACKUPS),
        killed_by=ONE_KNOWS,
    ),
    Mutant(
        "most progress",
        ("nnmpi.run.recovery.versions", "newest"),
        "min(of_key, key=progress)",
        "max(of_key, key=progress)",
        (*SIMPLE, *BACKUPS),
        killed_by="test_the_work_after_a_step_is_made_again_where_one_rank_has_not_done_it",
    ),
    Mutant(
        "step never finished",
        ("nnmpi.run.recovery.rank_status", "agreed"),
        "makes_step = made is not None and (source is None or made.version > source.version)",
        "makes_step = False",
        (*SIMPLE, *BACKUPS),
        killed_by=ONE_KNOWS,
    ),
    Mutant(
        "any decision fits",
        ("nnmpi.run.recovery.rank_status", "RankStatus.can_hold"),
        "self.pending_version != decision[0]",
        "self.pending_version is None",
        (*SIMPLE, "local", "local, plain mean"),
        equal=(
            "ranks that know the sums of a step know no later decision, and with the one "
            "before the copy gets the key that it has: the plan compares keys"
        ),
    ),
    Mutant(
        "end without confirm",
        ("nnmpi.run.recovery.survivors", "Survivors.end"),
        "self.all.confirm()",
        "pass",
        SIMPLE,
        killed_by=Case("zero 1, backups", kills=(Fault(1, "start", 1, 504),), drawn=()),
    ),
    Mutant(
        "least reported: most",
        ("nnmpi.run.recovery.rank_status", "_progress"),
        "status.reported.events, status.reported.calls",
        "(-status.reported.events[0], 0, 0), status.reported.calls",
        ("tensor parallel", "two nodes", "pipelines"),
        killed_by="test_ranks_that_were_spare_tell_what_some_rank_has_not_told",
    ),
    Mutant(
        "a checkpoint is not abandoned",
        ("nnmpi.run.recovery.recovery", "Recovery._go_on"),
        "trainer.checkpoints.abandon()",
        "pass",
        CHECKPOINTS,
        killed_by=Case("ring, checkpoints", kills=(Fault(2, "evaluating", 2, 10),), drawn=()),
    ),
    Mutant(
        "reported twice",
        ("nnmpi.run.reported_events", "ReportedEvents.claim"),
        "return position > last",
        "return position >= last",
        SIMPLE,
        killed_by=Case("ring", kills=(Fault(0, "updated", 3, 2),), drawn=()),
    ),
    Mutant(
        "stop not agreed",
        ("nnmpi.run.evaluation", "requests"),
        'trainer.comm.all_reduce(row, "doubling")',
        "pass",
        CHECKPOINTS,
        killed_by=Case("zero 1, checkpoints", signals=(Fault(0, "evaluating", 1, 3),), drawn=()),
    ),
    Mutant(
        "sums noted after the agreement",
        ("nnmpi.parallel.step.update", "Update.agree"),
        (
            "self.summed, self.decision, self._is_prepared = step + 1, None, False\n"
            "    if self._model.size > 1:\n"
            "        sums = self._agreed(sums)"
        ),
        (
            "if self._model.size > 1:\n"
            "    sums = self._agreed(sums)\n"
            "self.summed, self.decision, self._is_prepared = step + 1, None, False"
        ),
        PARTS,
        killed_by=ONE_KNOWS,
    ),
    Mutant(
        "norm not agreed",
        ("nnmpi.parallel.step.update", "Update.agree"),
        "if self._model.size > 1:",
        "if False:",
        ("pipelines", "tensor parallel", "one pipeline, backups"),
        killed_by=Case("tensor parallel", drawn=()),
    ),
    Mutant(
        "double update",
        ("nnmpi.parallel.step.update", "Update.carry_out"),
        "self._store.keep_residuals()",
        "self._store.keep_residuals()\n"
        "self._optimizer.step(lr_factor=self._lr_factor(self.summed - 1))",
        ("ring",),
        killed_by=Case("ring", drawn=()),
    ),
    Mutant(
        "double update of a rank that knows",
        ("nnmpi.parallel.recovery.step_undo", "StepUndo.pending_version"),
        "self._update.summed > self._update.version",
        "self._update.summed >= self._update.version and self._update.summed",
        SIMPLE,
        killed_by=ONE_KNOWS,
    ),
    Mutant(
        "restored after an update",
        ("nnmpi.parallel.recovery.step_undo", "StepUndo.restore"),
        "self._update.version <= self._begun",
        "True",
        ("servers", "ring", "pipelines", "batch norm"),
        killed_by=Case("batch norm", kills=(Fault(0, "updated", 2, 1),), drawn=()),
    ),
    Mutant(
        "rate of the next step",
        ("nnmpi.parallel.step.update", "Update.carry_out"),
        "self._lr_factor(self.summed - 1)",
        "self._lr_factor(self.summed)",
        ("ring", "pipelines"),
        killed_by=Case("ring", drawn=()),
    ),
    Mutant(
        "round: Adam's steps not undone",
        ("nnmpi.parallel.recovery.round_undo", "RoundUndo.restore"),
        "self._optimizer.steps[:] = self._steps",
        "pass",
        ("local", "fragments"),
        killed_by="test_a_round_is_undone_until_it_is_final",
    ),
    Mutant(
        "round without barrier",
        ("nnmpi.parallel.averaging.rounds", "Rounds._met"),
        "self._all.barrier()",
        "pass",
        ("local, plain mean", "local", "gossip", "fragments", "local pp 2"),
        killed_by=Case(
            "local pp 2",
            kills=(Fault(0, "met", 1, 1),),
            asleep=Sleep(2, "meeting", 1, 0, 300),
            drawn=(),
        ),
    ),
    Mutant(
        "fragment forgets own steps",
        ("nnmpi.parallel.averaging.outer", "OuterOptimizer._apply"),
        "g += replica.values() - values",
        "pass",
        ("fragments",),
        killed_by=Case("fragments", drawn=()),
    ),
    Mutant(
        "own values not kept",
        ("nnmpi.parallel.averaging.means", "OwnValues.show"),
        "self._replica.values() - values",
        "0 * values",
        ("gossip", "fragments"),
        killed_by=Case("gossip", drawn=()),
    ),
    Mutant(
        "residual written at once",
        ("nnmpi.parallel.compression.store", "CompressedStore._phases"),
        "self._kept[b] = bucket",
        (
            "self._kept[b] = bucket\n"
            "for i, part in zip(members, bucket.parts, strict=True):\n"
            "    state = self._optimizer.state[RESIDUAL]\n"
            "    state[self._places[i]] = bucket.row[part]"
        ),
        ("topk", "topk of all"),
        killed_by="test_a_step_that_is_skipped_keeps_the_residuals",
    ),
    Mutant(
        "stale residual",
        ("nnmpi.parallel.compression.store", "CompressedStore.keep_residuals"),
        "state[RESIDUAL][self._places[i]] = bucket.row[part]",
        "pass",
        ("topk", "topk of all"),
        killed_by=Case("topk", drawn=()),
    ),
    Mutant(
        "off by one of a bucket",
        ("nnmpi.parallel.stores.buckets", "Buckets.__init__"),
        "bisect_right(stops, start)",
        "bisect_right(stops, start - 1)",
        ("zero 3, backups", "zero 2, backups", "ring"),
        killed_by=Case("zero 2, backups", drawn=()),
    ),
    Mutant(
        "values not gathered",
        ("nnmpi.parallel.stores.zero", "ZeroStore.gather"),
        "self._values.gather_bucket(b)",
        "pass",
        ("zero 1, backups", "zero 3, backups", "zero 2, backups"),
        killed_by=Case("zero 1, backups", drawn=()),
    ),
    Mutant(
        "old values not forgotten",
        ("nnmpi.parallel.stores.weight_slots", "WeightSlots.updated"),
        "self._there.clear()",
        "pass",
        ("zero 3, backups",),
        killed_by="test_an_optimizer_without_arrays_has_counts_of_steps",
    ),
    Mutant(
        "backup not agreed",
        ("nnmpi.parallel.recovery.backup", "Backups._finish"),
        'self._comm.all_reduce(row, "doubling")',
        "row *= self._comm.size",
        ONE_BACKUP,
        killed_by="test_the_others_have_what_a_rank_alone_had",
    ),
    Mutant(
        "newest backup overwritten",
        ("nnmpi.parallel.recovery.backup", "Backups._start"),
        "min(self._memories",
        "max(self._memories",
        ONE_BACKUP,
        killed_by=Case("zero 1, backups", kills=(Fault(0, "start", 1, 350),), drawn=()),
    ),
    Mutant(
        "server: double update",
        ("nnmpi.parallel.server.server", "ParameterServer._handle"),
        "self._update(range(len(self._channels)))",
        "self._update(range(len(self._channels)))\nself._update(range(len(self._channels)))",
        ("servers",),
        killed_by=Case("servers", drawn=()),
    ),
    Mutant(
        "server: bound off by one",
        ("nnmpi.parallel.server.server", "ClockTable.released"),
        "<= self._bound",
        "<= self._bound + 1",
        ("ssp", "servers"),
        killed_by=Case("servers", drawn=()),
    ),
    Mutant(
        "server: values sent while updated",
        ("nnmpi.parallel.server.exchange", "ReplyChannel.__init__"),
        "zeros_like(self._parameters) if copies else self._parameters",
        "self._parameters",
        ("asp", "ssp"),
        killed_by=Case("asp", 6, late=0.5),
    ),
    Mutant(
        "worker waits for the first server only",
        ("nnmpi.parallel.server.exchange", "RequestChannel.ask"),
        "wait_all(comm.system, works)",
        "wait_all(comm.system, works[:3])",
        ("servers", "asp"),
        killed_by=Case("servers", 7, late=0.5),
    ),
    Mutant(
        "epoch start not copied",
        ("nnmpi.run.recovery.keeper", "Keeper.keep_epoch_start"),
        "tuple(x.copied() for x in session.state())",
        "tuple(session.state())",
        ("servers", "asp"),
        killed_by=Case("servers", kills=(Fault(0, "answered", 4, 1),), drawn=()),
    ),
    Mutant(
        "stop in a callback lost",
        ("nnmpi.run.calls", "agree"),
        "if compare_settings(trainer):",
        "if compare_settings(trainer) and False:",
        ("stopped",),
        killed_by=Case("stopped", drawn=()),
    ),
    Mutant(
        "stop in a callback one step late",
        ("nnmpi.run.after_step", "_agree"),
        "if is_called and",
        "if False and",
        ("stopped",),
        killed_by=Case("stopped", drawn=()),
    ),
    Mutant(
        "stop in a callback of rank 0 only",
        ("nnmpi.run.callbacks", "Settings.compare"),
        "row[:, 1].any()",
        "row[0, 1]",
        CHECKPOINTS,
        killed_by="test_a_callback_stops_a_run_on_any_occasion",
    ),
    Mutant(
        "stop lost on its way with the sums",
        ("nnmpi.run.run_state", "RunState._request"),
        "if self.asks_to_stop:",
        "if False:",
        killed_by="all_stop_when_one_wants_to",
    ),
    Mutant(
        "SIGTERM lost",
        ("nnmpi.run.run_state", "RunState.asks_to_stop"),
        "self.stop_requested or self.suspend_requested",
        "self.stop_requested",
        CHECKPOINTS,
        killed_by=Case("zero 1, checkpoints", signals=(Fault(2, "start", 1, 300),), drawn=()),
    ),
    Mutant(
        "committed before others have written",
        ("nnmpi.io.checkpoints.write", "Writer._steps"),
        "files = yield from self._gathered(written)",
        "files = [written] * self._comm.size",
        ("zero 1, checkpoints", "zero 3, backups, checkpoints"),
        killed_by=Case("zero 1, checkpoints", signals=(Fault(0, "start", 1, 250),), drawn=()),
    ),
    Mutant(
        "only a problem of rank 0 counts",
        ("nnmpi.io.checkpoints.write", "Writer._steps"),
        'next(filter(None, (file.problem for file in files)), "")',
        "files[0].problem",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "committed though abandoned",
        ("nnmpi.io.checkpoints.write", "Writer._not_abandoned"),
        "if self._stop.is_set():",
        "if False:",
        CHECKPOINTS,
        killed_by=ABANDONED,
    ),
    Mutant(
        "log not synced",
        ("nnmpi.io.checkpoints.write", "Writer._commit"),
        "sync(Path(content.log))",
        "pass",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "name of the log not synced",
        ("nnmpi.io.checkpoints.write", "Writer._commit"),
        "sync(Path(content.log).parent)",
        "pass",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "log synced after its checkpoint",
        ("nnmpi.io.checkpoints.write", "Writer._commit"),
        (
            "if content.log:\n"
            "                sync(Path(content.log))\n"
            "                sync(Path(content.log).parent)  # its name may be new\n"
            "            write_manifest(part, manifest)\n"
            "            with self._not_abandoned():\n"
            "                replace(part, folder)"
        ),
        (
            "write_manifest(part, manifest)\n"
            "with self._not_abandoned():\n"
            "    replace(part, folder)\n"
            "if content.log:\n"
            "    sync(Path(content.log))\n"
            "    sync(Path(content.log).parent)"
        ),
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "named before its manifest is written",
        ("nnmpi.io.checkpoints.write", "Writer._commit"),
        (
            "write_manifest(part, manifest)\n"
            "            with self._not_abandoned():\n"
            "                replace(part, folder)"
        ),
        (
            "with self._not_abandoned():\n"
            "    replace(part, folder)\n"
            "write_manifest(folder, manifest)"
        ),
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "manifest not synced",
        ("nnmpi.io.checkpoints.manifest", "write_manifest"),
        "os.fsync(file.fileno())",
        "pass",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "name of the manifest not synced",
        ("nnmpi.io.checkpoints.manifest", "write_manifest"),
        "sync(folder)",
        "pass",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "file of a rank not synced",
        ("nnmpi.io.checkpoints.rank_file", "write_file"),
        "os.fsync(file.fileno())",
        "pass",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "name of a rank's file not synced",
        ("nnmpi.io.checkpoints.rank_file", "prepared"),
        "sync(folder)",
        "pass",
        CHECKPOINTS,
        equal="rank 0 syncs the folder again; on NFS a host has to sync the names that it has made",
    ),
    Mutant(
        "name of a checkpoint not synced",
        ("nnmpi.io.checkpoints.keep", "replace"),
        "sync(folder.parent)",
        "pass",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "name of the directory not synced",
        ("nnmpi.io.checkpoints.keep", "locked"),
        "sync(directory.parent)",
        "pass",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "removed under its own name",
        ("nnmpi.io.checkpoints.keep", "remove"),
        "os.rename(folder, hidden)",
        "hidden = folder",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "what lacks only its name removed",
        ("nnmpi.io.checkpoints.keep", "clean"),
        "part[2] and _is_whole(path)",
        "False",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "what lacks only its name not found",
        ("nnmpi.io.checkpoints.keep", "folders"),
        "part[2] and _is_whole(directory / name)",
        "False",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "a slice written twice",
        ("nnmpi.io.checkpoints.rank_file", "divided"),
        "(of_ranks[ranks[0]] if is_first else shared[ranks]).append((number, x))",
        (
            "for rank in ranks if is_first else ranks[:1]:\n"
            "    (of_ranks[rank] if is_first else shared[ranks]).append((number, x))"
        ),
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "oldest checkpoint taken",
        ("nnmpi.io.checkpoints.read", "newest_of"),
        "in by_step.items():",
        "in reversed(by_step.items()):",
        CHECKPOINTS,
        killed_by=POWER_CUT,
    ),
    Mutant(
        "time limit not heeded",
        ("nnmpi.run.checkpointing", "Checkpoints.after_step"),
        "times.is_over()",
        "False",
        ("time limit, checkpoints",),
        killed_by=Case("time limit, checkpoints", jumps=(Fault(0, "updating", 2, 1),), drawn=()),
    ),
    Mutant(
        "clock of checkpoints not heeded",
        ("nnmpi.run.checkpointing", "Checkpoints.after_step"),
        "times.is_due()",
        "False",
        ("by the clock, checkpoints",),
        killed_by=Case("by the clock, checkpoints", jumps=(Fault(0, "updating", 2, 1),), drawn=()),
    ),
    Mutant(
        "reported before its files are synced",
        ("nnmpi.io.checkpoints.rank_file", "write_file"),
        "os.fsync(file.fileno())",
        "pass",
        CHECKPOINTS,
        killed_by=Case("zero 1, checkpoints", cut=20, drawn=()),
    ),
    Mutant(
        "SIGTERM again in a repeated step",
        ("nnmpi.run.run_state", "RunState.asks_to_stop"),
        " and not self.is_behind",
        "",
        ("ring, checkpoints", "zero 1, checkpoints"),
        killed_by=Case(
            "zero 1, checkpoints",
            seed=11,
            kills=(Fault(0, "start", 1, 525),),
            signals=(Fault(2, "start", 1, 531),),
            late=0.5,
            buffered=0.9,
            unnoticed=0.8,
            asleep=Sleep(1, "start", 1, 146, 200),
        ),
    ),
)
