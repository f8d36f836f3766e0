"""The production core over a recorded or public trace, with a worker model on a virtual clock.

Owns the traces, the event loop, what is measured and how it is shown; knows neither gRPC nor a GPU, and
decides nothing that the core decides. Invariant: the same trace and settings give the same numbers, to the
last digit.

To read it: `trace` (requests and their contents), `readers` (formats), `worker_model` (what a step takes),
`simulator` (the event loop), `collector` (measuring), `results` (the JSON), `table` and `plots` (showing),
`arguments` and `command` (the command line).
"""
