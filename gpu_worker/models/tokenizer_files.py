"""The tokenizer of a GGUF file, written as tokenizer.json and tokenizer_config.json.

Owns the rebuilding of a byte-level BPE tokenizer from a GGUF's vocabulary and merges; knows no weights.
Invariant: a pre-tokenizer whose splitting rule is not known here is refused, never guessed.
"""

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from gpu_worker.errors import ModelError
from gpu_worker.models.gguf import GgufFile

CONTROL, USER_DEFINED = 3, 4
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer that the GGUF's metadata describes. Raises ModelError when it is not byte-level BPE."""
    kind = file.field("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(
            f"{file.path}: tokenizer model {kind!r} is not supported, only 'gpt2' (byte-level BPE)"
        )
    tokens: list[str] = file.field("tokenizer.ggml.tokens")
    merges = [tuple(line.split(" ", 1)) for line in file.field("tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.pre_tokenizer = _pre_tokenizer(str(file.field("tokenizer.ggml.pre")))
    tokenizer.decoder = decoders.ByteLevel()
    for token, token_type in zip(tokens, file.field("tokenizer.ggml.token_type"), strict=True):
        if token_type in (CONTROL, USER_DEFINED):
            special = token_type == CONTROL
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])
    return tokenizer


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name == "qwen2":
        split = pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, byte_level])
    raise ModelError(f"tokenizer.ggml.pre: {name!r} is not known; known are 'smollm', 'qwen2'")


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """The keys of tokenizer_config.json that Octavo and transformers read."""
    tokens: list[str] = file.field("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": bool(file.field("tokenizer.ggml.add_space_prefix", False)),
        "add_bos_token": bool(file.field("tokenizer.ggml.add_bos_token", False)),
        "model_max_length": int(file.config()["max_position_embeddings"]),
    }
    for key, name in (
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("pad_token", "padding"),
        ("unk_token", "unknown"),
    ):
        index = file.field(f"tokenizer.ggml.{name}_token_id")
        if index is not None:
            config[key] = tokens[index]
    template = file.field("tokenizer.chat_template")
    return config if template is None else config | {"chat_template": template}


def to_json(value: dict[str, Any]) -> str:
    """The text of a JSON file: indented, keys in their order, one final newline."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
