"""Spack's recipe, as packages/py_nnmpi/package.py in a repository of your own.

No version has been released, so Spack has nothing to download: name your checkout in an environment
of Spack's.

    spack develop --path DIR py-nnmpi@0.1.0
    spack add py-nnmpi ^openmpi             # or any MPI that Spack knows, or the cluster's
    spack install
"""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyNnmpi(PythonPackage):
    """Neural networks trained in parallel over MPI, in plain NumPy or CuPy."""

    license("MIT")

    version("0.1.0")

    variant("bfloat16", default=False, description="--dtype bfloat16")
    variant("plot", default=False, description="python -m nnmpi.plot")
    variant("text", default=False, description="--tokenizer")

    depends_on("c", type="build")  # kernels

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-numpy@2.1:", type=("build", "link", "run"))
    depends_on("py-safetensors@0.4.3:", type="run")
    depends_on("py-tqdm@4.60:", type="run")
    # which Spack builds for its MPI: that one's mpirun starts ranks
    depends_on("py-mpi4py@4:", type="run")
    depends_on("mpi", type="run")
    depends_on("py-ml-dtypes@0.5:", type="run", when="+bfloat16")
    depends_on("py-matplotlib@3.8:", type="run", when="+plot")
    depends_on("py-tokenizers@0.20:", type="run", when="+text")
