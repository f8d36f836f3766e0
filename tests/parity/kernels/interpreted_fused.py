"""The fused Triton kernels under Triton's interpreter: a program, run by test_fused_interpreted.

Owns the cases and prints their errors as one JSON object; knows no GPU. Invariant: TRITON_INTERPRET=1 is set
before Triton is imported, which is why this does not run inside pytest.
"""

import json

import torch

from tests.fixtures.expert_cases import expert_errors
from tests.fixtures.fused_cases import fused_errors, step_input_mismatches
from tests.fixtures.part_cases import part_errors
from tests.fixtures.sampling_cases import filter_mismatches, likelihood_errors, sampling_mismatches

if __name__ == "__main__":
    torch.set_num_threads(1)
    errors = fused_errors(
        "cpu",
        torch.float32,
        heads=((4, 2, 16), (3, 1, 10)),
        sizes=((1, 24, 40), (3, 64, 48), (5, 40, 8), (18, 128, 32)),
    )
    errors |= part_errors("cpu", torch.float32) | expert_errors("cpu", torch.float32)
    wrong = sampling_mismatches("cpu", samples=7, vocab=5000) + step_input_mismatches("cpu")
    wrong += filter_mismatches("cpu", samples=16, vocab=6007)
    likelihoods = likelihood_errors("cpu")
    print(json.dumps({"errors": errors, "mismatches": wrong, "likelihoods": likelihoods}))
