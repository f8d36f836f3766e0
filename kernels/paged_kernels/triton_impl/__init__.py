"""The operations as Triton kernels, for CUDA devices (and, on tiny shapes, Triton's interpreter).

Owns the kernels and their launch shapes; knows neither a sequence nor which backend was chosen. Invariant: no
launch reads anything back from the device.
"""
