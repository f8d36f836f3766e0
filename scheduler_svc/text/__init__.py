"""Text: tokenizer, incremental detokenizer, stop strings, chat template.

Owns everything between characters and token ids; does not know gRPC, the engine or the core. Invariant: a
streamed text and a text made at once are the same.
"""

from scheduler_svc.text.emitter import Emitted, StopMatch, TextEmitter
from scheduler_svc.text.model import TextModel, load_text_model

__all__ = ["Emitted", "StopMatch", "TextEmitter", "TextModel", "load_text_model"]
