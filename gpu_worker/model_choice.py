"""Whose code runs a model: our decoder, or transformers' around our attention.

Owns --model-impl; knows no weights. Invariant: transformers is imported only where it is needed, and a choice
made for the user is said with its reason.
"""

from dataclasses import replace

from gpu_worker.config import Settings
from gpu_worker.errors import ModelError, SettingsError, UnsupportedModelError
from gpu_worker.models.loader import ModelFiles
from gpu_worker.models.registry import ModelConfig, ModelShape, parse_config


def choose(settings: Settings, files: ModelFiles) -> tuple[ModelShape, str]:
    """The model's shape, and why transformers runs it: empty where our decoder does.

    Raises ModelError with the reasons of both where neither can, and SettingsError where the one that was
    asked for by name cannot.
    """
    why = "asked for by name"
    if settings.model_impl != "transformers":
        try:
            return _shortened(settings, parse_config(files.config, files.generation)), ""
        except UnsupportedModelError as error:
            if settings.model_impl == "octavo":
                raise SettingsError(str(error), "model_impl") from error
            why = f"the decoder lacks it: {error}"
    from gpu_worker.models import transformers_model

    try:
        return transformers_model.examine(files, settings.num_layers), why
    except ModelError as error:
        if settings.model_impl == "transformers":
            raise SettingsError(str(error), "model_impl") from error
        raise ModelError(f"{why.removeprefix('the decoder lacks it: ')}; and {error}") from error


def _shortened(settings: Settings, config: ModelConfig) -> ModelConfig:
    if settings.num_layers is None:
        return config
    if settings.num_layers > config.num_layers:
        raise SettingsError(f"must be at most {config.num_layers}, the model's layers", "num_layers")
    return replace(config, num_layers=settings.num_layers)
