"""Every OCTAVO_* name that a program of this repository reads.

Owns the list and the check for misspelt names; knows no setting's meaning. Invariant: each program's
settings are a subset of its tuple here (a test of that program compares them), so that a name unknown here
is unknown everywhere.
"""

import re
from collections.abc import Iterable, Mapping

PREFIX = "OCTAVO_"

SCHEDULER_NAMES: tuple[str, ...] = ()
WORKER_NAMES: tuple[str, ...] = ()
CLIENT_NAMES: tuple[str, ...] = ("OCTAVO_SERVER",)

_KUBERNETES = re.compile(
    r"^OCTAVO_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$"
)


def unknown_names(environ: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """OCTAVO_* names of an environment that no program reads, sorted; what Kubernetes injects for a service
    is let pass.
    """
    known = {*SCHEDULER_NAMES, *WORKER_NAMES, *CLIENT_NAMES, *more}
    return sorted(
        name
        for name in environ
        if name.startswith(PREFIX) and name not in known and not _KUBERNETES.match(name)
    )
