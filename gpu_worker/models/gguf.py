"""GGUF files: their metadata as a Hugging Face config, their tensors dequantised under Hugging Face names.

Owns the mapping of names and the undoing of llama.cpp's layout; knows no decoder. Invariant: what leaves
here is what the original checkpoint held, within the rounding of the quantisation.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from gpu_worker.errors import ModelError
from gpu_worker.models.config_json import positive
from gpu_worker.models.gguf_reader import QuickReader, contents

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_EMBEDDING = "token_embd.weight"
ROPE_FACTORS = "rope_freqs.weight"
_ROW_BYTES = 64 << 10
_AHEAD = 2


class GgufFile:
    """One GGUF file, mapped into memory. Raises ModelError when it is not GGUF or of an unknown
    architecture.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._reader = QuickReader(path)
        except (OSError, ValueError, LookupError, ArithmeticError) as error:
            raise ModelError(f"{path}: not a readable GGUF file ({error})") from error
        self.path = path
        self.architecture = str(self.field("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ModelError(
                f"{path}: architecture {self.architecture!r} is not supported; supported are {known}"
            )
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def field(self, key: str, default: Any = None) -> Any:
        """A metadata value as plain Python, or the default."""
        found = self._reader.fields.get(key)
        return default if found is None else contents(found)

    def config(self) -> dict[str, Any]:
        """The file's metadata as the keys of a Hugging Face config.json."""
        heads, hidden = self._count("attention.head_count"), self._count("embedding_length")
        if _EMBEDDING not in self._tensors:
            raise ModelError(f"{self.path}: no tensor {_EMBEDDING}")
        config: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self._own("feed_forward_length"),
            "num_hidden_layers": self._own("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._own("attention.head_count_kv", heads),
            "head_dim": self._own("attention.key_length", hidden // heads),
            "max_position_embeddings": self._own("context_length"),
            "rms_norm_eps": float(str(np.float32(self._own("attention.layer_norm_rms_epsilon")))),
            "rope_theta": self._own("rope.freq_base", 10000.0),
            "vocab_size": int(self._tensors[_EMBEDDING].shape[-1]),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self._tensors,
        }
        for key in ("bos", "eos"):
            config[f"{key}_token_id"] = self.field(f"tokenizer.ggml.{key}_token_id")
        config["pad_token_id"] = self.field("tokenizer.ggml.padding_token_id")
        scaling = self._rope_scaling()
        return config if scaling is None else config | {"rope_scaling": scaling}

    def _own(self, key: str, default: Any = None) -> Any:
        value = self.field(f"{self.architecture}.{key}", default)
        if value is None:
            raise ModelError(f"{self.path}: metadata {self.architecture}.{key} is missing")
        return value

    def _count(self, key: str) -> int:
        name, value = f"{self.architecture}.{key}", self._own(key)
        try:
            return positive({name: value}, name)
        except ModelError as error:
            raise ModelError(f"{self.path}: metadata {error}") from None

    def _rope_scaling(self) -> dict[str, Any] | None:
        if ROPE_FACTORS in self._tensors:
            return {"rope_type": "factors", "factors": self._values(ROPE_FACTORS).tolist()}
        kind = self.field(f"{self.architecture}.rope.scaling.type", "none")
        if kind == "none":
            return None
        scaling = {"rope_type": kind, "factor": self._own("rope.scaling.factor")}
        original = self.field(f"{self.architecture}.rope.scaling.original_context_length")
        return scaling | ({"original_max_position_embeddings": original} if original else {})

    def names(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name and shape of every weight. An unknown tensor keeps its own name."""
        shapes = {name: tuple(int(size) for size in reversed(t.shape)) for name, t in self._tensors.items()}
        return {_hf_name(name): shape for name, shape in shapes.items() if name != ROPE_FACTORS}

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Each weight under its Hugging Face name, float32, in file order; the next ones are dequantised
        meanwhile.
        """
        names = [name for name in self._tensors if name != ROPE_FACTORS]
        with ThreadPoolExecutor(max_workers=_AHEAD) as pool:
            running = deque(pool.submit(self._ready, name) for name in names[:_AHEAD])
            for place, name in enumerate(names):
                values = running.popleft().result()
                if place + _AHEAD < len(names):
                    running.append(pool.submit(self._ready, names[place + _AHEAD]))
                yield _hf_name(name), values

    def _ready(self, name: str) -> npt.NDArray[np.float32]:
        return self._unpermuted(name, self._values(name))

    def _values(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._tensors[name]
        try:
            values = dequantize(_wide(tensor), tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: {name} has type {tensor.tensor_type.name}, which cannot be read"
            ) from error
        shape = tuple(int(size) for size in reversed(tensor.shape))
        return np.asarray(values, dtype=np.float32).reshape(shape)

    def _unpermuted(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Undoes llama.cpp's reordering of rotary pairs in q and k (architecture llama only)."""
        part = name.split(".")[-2]
        if self.architecture != "llama" or part not in ("attn_q", "attn_k"):
            return values
        heads = self._own("attention.head_count")
        if part == "attn_k":
            heads = self._own("attention.head_count_kv", heads)
        paired = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
        return paired.swapaxes(1, 2).reshape(values.shape)


def _wide(tensor: Any) -> Any:
    """A tensor's quantised bytes in rows of about _ROW_BYTES, for gguf takes 16 rows at a time."""
    data = tensor.data
    if data.dtype != np.uint8:
        return data
    size = GGML_QUANT_SIZES[tensor.tensor_type][1]
    blocks = data.size // size
    rows = max(1, data.size // _ROW_BYTES)
    while blocks % rows:
        rows -= 1
    return data.reshape(rows, -1)


def _hf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{suffix}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{suffix}"
    return name
