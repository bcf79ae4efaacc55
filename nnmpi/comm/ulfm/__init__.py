"""Ranks of MPI that outlive others: `mpirun --with-ft ulfm` of Open MPI 5."""
