"""Transports: how bytes move between ranks (MPI, fault-tolerant MPI, threads)."""
