"""Pipeline parallelism: the stages of a rank, and the measured costs by which a model is cut."""
