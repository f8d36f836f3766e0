"""`octavo gateway`: becomes the HTTP gateway.

Owns nothing; every argument is the gateway's own. Invariant: the process is replaced, so signals and exit
code are the gateway's.
"""

from octavo_client.commands.modules import become


def replace_process(arguments: list[str]) -> int:
    """Never returns when the gateway is installed."""
    return become("gateway", "gateway", arguments)
