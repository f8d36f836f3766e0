"""The prefix index for those who follow it: all of it at one moment, then its changes.

Owns when changes are noted; knows neither readers nor how changes are noted. Invariant: a snapshot and the
changes taken after it are the index, across lost and new workers; nothing is noted unless followed.
"""

from collections.abc import Callable

from scheduler_svc.core.kv_events import BlocksStored, KvChange, KvLog
from scheduler_svc.core.lifecycle import Lifecycle


class KvFeed:
    """settle: brings the index up to date; called before each look."""

    def __init__(self, lifecycle: Lifecycle, settle: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._settle = settle

    def follow(self, follow: bool) -> None:
        """Whether changes are noted from now on."""
        self._lifecycle.kv_log = KvLog() if follow else None
        if self._lifecycle.session is not None:
            self._lifecycle.session.manager.index.log = self._lifecycle.kv_log

    def snapshot(self) -> BlocksStored | None:
        """All that the index holds; None without a worker."""
        self._settle()
        session = self._lifecycle.session
        return None if session is None else session.manager.index.snapshot()

    def take_changes(self) -> list[KvChange]:
        """What the index went through since the last call, in order."""
        log = self._lifecycle.kv_log
        if log is None:
            return []
        self._settle()
        return log.take()
