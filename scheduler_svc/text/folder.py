"""What a model folder says about text: stop ids, chat template, special tokens.

Owns the reading of config.json, generation_config.json, tokenizer_config.json and special_tokens_map.json;
runs no code from the folder and knows no tokenizer beyond id lookups. Invariant: a missing file or key is
fine, a malformed file is named in the error.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import FailedPrecondition

_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class FolderText:
    """chat_template: Jinja source or None. tool_template: another one for chats with tools, or None.

    special_tokens: template variables such as bos_token. sampling: generation_config.json's own values, by
    the names of SamplingOptions.
    """

    eos_token_ids: frozenset[int]
    chat_template: str | None
    special_tokens: Mapping[str, str]
    tool_template: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


def read_folder(model_dir: Path, id_of: Callable[[str], int | None]) -> FolderText:
    """Reads a folder's JSON; `id_of` finds a token's id. Raises FailedPrecondition (BAD_MODEL_FOLDER)."""
    config = read_json(model_dir / "config.json")
    generation = read_json(model_dir / "generation_config.json")
    tokenizer = read_json(model_dir / "tokenizer_config.json")
    named = read_json(model_dir / "special_tokens_map.json") | tokenizer
    tokens = {key: text for key in _TOKEN_KEYS if (text := _token_text(named.get(key))) is not None}
    text_config = config.get("text_config")
    nested = text_config if isinstance(text_config, dict) else {}
    eos = (
        _ids(config, "config.json") | _ids(nested, "config.json") | _ids(generation, "generation_config.json")
    )
    if "eos_token" in tokens and (own := id_of(tokens["eos_token"])) is not None:
        eos |= {own}
    default, with_tools = _chat_templates(model_dir, tokenizer.get("chat_template"))
    return FolderText(eos, default, tokens, with_tools, _sampling(generation))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty when the file is missing."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise _bad(f"{path.name}: not valid JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise _bad(f"{path.name}: holds a {type(loaded).__name__}, not an object")
    return loaded


def _ids(config: Mapping[str, Any], name: str) -> frozenset[int]:
    value = config.get("eos_token_id")
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if not all(type(token_id) is int for token_id in ids):
        raise _bad(f"{name}: eos_token_id is {value!r}, neither an id nor a list of ids")
    return frozenset(token_id for token_id in ids if token_id >= 0)


def _token_text(value: object) -> str | None:
    """A token is written as a string or as an AddedToken object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_templates(model_dir: Path, value: object) -> tuple[str | None, str | None]:
    """The template, and one for chats with tools: chat_template.jinja wins over tokenizer_config.json, whose
    value is a string, or a list with a "default" and perhaps a "tool_use".
    """
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8"), None
    if not isinstance(value, list):
        return value if isinstance(value, str) else None, None
    named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    default, with_tools = named.get("default"), named.get("tool_use")
    if not isinstance(default, str):
        return None, None
    return default, with_tools if isinstance(with_tools, str) else None


def _sampling(generation: Mapping[str, Any]) -> dict[str, float]:
    """The sampling values of generation_config.json. do_sample false is greedy, whatever stands beside it."""
    found: dict[str, float] = {}
    for name in _SAMPLING_KEYS:
        value = generation.get(name)
        if value is None:
            continue
        if type(value) not in (int, float):
            raise _bad(f"generation_config.json: {name} is {value!r}, not a number")
        found[name] = value
    return {"temperature": 0.0} if generation.get("do_sample") is False else found


def _bad(message: str) -> FailedPrecondition:
    return FailedPrecondition(message, reason="BAD_MODEL_FOLDER")
