"""The fused Triton operations as one value.

Owns the list; knows no launch. Invariant: importing it compiles nothing.
"""

from paged_kernels.dispatch import FusedKernels
from paged_kernels.triton_impl import experts, fused_linear, norms, rotate_store, sampling, step_inputs

FUSED = FusedKernels(
    add_rms_norm=norms.add_rms_norm,
    rotate_store=rotate_store.rotate_store,
    linear_for=fused_linear.linear_for,
    linear=fused_linear.linear,
    gated_linear=fused_linear.gated_linear,
    expert_blocks=experts.expert_blocks,
    embed_tokens=step_inputs.embed_tokens,
    gather_tables=step_inputs.gather_tables,
    draw_tokens=sampling.draw_tokens,
)
