"""Plans graphs by the real cuDNN for a GPU that is only described: none is needed.

    python -m helpers.kernels.plans GPU < graphs

prints a JSON list: the engine and the bytes of each graph, or why there is none.

`graphs` are pickled. cuDNN asks the driver for what it never runs: `driver` makes one that has no
device.
"""

import json
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""

ANSWERS: dict[str, tuple[str, ...]] = {
    "return 0;": ("cuCtxGetCurrent", "cuKernelSetAttribute", "cuLibraryUnload", "cuModuleUnload"),
    "*p = (void *)16; return 0;": (
        *("cuKernelGetFunction", "cuLibraryGetKernel", "cuLibraryLoadData"),
        *("cuModuleGetFunction", "cuModuleLoadData"),
    ),
    "*(int *)p = 13000; return 0;": ("cuDriverGetVersion",),
    f"return {NO_DEVICE};": (
        *("cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuDeviceGet"),
        *("cuDeviceGetCount", "cuGetErrorName", "cuGetErrorString", "cuInit"),
        *("cuKernelGetAttribute", "cuLaunchCooperativeKernel", "cuLaunchKernel"),
        *("cuLaunchKernelEx", "cuLibraryLoadFromFile", "cuLinkAddData", "cuLinkComplete"),
        *("cuLinkCreate", "cuLinkDestroy", "cuOccupancyMaxPotentialClusterSize"),
        *("cuStreamGetCtx", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled"),
    ),
}
"""What functions of the driver do: code is loaded, and nothing runs."""

_SAID = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
GPUS: dict[str, dict[str, Any]] = {
    name: _SAID["common"] | own for name, own in _SAID.items() if name != "common"
}


def driver(folder: Path, compiler: str) -> None:
    """Writes libcuda.so.1 into a folder."""
    text = "".join(
        f"int {name}(void **p) {{ {answer} }}\n"
        for answer, names in ANSWERS.items()
        for name in names
    )
    (folder / "driver.c").write_text(text, encoding="utf-8")
    library = ("-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", folder / "driver.c")
    subprocess.run([compiler, *library], check=True)


def planned(what: Any, gpu: dict[str, Any], lib: Any) -> dict[str, Any]:
    """The engine of a graph, or why there is none."""
    from nnmpi.addons.cuda import cudnn

    properties = lib.create_device_properties(json.dumps(gpu))
    try:
        found = cudnn.build(what, device_property=properties, sm_version=gpu["deviceVer"] // 10)
    except (lib.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
        return {"why": f"{type(error).__name__}: {error}"}
    name = found.graph.get_plan_name_at_index(found.graph._plan_index)
    return {"engine": name.partition("_")[0], "workspace": found.workspace}


def main() -> None:
    from nnmpi.addons.cuda import cudnn

    lib, gpu = cudnn.library(), GPUS[sys.argv[1]]
    graphs = pickle.load(sys.stdin.buffer)
    print(json.dumps([planned(what, gpu, lib) for what in graphs]))


if __name__ == "__main__":
    main()
