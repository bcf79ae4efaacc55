"""Compares a run with one rank, makes its bits independent of ranks, and simulates slow ranks."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.options.parts.checks", "nnmpi.parallel.checks"),
    rows={
        "options": {"checks": "nnmpi.options.parts.checks:PART"},
        "checks": {
            "reproducible": "nnmpi.parallel.checks.reproducible:check",
            "slow_rank": "nnmpi.parallel.checks.slow_ranks:check",
            "jitter": "nnmpi.parallel.checks.slow_ranks:check",
        },
        "batch_checks": {"reproducible": "nnmpi.parallel.checks.reproducible:check_batch"},
        "strategy_kinds": {"reproducible": "nnmpi.parallel.checks.slices:KIND"},
        "slowed": dict.fromkeys(("slow_rank", "jitter"), "nnmpi.parallel.checks.slow_ranks:slowed"),
        "layout_fields": {"reproducible": "nnmpi.parallel.checks.slices:layout_fields"},
        "phrases": {
            name: f"nnmpi.parallel.checks.text:{name}"
            for name in ("reproducible", "slow_rank", "jitter", "verify")
        },
        "event_texts": {"verify": "nnmpi.parallel.checks.text:compared"},
        "result_lines": {"largest_differences": "nnmpi.parallel.checks.text:largest"},
        "twins": {"verify": "nnmpi.parallel.checks.twin:single_rank"},
        "compared": {"verify": "nnmpi.parallel.checks.verify:VerifiedStrategy"},
        "read_every": {"verify": "nnmpi.parallel.checks.verify:read_every"},
        "fitted": {"slow_rank": "nnmpi.parallel.checks.slow_ranks:fitted"},
        "start_fields": dict.fromkeys(
            ("slow_rank", "jitter"), "nnmpi.parallel.checks.slow_ranks:start_fields"
        ),
    },
)
