"""Kernels over a paged KV pool: tensors in, tensors out.

Owns storing, attending to, copying and zeroing blocks of K and V, each with a plain PyTorch and a Triton
implementation. Knows neither a sequence nor a service. Invariant: all implementations of an operation accept
the same arguments and agree within the dtype's rounding.
"""
