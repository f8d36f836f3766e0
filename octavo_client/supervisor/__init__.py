"""Runs the worker and the scheduler as child processes and keeps them running.

Owns processes, their restarts and their end; imports neither service and speaks no gRPC. Invariant: no
child outlives the supervisor, however it dies.
"""
