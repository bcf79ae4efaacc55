"""Checks and experiments: comparison with one rank, bit-equal runs, and slow ranks."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.checks",),
    rows={
        "options": {"checks": "nnmpi.addons.checks.options:ADDED"},
        "checks": {
            "reproducible": "nnmpi.addons.checks.reproducible:check",
            "slow_rank": "nnmpi.addons.checks.slow_ranks:check",
            "jitter": "nnmpi.addons.checks.slow_ranks:check",
        },
        "batch_checks": {"reproducible": "nnmpi.addons.checks.reproducible:check_batch"},
        "strategy_kinds": {"reproducible": "nnmpi.addons.checks.slices:KIND"},
        "slowed": dict.fromkeys(("slow_rank", "jitter"), "nnmpi.addons.checks.slow_ranks:slowed"),
        "layout_fields": {"reproducible": "nnmpi.addons.checks.slices:layout_fields"},
        "phrases": {
            name: f"nnmpi.addons.checks.text:{name}"
            for name in ("reproducible", "slow_rank", "jitter", "verify")
        },
        "event_texts": {"verify": "nnmpi.addons.checks.text:compared"},
        "result_lines": {"largest_differences": "nnmpi.addons.checks.text:largest"},
        "twins": {"verify": "nnmpi.addons.checks.twin:single_rank"},
        "compared": {"verify": "nnmpi.addons.checks.verify:VerifiedStrategy"},
        "read_every": {"verify": "nnmpi.addons.checks.verify:read_every"},
        "fitted": {"slow_rank": "nnmpi.addons.checks.slow_ranks:fitted"},
        "start_fields": dict.fromkeys(
            ("slow_rank", "jitter"), "nnmpi.addons.checks.slow_ranks:start_fields"
        ),
    },
)
