"""Transformers as the reference: its greedy tokens, and its logits along any given output.

Owns the loading of the reference models and a memory of what it answered; shares no code with the worker
but torch. Invariant: one output is computed once, however many settings give it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class Reference:
    """One model. `logits` is a `verdict.Logits`."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], npt.NDArray[np.float64]] = {}

    def logits(self, prompt: Sequence[int], output: Sequence[int]) -> npt.NDArray[np.float64]:
        """[len(output), vocab]: row i given the prompt and output[:i]."""
        key = (tuple(prompt), tuple(output))
        if key not in self._known:
            tokens = torch.tensor([[*prompt, *output[:-1]]])
            with torch.inference_mode():
                logits = self._model(tokens, logits_to_keep=len(output)).logits[0]
            self._known[key] = logits.double().numpy()
        return self._known[key]

    def generate(self, prompt: Sequence[int], length: int) -> list[int]:
        """Greedy output of exactly `length` tokens by transformers' own generate, EOS ignored."""
        tokens = torch.tensor([list(prompt)])
        with torch.inference_mode():
            output = self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        generated: list[int] = output[0, len(prompt) :].tolist()
        return generated


def from_folder(folder: Path, dtype: torch.dtype) -> Reference:
    """The reference of a folder with safetensors."""
    own = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return Reference(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **own))


def from_gguf_folder(folder: Path) -> Reference:
    """The float32 reference of a Llama folder whose weights are model.gguf, read by transformers' own
    GGUF code.
    """
    config = AutoConfig.from_pretrained(folder, attn_implementation="sdpa")
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = load_gguf_checkpoint(str(folder / "model.gguf"), return_tensors=True, model_to_load=model)[
        "tensors"
    ]
    left_out = model.load_state_dict(weights, strict=False, assign=True)
    assert left_out.missing_keys == ["lm_head.weight"]
    assert not left_out.unexpected_keys
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    return Reference(model.float())
