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

COMMON = {
    "driverVer": 13000,
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "pciDeviceId": 0,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "cudaDeviceId": 0,
    "smCountOrigin": 0,
    "oversizedSharedMemoryPerBlock": 0,
}
GPUS: dict[str, dict[str, Any]] = {
    "H200": {
        **COMMON,
        "deviceName": "NVIDIA H200",
        "deviceVer": 900,
        "multiProcessorCount": 132,
        "smClockRateKHz": 1980000,
        "memClockRateKHz": 3201000,
        "memoryBusWidth": 6144,
        "l2CacheSize": 62914560,
        "maxSharedMemoryPerBlockOptin": 232448,
        "totalGlobalMem": 150754820096,
    },
    "A100": {
        **COMMON,
        "deviceName": "NVIDIA A100-SXM4-80GB",
        "deviceVer": 800,
        "multiProcessorCount": 108,
        "smClockRateKHz": 1410000,
        "memClockRateKHz": 1593000,
        "memoryBusWidth": 5120,
        "l2CacheSize": 41943040,
        "maxSharedMemoryPerBlockOptin": 166912,
        "totalGlobalMem": 85097971712,
    },
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
    from nnmpi.arrays.cuda import cudnn

    properties = lib.create_device_properties(json.dumps(gpu))
    try:
        found = cudnn.build(what, device_property=properties, sm_version=gpu["deviceVer"] // 10)
    except (lib.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
        return {"why": f"{type(error).__name__}: {error}"}
    name = found.graph.get_plan_name_at_index(found.graph._plan_index)
    return {"engine": name.partition("_")[0], "workspace": found.workspace}


def main() -> None:
    from nnmpi.arrays.cuda import cudnn

    lib, gpu = cudnn.library(), GPUS[sys.argv[1]]
    graphs = pickle.load(sys.stdin.buffer)
    print(json.dumps([planned(what, gpu, lib) for what in graphs]))


if __name__ == "__main__":
    main()
