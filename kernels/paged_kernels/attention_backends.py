"""Who attends: the kernels' own attention, or flash-attn for decodes, for steps with prefill, or for both.

Owns the candidates, what is said of each, and the attention made of two; knows how none of them computes.
Invariant: a backend asked for by name runs or is refused with the reason of each package; "auto" takes only
what is installed, allowed, and was right in a trial on this device.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from paged_kernels import attention_choice, attention_trial, dispatch
from paged_kernels.attention_trial import Attend, Bounds, Case
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.dispatch import Choice, Kernels
from paged_kernels.flash_impl import packages
from paged_kernels.flash_impl.constraints import (
    FLASH2,
    FLASH4,
    AttentionShape,
    flash2_obstacle,
    flash4_obstacle,
)
from paged_kernels.flash_impl.flash2 import Flash2
from paged_kernels.flash_impl.flash4 import Flash4

_log = logging.getLogger(__name__)
ATTENTION_BACKENDS = ("auto", "triton", "flash", "torch")
PHASES = ("decode", "mixed")
OP = "paged_attention"


class Candidate(NamedTuple):
    """One way to attend, for steps of one token a row and for all others."""

    name: str
    decode: Attend
    mixed: Attend


class Trial(Protocol):
    """attention_trial.seconds_of, or numbers for a test."""

    def __call__(
        self,
        attend: Attend,
        cases: Sequence[Case],
        shape: AttentionShape,
        bounds: Bounds,
        reference: Attend | None,
    ) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class ByPhase:
    """paged_attention made of two."""

    decode: Attend
    mixed: Attend

    def __call__(
        self,
        query: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        cu_query_lens: Tensor,
        context_lens: Tensor,
        scale: float,
        max_query_len: int,
        max_context_len: int,
        out: Tensor | None = None,
        window: int = 0,
        softcap: float = 0.0,
        work: Any = None,
    ) -> Tensor:
        """As torch_impl.paged_attention; decides from the bound and the shapes alone. work: for decodes."""
        one_each = max_query_len == 1 and query.shape[0] == context_lens.shape[0]
        attend = self.decode if one_each else self.mixed
        return attend(
            *(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens),
            *(scale, max_query_len, max_context_len, out, window, softcap),
            **({} if work is None else {"work": work}),
        )


def with_attention(
    kernels: Kernels,
    backend: str,
    device: torch.device,
    shape: AttentionShape,
    bounds: Bounds,
    trial: Trial = attention_trial.seconds_of,
) -> Kernels:
    """The kernels with the attention of `backend`, one of ATTENTION_BACKENDS, and with its reasons.

    trial measures on the device. Raises BackendUnavailableError where a backend asked for by name cannot run.
    """
    if backend in ("triton", "torch"):
        return _by_name(kernels, backend, device, shape)
    present = dispatch.choice_of(kernels, OP).backend
    if backend == "auto" and device.type != "cuda":
        return kernels
    found, missing = _installed(shape)
    if not found:
        return _nobody(kernels, backend, missing)
    own = Candidate(present, kernels.paged_attention, kernels.paged_attention)
    contest = _Contest(own, present != "torch", shape, bounds, trial)
    times, failed = contest.run(found)
    missing |= failed
    able = [candidate for candidate in found if candidate.name in times]
    if not able:
        return _nobody(kernels, backend, missing)
    if backend == "auto":
        return contest.settle(kernels, [own, *able], times, missing)
    by_name = contest.settle(kernels, able, {one.name: times[one.name] for one in able}, missing)
    choices = [
        choice._replace(why=f"asked for by name; {choice.why}") if choice.op.startswith(OP) else choice
        for choice in by_name.choices
    ]
    return replace(by_name, choices=choices)


def _by_name(kernels: Kernels, backend: str, device: torch.device, shape: AttentionShape) -> Kernels:
    try:
        dtype = shape.query_dtype or shape.dtype
        other = dispatch.select(backend, device, dtype, shape.head_dim, shape.block_size, shape.dtype)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(str(error).removeprefix("kernel backend ")) from error
    found = replace(kernels, decode_work=other.decode_work)
    return _replaced(found, other.paged_attention, [Choice(OP, backend, "asked for by name")])


def _installed(shape: AttentionShape) -> tuple[list[Candidate], dict[str, str]]:
    """The packages that could run, and what keeps each of the others. Nothing is imported in vain."""
    found, missing = [], {}
    for name, (obstacle, load) in PACKAGES.items():
        why = obstacle(shape)
        try:
            if not why:
                found.append(load())
        except BackendUnavailableError as error:
            why = str(error)
        if why:
            missing[name] = why
    return found, missing


def _flash2() -> Candidate:
    flash = Flash2(packages.load_flash2())
    return Candidate(FLASH2, flash.decode, flash.mixed)


def _flash4() -> Candidate:
    flash = Flash4(packages.load_flash4())
    return Candidate(FLASH4, flash, flash)


PACKAGES: dict[str, tuple[Callable[[AttentionShape], str], Callable[[], Candidate]]] = {
    FLASH2: (flash2_obstacle, _flash2),
    FLASH4: (flash4_obstacle, _flash4),
}
"""What each package cannot run, and how it is loaded; loading raises BackendUnavailableError."""


Times = dict[str, dict[str, list[float]]]
"""Seconds by backend and phase, one number a case."""


class _Contest:
    """Runs the candidates in a trial and makes the fastest of each phase the attention."""

    def __init__(
        self, own: Candidate, is_timed: bool, shape: AttentionShape, bounds: Bounds, trial: Trial
    ) -> None:
        self._own, self._is_timed = own, is_timed
        self._shape, self._bounds, self._trial = shape, bounds, trial
        self._cases = {
            "decode": attention_trial.decode_cases(shape, bounds),
            "mixed": attention_trial.mixed_cases(shape, bounds),
        }

    def run(self, challengers: Sequence[Candidate]) -> tuple[Times, dict[str, str]]:
        """Seconds of the kernels' own attention (where it can be captured) and of every challenger that ran
        and was right; of the others, why not.
        """
        times: Times = {self._own.name: self._seconds(self._own, None)} if self._is_timed else {}
        failed = {}
        for candidate in challengers:
            try:
                times[candidate.name] = self._seconds(candidate, self._own)
            except packages.foreign_errors() as error:
                failed[candidate.name] = f"failed its trial: {packages.first_line(error)}"
                _log.warning("%s %s", candidate.name, failed[candidate.name])
        return times, failed

    def _seconds(self, candidate: Candidate, reference: Candidate | None) -> dict[str, list[float]]:
        decode = None if reference is None else reference.decode
        mixed = None if reference is None else reference.mixed
        return {
            "decode": self._trial(candidate.decode, self._cases["decode"], self._shape, self._bounds, decode),
            "mixed": self._trial(candidate.mixed, self._cases["mixed"], self._shape, self._bounds, mixed),
        }

    def settle(
        self, kernels: Kernels, able: Sequence[Candidate], times: Times, missing: dict[str, str]
    ) -> Kernels:
        by_name = {candidate.name: candidate for candidate in able}
        left_out = f"; {_listed(missing)}" if missing else ""
        choices, chosen = [], {}
        for phase in PHASES:
            seconds = {name: found[phase] for name, found in times.items()}
            name = attention_choice.choose(seconds, self._own.name)
            why = attention_choice.reason(seconds, [case.name for case in self._cases[phase]])
            choices.append(Choice(f"{OP}_{phase}", name, why + left_out))
            chosen[phase] = by_name[name]
        if chosen["decode"] is not self._own:
            kernels = replace(kernels, decode_work=None)
        return _replaced(kernels, ByPhase(chosen["decode"].decode, chosen["mixed"].mixed), choices)


def _listed(missing: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in missing.items())


def _nobody(kernels: Kernels, backend: str, missing: dict[str, str]) -> Kernels:
    """For "auto" the same kernels, which now say what keeps flash-attn from them."""
    if backend == "flash":
        raise BackendUnavailableError(f"flash cannot run: {_listed(missing)}")
    choices = [
        choice._replace(why=f"{choice.why}; {_listed(missing)}") if choice.op == OP else choice
        for choice in kernels.choices
    ]
    return replace(kernels, choices=choices)


def _replaced(kernels: Kernels, attend: Attend, choices: list[Choice]) -> Kernels:
    """The kernels with this attention; its choices stand where that of the old one stood."""
    all_choices: list[Choice] = []
    for choice in kernels.choices:
        all_choices += choices if choice.op == OP else [choice]
    return replace(kernels, paged_attention=attend, choices=all_choices)
