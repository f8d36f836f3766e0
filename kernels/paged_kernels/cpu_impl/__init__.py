"""The operations in C++ for CPUs, compiled on the machine that runs them.

Owns the sources, their compilation and the calls into them; knows neither sequences nor a service. Invariant:
what cannot be compiled or run here is said with its reason, and nothing is computed by another path unasked.
"""
