"""The worker's own errors: what a person must change, or what a plan did wrong.

Owns the exceptions that cross the worker's modules; knows no wire and no device. Invariant: each message
is one line that names the field, its value and the limit or the knob.
"""

from octavo.settings import RefusedSetting


class WorkerError(Exception):
    """The worker cannot start or go on; the message is for the person at the terminal."""


class ModelError(WorkerError):
    """The model folder is incomplete, contradicts itself, or asks for something not supported."""


class UnsupportedModelError(ModelError):
    """A well-formed model that our decoder cannot compute; other code may."""


class SettingsError(RefusedSetting, WorkerError):
    """A setting, or a combination of settings, cannot work here."""


class NoGrammarsError(WorkerError):
    """The model folder has no tokenizer that a grammar could be followed with."""


class PlanError(Exception):
    """A plan breaks the worker's bounds or the step order. `field` is the plan's field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
