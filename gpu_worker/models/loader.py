"""Weights from a model folder or file into a decoder: safetensors (sharded too), GGUF, or random.

Owns the finding, checking and copying of weights; knows no serving. Invariant: a decoder leaves here
complete, or the load stops and names every weight that is missing, unexpected or of another shape.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpu_worker.errors import ModelError, SettingsError
from gpu_worker.models.config_json import MAX_CONFIG_BYTES, read_json
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.gguf import GgufFile

_log = logging.getLogger(__name__)
INDEX = "model.safetensors.index.json"
_NAMED_AT_MOST = 8
_LONGEST_NAME = 255
_PROGRESS_SECONDS = 1.0
Shape = tuple[int, ...]


class WeightSource(Protocol):
    """Where weights come from. `names` gives each weight's shape; `weights` yields them on the CPU."""

    files: tuple[Path, ...]

    def names(self) -> dict[str, Shape]: ...

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...


class SafetensorsSource:
    """One or several safetensors files. Raises ModelError for an unreadable file or a name stored twice."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self.files = files

    def names(self) -> dict[str, Shape]:
        found: dict[str, Shape] = {}
        for path in self.files:
            with _opened(path) as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            twice = found.keys() & shapes.keys()
            if twice:
                raise ModelError(f"{path}: {_some(twice)} also in another file")
            found |= shapes
        return found

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for path in self.files:
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, file.get_tensor(name)


def _opened(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error


class GgufSource:
    """A GGUF file, dequantised to float32 tensor by tensor."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.files: tuple[Path, ...] = (file.path,)

    def names(self) -> dict[str, Shape]:
        return self._file.names()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, values in self._file.weights():
            yield name, torch.from_numpy(values if values.flags.writeable else values.copy())


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """An opened model: its config (Hugging Face keys), generation config, and weights (None: config only)."""

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    source: WeightSource | None


def open_model(path: Path, with_weights: bool = True) -> ModelFiles:
    """Opens a folder or a .gguf file. Raises SettingsError for neither, ModelError where parts lack."""
    if path.is_file() and path.suffix == ".gguf":
        file = GgufFile(path)
        return ModelFiles(path, file.config(), {}, GgufSource(file))
    if not path.is_dir():
        raise SettingsError("is neither a folder nor a .gguf file", "model")
    generation_path = path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    source = _folder_source(path) if with_weights else None
    config_path = path / "config.json"
    if isinstance(source, GgufSource) and not config_path.is_file():
        return ModelFiles(path, GgufFile(source.files[0]).config(), generation, source)
    return ModelFiles(path, read_json(config_path), generation, source)


def _folder_source(folder: Path) -> WeightSource:
    index = folder / INDEX
    if index.is_file():
        return SafetensorsSource(_indexed_files(index))
    files = tuple(sorted(folder.glob("*.safetensors")))
    if files:
        return SafetensorsSource(files)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return GgufSource(GgufFile(ggufs[0]))
    if ggufs:
        raise ModelError(f"{folder}: {len(ggufs)} .gguf files; name one of them as the model")
    raise ModelError(f"{folder}: no weights (*.safetensors or *.gguf)")


def _indexed_files(index: Path) -> tuple[Path, ...]:
    if index.stat().st_size > 16 * MAX_CONFIG_BYTES:
        raise ModelError(f"{index}: larger than {16 * MAX_CONFIG_BYTES} bytes")
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{index}: not JSON ({error})") from error
    weight_map = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index}: no weight_map object")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or len(name) > _LONGEST_NAME:
            raise ModelError(f"{index}: {name!r:.60} is not a file name of this folder")
    names = sorted(set(weight_map.values()))
    for name in names:
        if not (index.parent / name).is_file():
            raise ModelError(f"{index}: {name} is not in the folder")
    return tuple(index.parent / name for name in names)


def load(decoder: Decoder, source: WeightSource) -> None:
    """Copies every weight into the decoder, with progress in the log. Raises ModelError as the module
    says.
    """
    wanted, found = decoder.destinations(), source.names()
    _check_names(decoder, wanted, found)
    total, done, last = len(wanted), 0, time.monotonic()
    for name, values in source.weights():
        if name not in wanted:
            continue
        wanted[name].copy_(values)
        done += 1
        if time.monotonic() - last >= _PROGRESS_SECONDS or done == total:
            last = time.monotonic()
            _log.info("loading weights: %d of %d", done, total)
    decoder.finish_loading()


def _check_names(decoder: Decoder, wanted: Mapping[str, Tensor], found: Mapping[str, Shape]) -> None:
    missing = wanted.keys() - found.keys()
    if missing:
        raise ModelError(f"weights missing: {_some(missing)}")
    unexpected = {name for name in found.keys() - wanted.keys() if not _ignorable(decoder, name)}
    if unexpected:
        raise ModelError(f"weights unexpected: {_some(unexpected)}")
    for name, view in wanted.items():
        shape = (
            tuple(view.shape[-1:]) if name.endswith(("q_norm.weight", "k_norm.weight")) else tuple(view.shape)
        )
        if found[name] != shape:
            raise ModelError(
                f"{name}: shape {list(found[name])} in the file, the config asks for {list(shape)}"
            )


def _ignorable(decoder: Decoder, name: str) -> bool:
    """A head stored beside a tied embedding, and the rotary buffers of old checkpoints."""
    return (decoder.config.tie_embeddings and name == "lm_head.weight") or name.endswith(
        "rotary_emb.inv_freq"
    )


def _some(names: set[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - _NAMED_AT_MOST} more" if len(listed) > _NAMED_AT_MOST else ""
    return ", ".join(listed[:_NAMED_AT_MOST]) + rest


def load_dummy(decoder: Decoder, seed: int = 0) -> None:
    """Random weights from the config alone: normal with deviation 0.02, norms 1, biases 0."""
    norms = 0 if decoder.config.norm_offset else 1
    generator = torch.Generator(decoder.device).manual_seed(seed)
    for name, view in decoder.destinations().items():
        if "norm" in name:
            view.fill_(norms)
        elif name.endswith("bias"):
            view.zero_()
        else:
            view.normal_(0, 0.02, generator=generator)
    decoder.finish_loading()


def content_hash(files: tuple[Path, ...]) -> str:
    """sha256 over the sha256 of each file, in hex; files are read in parallel."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = list(pool.map(_file_digest, files))
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
