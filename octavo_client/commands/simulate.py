"""`octavo simulate`: becomes the simulator, which runs the scheduler's core without a worker.

Owns nothing; every argument is the simulator's own. Invariant: the process is replaced, so signals and exit
code are the simulator's.
"""

from octavo_client.commands.modules import become


def replace_process(arguments: list[str]) -> int:
    """Never returns when the scheduler is installed."""
    return become("scheduler_svc.simulate", "scheduler", arguments)
