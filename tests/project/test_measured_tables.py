"""The tables of the docs: every figure is in the file of results that the page names."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
PIPELINES = PAGES["docs/pipelines.md"]
BENCHMARKS = "\n".join(PAGES[name] for name in PAGES if name.startswith("docs/benchmarks"))
MEBIBYTE = 1 << 20
RATIOS = ("T", "T*", "T+")
"""The ratios of the table of training steps; rows measured from now on also have JAX and best."""
Row = dict[str, Any]


def results(name: str) -> list[Row]:
    assert any(f"{name}.json`" in page for page in PAGES.values())
    rows: list[Row] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def table(page: str, header: str) -> dict[str, list[str]]:
    """The cells of the table with this header, by the first cell of each row."""
    assert page.count(f"\n{header}\n") == 1, header
    lines = page.split(f"\n{header}\n")[1].split("\n\n")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines[1:]]
    return {first: rest for first, *rest in cells}


def two(value: float) -> str:
    return f"{value:.2f}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def training_rows(name: str) -> list[Row]:
    return [row for row in results(name) if "ratio to T" in row]


def scaling_rows(name: str) -> dict[tuple[str, str, str], Row]:
    return {(row["case"], row["scaling"], row["subject"]): row for row in results(name)}


def all_reduce_rows(name: str) -> dict[tuple[str, int], Row]:
    rows = results(name)
    return {(row["algorithm"], row["bytes"]): row for row in rows if row["case"] == "all_reduce"}


def pipeline_rows(section: str) -> list[Row]:
    return [row for row in results("pipeline-2-ranks-zen5") if row["section"] == section]


def speed_ups() -> dict[str, Row]:
    rows = [row for row in pipeline_rows("speed-up") if row["subject"] == "pipeline"]
    return {f"{row['case']}, m = {row['micro_batches']}": row for row in rows}


def sharding_cells() -> list[list[str]]:
    """The rows of the headline table on ZeRO, tensor parallelism and images cut by rows."""
    rows = {(row["section"], row["layout"]): row for row in results("sharding-zen5")}
    stages = [f"dp 2, zero {zero}, ring" for zero in (1, 2, 3)]
    held = [f"{rows['memory', s]['per_parameter']:.1f}" for s in ("dp 2, ring", *stages)]
    times = [two(rows["time", s]["ratio"]) for s in stages]
    wide, image = rows["weak", "tp 2"], rows["halo", "image"]
    return [
        [
            f"{held[1]}, {held[2]} and {held[3]} bytes a parameter",
            f"{times[0]}, {times[1]} and {times[2]} of the time of data parallelism "
            f"({held[0]} bytes)",
        ],
        [f"{wide['seconds'] * 1e3:.0f} ms", f"{two(wide['ratio'])} of one rank's speed for each"],
        [f"{image['seconds'] * 1e3:.0f} ms", f"{two(image['ratio'])} times one rank"],
    ]


@pytest.mark.parametrize("machine", ["Zen 3", "Zen 4"])
def test_the_compiled_kernels(machine: str):
    heads = "NumPy | to T+ | compiled | to T+ | to JAX | to best"
    shown = table(BENCHMARKS, f"| training step, {machine} | {heads} |")
    file = f"training-{machine.lower().replace(' ', '')}"
    both = map(training_rows, (f"{file}-numpy", f"{file}-native"))
    for (name, cells), pair in zip(shown.items(), zip(*both, strict=True), strict=True):
        assert name.startswith(pair[0]["case"])
        wanted = []
        for row, others in zip(pair, (("T+",), ("T+", "JAX", "best")), strict=True):
            s = row["seconds"]
            wanted.append(ms(s) if s > 1e-3 else f"{s * 1e6:.0f} µs")
            wanted += [two(row[f"ratio to {other}"]) for other in others]
        assert cells == wanted


def test_the_table_of_16_bits_with_avx2() -> None:
    both = "float32, ms | bfloat16 | float16 | loop, ms | bfloat16 | float16"
    shown = table(BENCHMARKS, f"| AVX2 | {both} |")
    found = [row for row in results("training-halves-zen3") if row["benchmark"] == "training"]
    rows = {(row["case"], row["subject"]): row for row in found}
    for case, cells in shown.items():
        wanted = []
        for over in ("nnmpi float32", "nnmpi"):
            wanted.append(f"{rows[case, over]['cpu_seconds'] * 1e3:.1f}")
            narrow = (rows[case, f"nnmpi {dtype}"] for dtype in ("bfloat16", "float16"))
            wanted += [two(row[f"ratio to {over}"]) for row in narrow]
        assert cells == wanted
    assert {*shown} == {row["case"] for row in found}
    rows = {(r["case"], r["subject"]): r for r in results("training-autocast-zen3")}
    text, cases = " ".join(BENCHMARKS.split()), ("W1", "W2", "W4", "gpt-128")
    slow = {case: rows[case, "autocast"]["cpu_seconds"] for case in cases}
    w1, w2, w4, gpt = (f"{1e3 * seconds:,.0f}" for seconds in slow.values())
    assert f"({w1} ms for W1, {w2} for W2, {w4} for W4, {gpt} for gpt-128)" in text
    over = [slow[case] / rows[case, "T+"]["cpu_seconds"] for case in cases]
    ratios = [rows[case, "nnmpi bfloat16"]["ratio to autocast"] for case in cases]
    assert f"autocast takes {min(over):.0f} to {max(over):.0f} times as long" in text
    assert f"nnmpi in bfloat16 {two(min(ratios))} to {two(max(ratios))} of autocast's" in text
    for dtype in ("bfloat16", "float16"):
        ratio = rows["gpt-384", f"nnmpi {dtype}"]["ratio to nnmpi float32"]
        assert two(ratio) in text.split("gpt-384 takes")[1].split("float16 (")[0]


def test_the_summary():
    shown = table(BENCHMARKS, "| measured | nnmpi | ratio |")
    steps = {row["case"]: row for row in reversed(training_rows("training-zen3-native"))}
    scaling = scaling_rows("scaling-2-ranks-zen3")
    sums = all_reduce_rows("collectives-2-ranks-zen5")
    want = []
    for row in (steps["W1"], steps["W2"]):
        plus, t, jax = (two(row[f"ratio to {other}"]) for other in ("T+", "T", "JAX"))
        ratios = f"{plus} of the time of PyTorch at its best (T+), {t} of T, {jax} of JAX"
        want.append([ms(row["seconds"]), ratios])
    for case in ("W1", "W2"):
        row = scaling[case, "weak", "nnmpi"]
        ratios = (
            f"{two(row['over_one_rank'])} times one rank, "
            f"{two(row['ratio'])} times PyTorch's DDP (T+)"
        )
        want.append([f"{row['samples_per_second']:,.0f} samples/s", ratios])
    row = speed_ups()["mlp, m = 16"]
    share = f"{row['of_ideal']:.0%} of the ideal {two(row['ideal_ratio'])}"
    want.append([f"{two(row['ratio'])} times one rank", share])
    want += sharding_cells()
    for name in ("ring", "window"):
        row = sums[name, MEBIBYTE]
        ratio = f"{two(row['ratio'])} of the time of MPI_Allreduce"
        want.append([f"{row['seconds'] * 1e6:.0f} µs", ratio])
    assert [*shown.values()] == want


def test_the_figures_of_the_readme():
    text = " ".join(PAGES["README.md"].split())
    w1 = training_rows("training-zen3-native")[0]
    scaling = scaling_rows("scaling-2-ranks-zen3")["W1", "weak", "nnmpi"]
    window = all_reduce_rows("collectives-2-ranks-zen5")["window", MEBIBYTE]
    assert f"of a CNN takes {two(w1['ratio to T+'])} of the time of PyTorch at its best" in text
    assert f"two ranks train {two(scaling['ratio'])} times as many samples" in text
    assert f"a sum of 1 MB takes {two(window['ratio'])} of the time of MPI_Allreduce" in text


def test_the_table_of_training_steps():
    heads = " | ".join(f"to {other}" for other in RATIOS).replace("*", "\\*")
    shown = table(BENCHMARKS, f"| training step | nnmpi | {heads} |")
    rows = training_rows("training-zen5")
    assert len(shown) == len(rows)
    for cells, row in zip(shown.values(), rows, strict=True):
        time = ms(row["seconds"]) if row["seconds"] > 1e-3 else f"{row['seconds'] * 1e6:.0f} µs"
        assert cells == [time, *(two(row[f"ratio to {other}"]) for other in RATIOS)]
    older = [two(row["ratio to T*"]) for row in training_rows("training-zen4")[:4]]
    text = " ".join(BENCHMARKS.split())
    assert (
        f"took {older[0]} of T\\* on W1, {older[1]} on W2, {older[2]} on W3 and {older[3]}" in text
    )


def test_the_times_of_matrix_products():
    for name in ("gemm-zen5", "gemm-zen4"):
        ours, others = (
            sum(row["seconds"] for row in results(name) if row["subject"] == subject)
            for subject in ("NumPy", "PyTorch")
        )
        assert f"({ours * 1e3:.1f} and {others * 1e3:.1f} ms, `{name}.json`)" in BENCHMARKS


def test_the_table_of_scaling():
    header = "| 2 ranks, 2 cores | nnmpi, samples/s | over 1 rank | over DDP (T+) | "
    shown = table(BENCHMARKS, header + "over mpi4jax | over JAX |")
    found = scaling_rows("scaling-2-ranks-zen3")
    assert len(shown) == 4
    keys = "over_one_rank", "ratio", "ratio to mpi4jax", "ratio to JAX"
    for name, cells in shown.items():
        case, scaling = name.split(", ")
        ours = found[case, scaling, "nnmpi"]
        assert (ours["ranks"], ours["against"]) == (2, "DDP T+")
        assert cells == [f"{ours['samples_per_second']:,.0f}", *(two(ours[key]) for key in keys)]
    text = " ".join(BENCHMARKS.split())
    limits = [two(found[case, "weak", "nnmpi apart"]["over_one_rank"]) for case in ("W1", "W2")]
    assert f"come to {limits[0]} of one rank on W1 and to {limits[1]} on W2" in text
    threads_or_ranks = two(found["W1", "strong", "nnmpi"]["over_one_rank"])
    assert f"two ranks with one thread each at {threads_or_ranks} times" in text
    one = found["W2", "one rank", "nnmpi"]
    plus, jax = (two(1 / one[key]) for key in ("ratio", "ratio to JAX"))
    assert f"takes {plus} of the time of T+ and {jax} of that of JAX" in text


def test_the_table_of_overlap():
    header = "| W1, 4 hosts | with overlap | `--no-overlap` | without sums | hidden |"
    files = ("scaling-cluster-600mbit", "scaling-cluster-1gbit-zen5")
    for cells, name in zip(table(BENCHMARKS, header).values(), files, strict=True):
        rows = results(name)
        share, low, high = (
            f"{rows[0][key]:.0%}"
            for key in ("hidden_share", "hidden_share_low", "hidden_share_high")
        )
        assert cells == [*(ms(row["seconds"]) for row in rows), f"{share} ({low} to {high})"]


def test_the_tables_of_stragglers():
    rows = results("sync-5-ranks-zen5")
    found = {(row["case"], row["subject"]): row for row in rows}
    cases = {"all alike": "none", "each 5x slower at a tenth of its steps": "random"}
    cases["one always 3x slower"] = "one slow"
    modes = ["all-reduce", "ssp 1", "ssp 3", "ssp 10", "asp"]
    shown = table(BENCHMARKS, f"| over BSP | {' | '.join(modes)} |")
    ratios = {
        name: [two(found[case, mode]["ratio"]) for mode in modes] for name, case in cases.items()
    }
    assert shown == ratios
    header = (
        "| | samples/s | over BSP | in theory | over no straggler | in theory | mean staleness | "
        "largest | accuracy |"
    )
    shown = table(PAGES["docs/synchrony.md"], header)
    assert len(shown) == len(rows)
    for name, cells in shown.items():
        case, mode = name.rstrip("`").split(": `")
        row = found[cases[case], mode]
        assert cells == [
            f"{row['samples_per_second']:,.0f}",
            *(two(row["ratio"]), two(row["ratio_in_theory"])),
            *(two(row["over_no_straggler"]), two(row["over_no_straggler_in_theory"])),
            *(f"{row['mean_staleness']:.1f}", str(row["largest_staleness"])),
            f"{row['accuracy']:.1%}",
        ], name


def test_the_tables_of_all_reduces():
    names = {"2 ranks": "2-ranks-zen5", "4 ranks, 2 cores": "4-ranks-zen4"}
    found = {ranks: all_reduce_rows(f"collectives-{name}") for ranks, name in names.items()}
    sizes = [4096, MEBIBYTE // 4, MEBIBYTE, 4 * MEBIBYTE, 16 * MEBIBYTE]
    other = {"comm.shared": "window", "PyTorch's gloo": "gloo"}
    shown = table(BENCHMARKS, "| over MPI_Allreduce | 4 KB | 256 KB | 1 MB | 4 MB | 16 MB |")
    assert len(shown) == 14
    for row, cells in shown.items():
        ranks, name = row.replace("`", "").split(": ")
        ratios = [found[ranks][other.get(name, name), n]["ratio"] for n in sizes]
        assert cells == [f"{r:.0f}x" if r >= 100 else f"{r:.2f}x" for r in ratios], row
    for rows in found.values():  # as the text says of every size
        gloo = {n: row["seconds"] for (name, n), row in rows.items() if name == "gloo"}
        for name, times in (("window", 7), ("auto", 2.9)):
            assert all(s >= times * rows[name, n]["seconds"] for n, s in gloo.items())


def test_the_table_of_the_emulated_cluster():
    shown = table(BENCHMARKS, "| 8 MB, 4 hosts | measured | predicted | over MPI_Allreduce |")
    rows = all_reduce_rows("collectives-cluster-1gbit")
    assert len(shown) == 3
    for name, cells in shown.items():
        row = rows[name.strip("`"), 8 * MEBIBYTE]
        times = [f"{row[key] * 1e3:.0f} ms" for key in ("seconds", "predicted_seconds")]
        assert cells == [*times, f"{two(row['ratio'])}x"]
    network = next(row for row in results("collectives-cluster-1gbit") if "alpha" in row)
    fitted = f"alpha {network['alpha'] * 1e6:.0f} µs and beta {network['beta'] * 1e9:.2f} ns a byte"
    assert fitted in " ".join(BENCHMARKS.split())


def test_the_table_of_pipelines_over_one_rank():
    header = "| 2 ranks over 1 | speed-up | ideal | of ideal | simulated for the cut | of that |"
    shown, rows = table(PIPELINES, header), speed_ups()
    assert shown.keys() == rows.keys()
    for name, row in rows.items():
        ideal = [two(row["ratio"]), two(row["ideal_ratio"]), f"{row['of_ideal']:.0%}"]
        assert shown[name] == [*ideal, two(row["predicted_ratio"]), f"{row['of_predicted']:.0%}"]
    apart = {
        r["case"]: two(r["ratio"]) for r in pipeline_rows("speed-up") if r["subject"] == "apart"
    }
    mlp, cnn, mnist = (apart[case] for case in ("mlp", "cnn", "mnist-cnn"))
    assert f"come to {mlp} (mlp), {cnn} (cnn) and {mnist} (mnist-cnn) of one rank" in " ".join(
        PIPELINES.split()
    )


def test_the_tables_of_schedules():
    rows = [row for row in pipeline_rows("schedules") if "ratio" in row]
    pairs = {
        f"`{row['schedule']}` than `{row['against']}`, m = {row['micro_batches']}": row
        for row in rows
        if row["against"] != "1 rank"
    }
    shown = table(PIPELINES, "| faster than | measured | simulated |")
    assert shown == {
        name: [two(row["ratio"]), two(row["predicted_ratio"])] for name, row in pairs.items()
    }
    header = "| mlp, m = 8 | over 1 rank | simulated | bubble | simulated |"
    assert table(PIPELINES, header) == {
        f"`{row['schedule']}`": [
            *(two(row["ratio"]), two(row["predicted_ratio"])),
            *(f"{row['bubble']:.0%}", f"{row['predicted_bubble']:.0%}"),
        ]
        for row in rows
        if row["against"] == "1 rank"
    }


def test_the_other_figures_of_pipelines():
    def mb(row: Row) -> str:
        return f"{row['bytes'] / 1e6:.1f} MB"

    text = " ".join(PIPELINES.split())
    gpipe, one_f_one_b = pipeline_rows("memory")
    assert f"holds {mb(one_f_one_b)} of activations and buffers under `1f1b`" in text
    assert f"and {mb(gpipe)} under `gpipe`: {two(one_f_one_b['ratio'])} of it" in text
    four, eight = (row for row in pipeline_rows("recompute") if row["recompute"])
    assert f"keeps {two(four['ratio'])} of its speed with m = 4 and {two(eight['ratio'])}" in text
    assert f"is {two(four['predicted_ratio'])} and {two(eight['predicted_ratio'])}." in text
    assert f"down to {two(four['bytes_ratio'])} and {two(eight['bytes_ratio'])}." in text
    pipeline, data = pipeline_rows("bytes")
    assert f"sends {mb(pipeline)} a step" in text
    assert f"{mb(data)} with data parallelism" in text
    pipeline, data = (f"{row['seconds'] * 1e3:.0f} ms" for row in pipeline_rows("network"))
    assert f"takes {pipeline} as a pipeline and {data} with data parallelism" in text


def test_the_table_of_runs_that_survive() -> None:
    without, *others = (
        results(f"{name}-2-ranks-zen4") for name in ("faults", "backup", "checkpoints")
    )
    ratio = {(r["case"], r["subject"]): r["ratio"] for rows in others for r in rows}
    ratio |= {(row["case"], "ulfm"): row["ratio"] for row in without}
    shown = table(BENCHMARKS, "| 2 ranks | W1 | W2 | to repeat it |")
    subjects = {"ulfm": 3, "default": 4, "every 10": 3, "step": 3}
    for cells, (subject, digits) in zip(shown.values(), subjects.items(), strict=True):
        assert cells[:2] == [f"{ratio[case, subject]:.{digits}f}" for case in ("W1", "W2")]
    text = " ".join(BENCHMARKS.split())
    w1, w2 = (ms(row["seconds_without"]) for row in without)
    assert f"step without, which takes {w1} (W1) and {w2} (W2)" in text
    (large,) = (row for row in others[1] if row["case"] == "LARGE")
    speed, low, high = (two(large[key]) for key in ("ratio", "ratio_low", "ratio_high"))
    written = f"of {large['bytes'] / 1e6:.0f} MB is written at {speed} ({low} to {high})"
    assert written in text


def test_steps_and_scaling_of_models_of_sequences() -> None:
    rows = results("language-zen4")
    step = {(row["case"], row["subject"]): row for row in rows if row["section"] == "steps"}
    names = {"lstm": "LSTM(256) on numbers (32, 64)", "gpt-128": "gpt:4x4x128 (16, 128)"}
    names |= {"lstm-text": "Embedding, LSTM(256), Linear (32, 64)"}
    names |= {"gpt-384": "gpt:6x6x384 (8, 256)"}
    said = table(BENCHMARKS, "| | nnmpi | T | T* | T+ | compile | JAX | to best | goal |")
    for case, name in names.items():
        found = [step.get((case, s)) for s in ("nnmpi", "T", "T*", "T+", "compile", "JAX")]
        times = [f"{row['cpu_seconds'] * 1e3:,.0f}" if row else "" for row in found]
        cells = [cell.strip() for cell in said[name]]
        assert cells == [*times, f"**{two(step[case, 'nnmpi']['ratio to best'])}**", "0.8"], name
    layouts = ("dp 2", "tp 2", "tp 2, sequence parallel", "apart")
    ratios = {(row.get("case"), row.get("layout")): row.get("ratio") for row in rows}
    scaled = table(BENCHMARKS, "| | dp 2 | tp 2 | tp 2 and sequence parallel | apart |")
    for case in ("gpt-128", "gpt-384"):
        cells = scaled[names[case].split(" (")[0]]
        assert cells == [two(ratios[case, layout]) for layout in layouts]
    assert f"**{two(ratios['long', 'cp 2'])}** times as fast" in BENCHMARKS
    types = {(r["case"], r["dtype"], r["layout"]): r for r in results("language-2-ranks-zen3")}
    in_types = table(BENCHMARKS, "| | dp 2 | tp 2 | tp 2 and sequence parallel | pp 2 | apart |")
    layouts = ("dp 2", "tp 2", "tp 2, sequence parallel", "pp 2", "apart")
    for case in ("gpt-128", "gpt-384"):
        for dtype in ("float32", "bfloat16"):
            cells = in_types[f"{names[case].split(' (')[0]}, {dtype}"]
            assert cells == [two(types[case, dtype, layout]["ratio"]) for layout in layouts]


def test_steps_in_less_memory() -> None:
    head = "of what a step needs | ms a step | ratio | of processors | predicted"
    shown = PAGES["docs/memory.md"].split(head)[1].split("\n\n")[0].splitlines()[2:]
    said = [line.strip("| ").split(" | ") for line in shown]
    names = {"gpt": "gpt:4x4x128, 32", "gpt large": "gpt:4x4x128, 256"}
    names |= {"cifar-cnn": "cifar-cnn, 1,024", "mnist-cnn": "mnist-cnn, 4,096"}
    rows = {(r["case"], round(r["memory_bytes"])): r for r in results("beyond-memory-zen3")}
    found = []
    for case, name in names.items():
        of_case = (row for (of, _), row in rows.items() if of == case)
        for row in sorted(of_case, key=lambda r: -r["memory_bytes"]):
            memory, grown = (f"{row[key] / 1e6:,.0f} MB" for key in ("memory_bytes", "grown_bytes"))
            cells = [memory, "all", f"{row['seconds'] * 1e3:,.0f}", "1", "1", "1", grown]
            if "predicted_ratio" in row:
                ratio, low, high = (two(row[key]) for key in ("ratio", "ratio_low", "ratio_high"))
                share = two(row["memory_bytes"] / row["needed_bytes"])
                share += ", the least" * (case not in ("gpt", "gpt large"))
                of = f"{ratio} ({low} to {high})"
                cells[1:6] = share, cells[2], of, two(row["cpu_ratio"]), two(row["predicted_ratio"])
            found.append([name, *cells] if cells[1] == "all" else cells)
    assert said == found
