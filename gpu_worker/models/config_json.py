"""Reading a config.json: the file, whole numbers, stop ids.

Owns the checks of single values; knows no architecture. Invariant: what cannot be read is a ModelError that
names the file or the key.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelError

MAX_CONFIG_BYTES = 4 << 20
LARGEST_NUMBER = (1 << 31) - 1
"""Of a size or a count in a config: what an int32 of a kernel can hold."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of at most MAX_CONFIG_BYTES. Raises ModelError naming the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def positive(
    config: Mapping[str, Any], key: str, default: int | None = None, most: int = LARGEST_NUMBER
) -> int:
    """A whole number from 1 to most; the default where the key is missing or null. Raises ModelError."""
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{key}: {value!r:.60} is not a positive whole number")
    if value > most:
        raise ModelError(f"{key}: {value!r:.60} is above {most}")
    return value


def whole(config: Mapping[str, Any], key: str, default: int) -> int:
    """A whole number from 0; the default where the key is missing or null. Raises ModelError."""
    return 0 if config.get(key) == 0 else positive(config, key, default)


def number(config: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    """A positive number; the default where the key is missing or null. Raises ModelError."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ModelError(f"{key}: {value!r:.60} is not a positive number")
    return float(value)


def eos_ids(*sources: Mapping[str, Any]) -> tuple[int, ...]:
    """All of the sources' eos_token_id, ascending. Raises ModelError for what is no token id."""
    ids: list[Any] = []
    for source in sources:
        value = source.get("eos_token_id")
        if value is not None:
            ids += value if isinstance(value, list) else [value]
    for value in ids:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ModelError(f"eos_token_id: {value!r:.60} is not a token id")
    return tuple(sorted(set(ids)))


def stored_dtype(config: Mapping[str, Any]) -> str:
    """The dtype that the config names, as torch spells it."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def refuse_code(config: Mapping[str, Any]) -> None:
    """Raises ModelError when the config asks for Python code of the model folder."""
    if config.get("auto_map"):
        raise ModelError(
            "auto_map: code from a model folder is never run; remove the key if the model needs none"
        )
