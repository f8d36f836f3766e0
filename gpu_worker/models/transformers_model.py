"""Any causal language model of transformers, run by its own code around our paged attention.

Owns what is asked of such a model before and after its weights are loaded; knows neither rows nor the pool,
which hide behind `StepAttention`. Invariant: a model that would be served wrongly is refused with the reason:
every layer must call attention exactly once, through one of the ways of attention_hook.
"""

import json
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from gpu_worker.attention import AttentionCall, StepAttention
from gpu_worker.errors import ModelError, SettingsError
from gpu_worker.models.attention_hook import IMPLEMENTATIONS, Way, calls_go_to, mask_for
from gpu_worker.models.config_json import eos_ids, refuse_code, stored_dtype
from gpu_worker.models.loader import GgufSource, ModelFiles
from gpu_worker.models.registry import ModelShape

PROBE_TOKENS = 3
_WAYS: dict[Way, str] = {"interface": "attention interface", "sdpa": "call of scaled_dot_product_attention"}
FOREIGN_ERRORS = (
    RuntimeError, TypeError, ValueError, KeyError, AttributeError, IndexError, AssertionError,
    ArithmeticError, StrictDataclassError,
)  # fmt: skip
"""What foreign model code raises when it is run in a way that it does not support."""
transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class TransformersConfig(ModelShape):
    """A model's shape as a dry run found it. way: how it reaches our attention. content: its config, JSON."""

    way: Way
    content: str


def examine(files: ModelFiles, num_layers: int | None = None) -> TransformersConfig:
    """The shape of a folder's model, from a dry run without weights. Raises ModelError with the reason."""
    config = _read_config(files, num_layers)
    text = config.get_text_config(decoder=True)
    way, calls = _find_way(config, text.num_hidden_layers)
    first = calls[0]
    _check_windows(text, calls)
    return TransformersConfig(
        architecture=str(files.config["architectures"][0]),
        vocab_size=int(text.vocab_size),
        hidden_size=int(text.hidden_size),
        intermediate_size=int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        num_layers=len(calls),
        num_heads=first.query.shape[1],
        num_kv_heads=first.key.shape[1],
        head_dim=first.key.shape[2],
        eos_token_ids=eos_ids(files.config, files.generation),
        stored_dtype=stored_dtype(files.config),
        context_limit=int(getattr(text, "max_position_embeddings", None) or 2048),
        attention_scale=first.scale,
        attention_softcap=first.softcap,
        windows=tuple(call.window for call in calls),
        way=way,
        content=json.dumps(config.to_dict(), sort_keys=True, default=str),
    )


def _read_config(files: ModelFiles, num_layers: int | None) -> Any:
    refuse_code(files.config)
    if isinstance(files.source, GgufSource):
        raise ModelError("GGUF files are served by the decoder alone; transformers needs safetensors")
    if not files.path.is_dir():
        raise ModelError(f"{files.path}: transformers needs a folder")
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(files.path), local_files_only=True, trust_remote_code=False
        )
    except (*FOREIGN_ERRORS, OSError) as error:
        raise ModelError(f"transformers cannot read the config: {_line(error)}") from error
    names = files.config.get("architectures") or []
    mapping: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    known = mapping.get(type(config), None)
    if config.is_encoder_decoder:
        raise ModelError(f"architectures: {names} reads a second text through an encoder")
    if known is None or [known.__name__] != names:
        raise ModelError(f"architectures: {names} is no causal language model of transformers")
    if files.config.get("quantization_config"):
        raise ModelError("quantization_config: quantised safetensors are not supported")
    text = config.get_text_config(decoder=True)
    if getattr(text, "add_cross_attention", False):
        raise ModelError("add_cross_attention: attention to another text is not supported")
    if getattr(text, "alibi", False):
        raise ModelError("alibi: attention with a bias by distance is not supported")
    text.pad_token_id = None  # no step is padded; models with one look for it in every step
    _refuse_rope(getattr(text, "rope_parameters", None) or {})
    if num_layers is not None:
        if num_layers > text.num_hidden_layers:
            raise SettingsError(f"must be at most {text.num_hidden_layers}, the model's layers", "num_layers")
        text.num_hidden_layers = num_layers
    return config


def _refuse_rope(parameters: dict[str, Any]) -> None:
    for given in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if given.get("rope_type") in ("dynamic", "longrope"):
            raise ModelError(
                f"rope_type: {given['rope_type']} turns by the longest sequence of a batch in transformers"
            )


def _check_windows(text: Any, calls: list[AttentionCall]) -> None:
    """What a mask alone would have told must have come with the calls: ours sees no mask."""
    kinds = getattr(text, "layer_types", None) or []
    odd = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if odd:
        raise ModelError(f"layer_types: {odd} are not supported")
    if getattr(text, "attention_chunk_size", None):
        raise ModelError("attention_chunk_size: attention within chunks of the context is not supported")
    window = getattr(text, "sliding_window", None) or 0
    expected = [window if kind == "sliding_attention" else 0 for kind in kinds] or [window] * len(calls)
    if any(wanted != call.window for wanted, call in zip(expected, calls, strict=False)):
        raise ModelError(
            f"sliding_window: {window} is meant for layers that give their attention {calls[0].window}"
        )


