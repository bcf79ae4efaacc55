"""MPI ranks that continue when other ranks are lost: `mpirun --with-ft ulfm` of Open MPI 5."""
