"""Where the result of a flash-attn call goes.

Owns the copy into a tensor of the caller's; knows no call. Invariant: nothing waits for the device.
"""

from torch import Tensor


def given_or(out: Tensor | None, result: Tensor) -> Tensor:
    """The result, copied into `out` where one was given: the packages have no such argument."""
    return result if out is None else out.copy_(result)