def _find_way(config: Any, layers: int) -> tuple[Way, list[AttentionCall]]:
    """The first way by which every layer calls attention once, and the calls."""
    reasons = []
    for way in IMPLEMENTATIONS:
        try:
            calls = _dry_run(config, way)
        except ModelError as error:
            reasons.append(str(error))
            continue
        except FOREIGN_ERRORS as error:
            if "does not support an attention implementation" not in str(error):
                reasons.append(f"a dry run failed: {_line(error)}")
            continue
        if not calls:
            reasons.append(f"it has no attention that goes through transformers' {_WAYS[way]}")
        elif len(calls) != layers:
            reasons.append(f"attention was called {len(calls)} times in {layers} layers ({way})")
        elif len({(c.query.shape, c.key.shape) for c in calls}) > 1:
            reasons.append("its layers have different numbers or sizes of heads")
        elif calls[0].query.shape[0] != PROBE_TOKENS or calls[0].query.shape[1] % calls[0].key.shape[1]:
            reasons.append(f"odd heads: {list(calls[0].query.shape)} over {list(calls[0].key.shape)}")
        else:
            return way, calls
    raise ModelError(
        "transformers cannot serve it over paged attention: " + "; ".join(dict.fromkeys(reasons))
    )


def _dry_run(config: Any, way: Way) -> list[AttentionCall]:
    """The attention calls of one pass over a model without values."""
    calls: list[AttentionCall] = []

    def record(call: AttentionCall) -> Tensor:
        calls.append(call)
        return torch.empty_like(call.query)

    with torch.device("meta"), torch.no_grad():
        maker: Any = transformers.AutoModelForCausalLM
        model = maker.from_config(
            config, dtype=torch.bfloat16, attn_implementation=IMPLEMENTATIONS[way]
        ).eval()
        places = torch.zeros(PROBE_TOKENS, dtype=torch.int64)
        with calls_go_to(record, way):
            _hidden(model, places, places, way)
    return calls


def _hidden(model: Any, input_ids: Tensor, positions: Tensor, way: Way) -> Tensor:
    """The decoder's last hidden states [T, hidden] of flat input_ids and positions [T]."""
    output = _decoder_of(model)(
        input_ids=input_ids[None],
        position_ids=positions[None],
        attention_mask=mask_for(way, input_ids.shape[0], input_ids.device),
        use_cache=False,
    )
    hidden: Tensor = output[0][0]
    return hidden


def _decoder_of(model: Any) -> Any:
    """The part of a model between token ids and the states that its head takes."""
    decoder = model.get_decoder()
    return model.base_model if decoder is model else decoder


class _States(BaseModelOutputWithPastAndCrossAttentions):
    """What a decoder returns, for heads of every kind; mixtures of experts ask for router_logits."""

    router_logits = None


class TransformersModel:
    """A loaded model with the surface of a decoder."""

    def __init__(
        self, model: Any, config: TransformersConfig, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.model = model
        self.config = config
        self.device = device
        self.dtype = dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters and buffers, shared ones counted once."""
        held = [*self.model.parameters(), *self.model.buffers()]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values())

    def forward(self, input_ids: Tensor, positions: Tensor, attend: StepAttention) -> Tensor:
        """The hidden states [T, hidden] that the head takes; input_ids and positions [T] int64."""
        number = -1

        def answer(call: AttentionCall) -> Tensor:
            nonlocal number
            number += 1
            return attend.attend(number, call)

        with calls_go_to(answer, self.config.way):
            return _hidden(self.model, input_ids, positions, self.config.way)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] of hidden states [S, hidden], by whatever the model does behind its layers."""
        decoder = _decoder_of(self.model)
        output = _States(last_hidden_state=hidden[None])
        decoder.forward = lambda *args, **kwargs: output
        try:
            places = torch.zeros((1, hidden.shape[0]), dtype=torch.int64, device=hidden.device)
            logits: Tensor = self.model(input_ids=places, use_cache=False).logits[0]
        finally:
            del decoder.forward
        return logits


def load(
    files: ModelFiles, config: TransformersConfig, device: torch.device, dtype: torch.dtype
) -> TransformersModel:
    """The model with its weights, or random ones without a source. Raises ModelError for what is missing."""
    hf_config = _read_config(files, config.num_layers)
    maker: Any = transformers.AutoModelForCausalLM
    own = {
        "dtype": dtype,
        "attn_implementation": IMPLEMENTATIONS[config.way],
        "experts_implementation": "eager",
    }
    if files.source is None:
        torch.manual_seed(0)
        return TransformersModel(maker.from_config(hf_config, **own).eval().to(device), config, device, dtype)
    try:
        model, info = maker.from_pretrained(
            str(files.path),
            config=hf_config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **own,
        )
    except (*FOREIGN_ERRORS, OSError) as error:
        raise ModelError(f"transformers cannot load the weights: {_line(error)}") from error
    for kind in ("missing_keys", "unexpected_keys"):
        if info[kind]:
            raise ModelError(f"weights {kind.removesuffix('_keys')}: {', '.join(sorted(info[kind])[:8])}")
    return TransformersModel(model.eval().to(device), config, device, dtype)


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300]
