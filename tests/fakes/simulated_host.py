"""The host blocks of a simulated worker, and transfers out that take their time.

Owns the content of host blocks and the transfers under way; knows no row. Invariant: a transfer out reads the
device only when it is completed, so that a block rewritten too early shows in the tokens.
"""

import numpy as np

from tests.fakes.plan_like import Int32Array

Columns = tuple[np.ndarray, ...]
"""The arrays [num_blocks, block_size] that make up a pool's content."""


class BadTransfer(Exception):
    """A pair that no worker may obey; `field` is the plan's field."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(message)
        self.field = field_name


class SimulatedHost:
    """num_blocks host blocks beside the device arrays `device`."""

    def __init__(self, num_blocks: int, device: Columns) -> None:
        self.num_blocks = num_blocks
        self._device = device
        self._host = tuple(np.zeros((num_blocks, *column.shape[1:]), column.dtype) for column in device)
        self._written: set[int] = set()
        self._under_way: dict[int, Int32Array] = {}

    @property
    def under_way(self) -> list[int]:
        """Steps whose transfers out are not completed, oldest first."""
        return sorted(self._under_way)

    def clear(self) -> None:
        """A new session: no transfer is under way, and no content is anybody's."""
        self._under_way.clear()
        self._written.clear()

    def swap_out(self, step_id: int, pairs: Int32Array) -> None:
        """Begins a transfer; it is carried out by `complete`."""
        flat = pairs.reshape(-1, 2)
        self._check("swap_out_pairs", device=flat[:, 0], host=flat[:, 1])
        busy = [host for pairs in self._under_way.values() for host in pairs[:, 1].tolist()]
        if len(np.unique(flat[:, 1])) != len(flat) or not set(busy).isdisjoint(flat[:, 1].tolist()):
            raise BadTransfer("swap_out_pairs", f"a host block is written to twice: {flat.tolist()}")
        if len(flat):
            self._under_way[step_id] = flat.copy()
            self._written -= set(flat[:, 1].tolist())

    def complete(self, step_id: int) -> None:
        """Carries out the transfers of a step."""
        pairs = self._under_way.pop(step_id)
        for device, host in zip(self._device, self._host, strict=True):
            host[pairs[:, 1]] = device[pairs[:, 0]]
        self._written |= set(pairs[:, 1].tolist())

    def swap_in(self, pairs: Int32Array) -> None:
        """Copies host blocks to the device, at once."""
        flat = pairs.reshape(-1, 2)
        self._check("swap_in_pairs", device=flat[:, 1], host=flat[:, 0])
        unwritten = set(flat[:, 0].tolist()) - self._written
        if unwritten:
            raise BadTransfer("swap_in_pairs", f"host blocks {sorted(unwritten)} hold nothing, or not yet")
        if len(np.unique(flat[:, 1])) != len(flat):
            raise BadTransfer("swap_in_pairs", f"a block is written to twice: {flat.tolist()}")
        for pairs_out in self._under_way.values():
            if np.isin(flat[:, 1], pairs_out[:, 0]).any():
                raise BadTransfer("swap_in_pairs", "a target is still being swapped out")
        for device, host in zip(self._device, self._host, strict=True):
            device[flat[:, 1]] = host[flat[:, 0]]

    def _check(self, name: str, device: Int32Array, host: Int32Array) -> None:
        for what, blocks, limit in (
            ("block", device, len(self._device[0])),
            ("host block", host, self.num_blocks),
        ):
            for block in blocks.tolist():
                if not 0 <= block < limit:
                    raise BadTransfer(name, f"{what} {block} of {limit}")
