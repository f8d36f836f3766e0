"""The flight recorder: the core's inputs in a file, and the same decisions made again from it.

Owns the log's format, its writing and its replay; the core knows nothing of it. Invariant: the log holds all
that the core was told, in that order, so that a core made anew from it gives the same plans.
"""
