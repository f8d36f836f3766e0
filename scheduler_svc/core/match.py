"""What of a waiting sequence's context is cached.

Owns the value that a look-up gives; looks nothing up. Invariant: it names blocks only until the next change
of the pool or the index.
"""

from dataclasses import dataclass, replace

import numpy as np

from scheduler_svc.core.plan import Int32Array


@dataclass(frozen=True, slots=True)
class Match:
    """What of a context is cached: whole blocks, then `count` tokens of block `source`, which must be copied.

    uid: the identity of the last whole block, or of the root.
    """

    blocks: Int32Array
    source: int
    count: int
    uid: int

    @property
    def used(self) -> Int32Array:
        """The blocks that are read."""
        return np.append(self.blocks, np.int32(self.source)) if self.count else self.blocks

    def whole_blocks(self) -> "Match":
        """The same without the copy."""
        return replace(self, count=0)
