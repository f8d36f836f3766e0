"""The real worker with one fault: in its third step one token's K and V go into the null block.

Owns the fault; everything else is `gpu_worker`. Invariant: exactly one slot of one step is wrong, in
every layer, and nothing else is.
"""

import sys
from dataclasses import replace
from itertools import count

from gpu_worker.__main__ import main
from gpu_worker.input_buffers import InputBuffers, StepTensors
from gpu_worker.wire import Plan

FAULTY_STEP = 3
_right_upload = InputBuffers.upload
_steps = count(1)


def upload(self: InputBuffers, plan: Plan) -> StepTensors:
    """As the real one, but for the first token of the faulty step."""
    step = _right_upload(self, plan)
    if next(_steps) != FAULTY_STEP:
        return step
    slots = step.slot_mapping.clone()
    limits = self._table.limits
    slots[0] = limits.num_blocks * limits.block_size
    return replace(step, slot_mapping=slots)


if __name__ == "__main__":
    InputBuffers.upload = upload  # type: ignore[method-assign]
    sys.exit(main())
