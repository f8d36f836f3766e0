"""The real worker on a device that breaks at its first step, as CUDA does after an illegal access.

Owns the fault; everything else is `gpu_worker`. Invariant: the device stays broken.
"""

import sys
from typing import NoReturn

from gpu_worker.__main__ import main
from gpu_worker.device import CpuDevice
from gpu_worker.model_runner import ModelRunner


def launch(self: ModelRunner, plan: object) -> NoReturn:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore about it")


if __name__ == "__main__":
    ModelRunner.launch = launch  # type: ignore[method-assign]
    CpuDevice.is_poisoned_by = lambda self, error: True  # type: ignore[method-assign]
    sys.exit(main())
