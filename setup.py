"""The compiled kernels: one extension module for each set of instructions, from the same sources.

They are optional: where there is no compiler, the installation succeeds and NumPy computes. All
metadata is in setup.cfg, where extension modules cannot be named.

NNMPI_BUILD=avx2, say, builds one set alone, NNMPI_BUILD=native the best one that this processor
has, NNMPI_BUILD=none nothing. Without it all are built, since a wheel may be for other machines.
"""

import os
import platform
import runpy
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from itertools import chain

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

NATIVE = "nnmpi/arrays/native"
EXACT = ["-std=c11", "-O3", "-ffp-contract=off", "-g0", "-fno-math-errno", "-fno-trapping-math"]
"""Numbers as NumPy computes them: no product and sum is rounded once instead of twice."""

ONE_PATH = ["-fno-thread-jumps"]
"""Else GCC computes all of what follows a limit, as of e^x, twice: below the limit and above it."""

AVX512 = [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mf16c",
    "-mprefer-vector-width=512",
]
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": AVX512,
    "avx512bf16": [*AVX512, "-mavx512bf16"],
}
if sys.platform == "linux":  # which gives a process leave to use tiles
    X86["amx"] = [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"]
SETS: dict[str, list[str]] = {
    "baseline": [],  # of arm64: NEON
    **(X86 if platform.machine() in ("x86_64", "AMD64") else {}),
}


STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Kernels of the stable ABI: a wheel of Python 3.11 is for all later ones too. Builds of Python
without a GIL have none before 3.15; they get kernels of their own."""

LIMITED = ("Py_LIMITED_API", "0x030B0000")
MOST_COMPILERS = 8  # at a time, each of which takes up to 200 MB


def chosen(in_place: bool) -> list[str]:
    """The sets to build. In a checkout `native` also renews those that are there, which would be of
    older sources; a wheel gets none of them."""
    wanted = os.environ.get("NNMPI_BUILD", "")
    if wanted in ("", "none", *SETS):
        return {"": [*SETS], "none": []}.get(wanted, [wanted])
    if wanted != "native":
        names = ", ".join(SETS)
        raise ValueError(f"NNMPI_BUILD is {wanted!r}: set it to native, none or one of {names}")
    best = runpy.run_path(f"{NATIVE}/instructions.py")["available"]()[0]
    return [name for name in SETS if name == best or (in_place and glob(f"{NATIVE}/_{name}.*"))]


def extensions() -> list[Extension]:
    try:
        import numpy
    except ImportError:
        return []
    sources = sorted(glob(f"{NATIVE}/*.c"), reverse=True)  # the one that takes longest is first
    return [
        Extension(
            f"nnmpi.arrays.native._{name}",
            sources,
            include_dirs=[numpy.get_include()],
            define_macros=[("MODULE", f"_{name}"), *[LIMITED] * STABLE],
            py_limited_api=STABLE,
            extra_compile_args=[*EXACT, *ONE_PATH, *SETS[name]],
            depends=[*sorted(glob(f"{NATIVE}/*.h")), "setup.py"],
            optional=True,
        )
        for name in chosen(in_place=True)
    ]


class BuildKernels(build_ext):
    """Compiles the sources of a set side by side. Of an editable installation it builds no set
    that is newer than all that it is made from."""

    def finalize_options(self) -> None:
        super().finalize_options()
        wanted = [f"nnmpi.arrays.native._{name}" for name in chosen(bool(self.inplace))]
        self.extensions = [ext for ext in self.extensions if ext.name in wanted]

    def run(self) -> None:
        """Removes sets that an earlier build has left beside these: a wheel would contain them."""
        wanted = [os.path.basename(self.get_ext_filename(ext.name)) for ext in self.extensions]
        for path in glob(f"{self.build_lib}/{NATIVE}/_*.*"):
            if os.path.basename(path) not in (*wanted, "__init__.py"):
                os.remove(path)
        super().run()

    def build_extensions(self) -> None:
        compile = self.compiler.compile
        compilers = ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_COMPILERS))

        def side_by_side(sources: list[str], **options: object) -> list[str]:
            objects = compilers.map(lambda source: compile([source], **options), sources)
            return [*chain.from_iterable(objects)]

        self.compiler.compile = side_by_side
        with compilers:
            super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        there = self.get_ext_filename(ext.name)
        if self.inplace:  # a file of one Python alone, of an earlier build, would be imported first
            for path in glob(f"{NATIVE}/{ext.name.rpartition('.')[2]}.*"):
                if os.path.basename(path) != os.path.basename(there):
                    os.remove(path)
        newest = max(map(os.path.getmtime, [*ext.sources, *ext.depends]))
        if not (self.editable_mode and os.path.exists(there) and os.path.getmtime(there) > newest):
            super().build_extension(ext)


class BuildCourse(build_py):
    """Adds the course to the package as `nnmpi/assignments`: what students may have and what grades
    them, without solutions and mutants. An editable installation uses `course/` itself."""

    def run(self) -> None:
        super().run()
        kinds = ("classroom/*.py", "*/checks.py", "*/adapters.py", "*/README.md")
        for file in chain.from_iterable(glob(f"course/{kind}") for kind in kinds):
            if not self.editable_mode:
                into = f"{self.build_lib}/nnmpi/assignments/{os.path.relpath(file, 'course')}"
                self.mkpath(os.path.dirname(into))
                self.copy_file(file, into)


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernels, "build_py": BuildCourse},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
