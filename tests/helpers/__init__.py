"""Parts that several test files share: models, laws of ranks, jobs of mpirun, files of data."""
