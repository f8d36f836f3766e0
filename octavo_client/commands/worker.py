"""`octavo worker`: becomes a worker.

Owns nothing; every argument is the service's own. Invariant: the process is replaced, so signals and exit
code are the service's.
"""

from octavo_client.commands.modules import become


def replace_process(arguments: list[str]) -> int:
    """Never returns when the service is installed."""
    return become("gpu_worker", "worker", arguments)
