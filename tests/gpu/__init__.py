"""Tests that need a CUDA device. Owns parity there; knows no service. Invariant: all are marked gpu."""
