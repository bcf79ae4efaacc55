"""All fuzzers by name: the tests try a sample of each, scripts/soak runs them for an hour."""

import fuzz_checkpoints
import fuzz_collectives
import fuzz_command_line
import fuzz_data_files
import fuzz_deaths
import fuzz_folders
import fuzz_kills
import fuzz_layouts
import fuzz_lost_ranks
import fuzz_saved_models
import fuzz_toml
from fuzzing import Fuzzer

FUZZERS: dict[str, Fuzzer] = {
    "command-line": Fuzzer(fuzz_command_line.case, 60, 30),
    "toml": Fuzzer(fuzz_toml.case, 400, 10),
    "data-files": Fuzzer(fuzz_data_files.case, 200, 10),
    "folders": Fuzzer(fuzz_folders.case, 200, 10),
    "saved-models": Fuzzer(fuzz_saved_models.case, 20, 20),
    "checkpoints": Fuzzer(fuzz_checkpoints.case, 20, 60),
    "checkpoints-mpi": Fuzzer(fuzz_checkpoints.mpi_case, 1, 120),
    "collectives": Fuzzer(fuzz_collectives.case, 8, 60),
    "collectives-mpi": Fuzzer(fuzz_collectives.mpi_case, 1, 120),
    "deaths": Fuzzer(fuzz_deaths.case, 2, 120),
    "layouts": Fuzzer(fuzz_layouts.case, 80, 120),
    "lost-ranks": Fuzzer(fuzz_lost_ranks.case, 1, 90),
    "kills": Fuzzer(fuzz_kills.case, 1, 240),
}
