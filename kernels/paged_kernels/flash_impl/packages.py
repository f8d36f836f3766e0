"""Finds flash-attn 2 and flash-attn-4, which are both imported as `flash_attn`.

Owns their import and what they raise; knows no arithmetic. Invariant: one that is not there, or that does not
load, is a BackendUnavailableError with the reason, and the other can still be used.
"""

import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from torch import Tensor

from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.kernel_cache import cache_folder

_log = logging.getLogger(__name__)
FLASH4_KEEPS, FLASH4_FOLDER = (
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
)
"""flash-attn-4's own variables, which it reads when it is imported."""
PackageCall = Callable[..., Tensor]
_USUAL_ERRORS = (
    *(RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ImportError),
    OSError,
)


class Flash2Calls(NamedTuple):
    """The two calls of flash-attn 2 that know block tables."""

    flash_attn_varlen_func: PackageCall
    flash_attn_with_kvcache: PackageCall


def load_flash2() -> Flash2Calls:
    """Imports flash-attn 2. Raises BackendUnavailableError where it is not installed or does not load."""
    module = _imported("flash_attn")
    try:
        return Flash2Calls(module.flash_attn_varlen_func, module.flash_attn_with_kvcache)
    except AttributeError:
        raise BackendUnavailableError("not installed") from None


def load_flash4() -> PackageCall:
    """Imports flash-attn-4's flash_attn_varlen_func. Raises BackendUnavailableError as load_flash2 does.

    What it compiles is kept on disk for the next start, as its own variables say where they are set.
    """
    _join_folders(_imported("flash_attn"))
    _keep_compiled()
    call: PackageCall = _imported("flash_attn.cute.interface").flash_attn_varlen_func
    return call


def foreign_errors() -> tuple[type[Exception], ...]:
    """What the packages raise when they cannot run something; flash-attn-4's compiler has its own."""
    compiler = sys.modules.get("cutlass.base_dsl.common")
    own = () if compiler is None else (compiler.DSLBaseError,)
    return (*_USUAL_ERRORS, *own)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise BackendUnavailableError("not installed") from None
        raise BackendUnavailableError(f"does not load: it needs {error.name}") from error
    except foreign_errors() as error:
        raise BackendUnavailableError(f"does not load: {first_line(error)}") from error


def _keep_compiled() -> None:
    folder = cache_folder() / "flash-attn-4"
    if FLASH4_KEEPS in os.environ:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _log.warning("flash-attn-4 compiles anew at every start: %s", error)
        return
    os.environ[FLASH4_KEEPS] = "1"
    os.environ.setdefault(FLASH4_FOLDER, str(folder))


def _join_folders(package: ModuleType) -> None:
    """flash-attn 2 has an __init__.py and flash-attn-4 none: in a folder of its own it would be hidden."""
    path = getattr(package, "__path__", None)
    if isinstance(path, list):
        package.__path__ = pkgutil.extend_path(path, package.__name__)


def first_line(error: BaseException) -> str:
    """An error's first line, or its name where it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
