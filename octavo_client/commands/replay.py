"""`octavo replay`: becomes the replay of a scheduler's log.

Owns nothing; every argument is the replay's own. Invariant: the process is replaced, so its exit code is the
replay's.
"""

from octavo_client.commands.modules import become


def replace_process(arguments: list[str]) -> int:
    """Never returns when the service is installed."""
    return become("scheduler_svc.recorder", "scheduler", arguments)
