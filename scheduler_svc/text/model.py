"""The text side of a model: encode, chat, decode.

Owns the tokenizer of a model folder, its piece tables and its chat renderer; does not know requests, streams
or the core. Invariant: everything is fixed at load, so encode and decode may be called from any thread.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from octavo.errors import FailedPrecondition, InvalidArgument
from scheduler_svc.text.chat import Chat, ChatRenderer
from scheduler_svc.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from scheduler_svc.text.emitter import TextEmitter
from scheduler_svc.text.folder import FolderText, read_folder
from scheduler_svc.text.pieces import PieceTable, read_rules

Int32Array = npt.NDArray[np.int32]


class TextModel:
    """eos_token_ids: the union of the folder's sources. vocab_size: the tokenizer's highest token id + 1."""

    def __init__(self, tokenizer: Tokenizer, folder: FolderText) -> None:
        self._tokenizer = tokenizer
        self._tables = _tables(tokenizer)
        self._chat = _renderer(folder.chat_template, folder)
        self._tool_chat = _renderer(folder.tool_template, folder)
        self.sampling = folder.sampling
        """What generation_config.json says about sampling; applied only when somebody asks for it."""
        self.eos_token_ids = folder.eos_token_ids
        self.special_tokens = tuple(
            (token_id, token.content)
            for token_id, token in sorted(tokenizer.get_added_tokens_decoder().items())
            if token.special
        )
        """(id, text) of those that a grammar can name."""
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def has_chat_template(self) -> bool:
        return self._chat is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> Int32Array:
        """[T] int32. Seconds for megabytes, without the interpreter lock: long texts belong in a thread."""
        # `Tokenizer.encode` gives the same ids, but holds the lock and finds offsets too.
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return np.array(encodings[0].ids, np.int32)

    def encode_chat(self, chat: Chat) -> Int32Array:
        """[T] int32 of a chat through the folder's template, which writes special tokens.

        Raises FailedPrecondition (NO_CHAT_TEMPLATE, BAD_CHAT_TEMPLATE) and InvalidArgument (a role that is
        none; CHAT_TEMPLATE_REFUSED with the template's own message, CHAT_TEMPLATE_LIMIT,
        NO_TOOLS_IN_TEMPLATE).
        Waits for the rendering process: belongs in a thread.
        """
        text = self.render_chat(chat)
        if chat.tools and self._leaves_tools_out(chat, text):
            field = "chat.tools_json"
            message = f"{field}: this model's chat template takes no tools"
            raise InvalidArgument(message, reason="NO_TOOLS_IN_TEMPLATE", field=field)
        return self.encode(text, add_special_tokens=False)

    def _leaves_tools_out(self, chat: Chat, text: str) -> bool:
        """Whether the model would be told nothing of the tools of a chat that renders as `text`."""
        try:
            return self._renderer_of(chat).render(chat, with_tools=False) == text
        except InvalidArgument:
            return False

    def render_chat(self, chat: Chat) -> str:
        """The prompt text of a chat; errors as in `encode_chat`."""
        return self._renderer_of(chat).render(chat)

    def _renderer_of(self, chat: Chat) -> ChatRenderer:
        if self._chat is None:
            raise FailedPrecondition(
                "chat: the model folder has no chat template", reason="NO_CHAT_TEMPLATE", field="chat"
            )
        return self._chat if chat.tools is None or self._tool_chat is None else self._tool_chat

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; unknown ids add nothing. The same text as any stream of the same ids."""
        detokenizer = self._detokenizer(skip_special_tokens, continues=False)
        return detokenizer.push([int(token_id) for token_id in ids]) + detokenizer.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for inside a text, special tokens too; perhaps a part of a character."""
        if self._tables is None:
            return str(self._tokenizer.decode([token_id], skip_special_tokens=False)).encode()
        return self._tables[False][token_id]

    def new_emitter(
        self,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        *,
        min_tokens: int = 0,
        continues: bool = False,
    ) -> TextEmitter:
        """The text side of a new sequence. stop: non-empty strings, searched for once min_tokens are out.

        continues: the text goes on from a prompt, so a sentencepiece-like tokenizer keeps the space of its
        first word (no difference for byte-level tokenizers). False for chat, whose answer is a text of its
        own.
        """
        return TextEmitter(self._detokenizer(skip_special_tokens, continues), stop, include_stop, min_tokens)

    def close(self) -> None:
        """Ends the rendering processes, if there are any. A later chat starts them again."""
        for renderer in (self._chat, self._tool_chat):
            if renderer is not None:
                renderer.close()

    def _detokenizer(self, skip_special_tokens: bool, continues: bool) -> Detokenizer:
        if self._tables is None:
            return WindowDetokenizer(self._tokenizer, skip_special_tokens)
        return ByteDetokenizer(self._tables[skip_special_tokens], continues)


def load_text_model(model_dir: Path) -> TextModel:
    """Reads tokenizer.json and the JSON files beside it; no torch, no code of the folder.

    Raises FailedPrecondition (BAD_MODEL_FOLDER) when there is no tokenizer.json or a file cannot be read.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise FailedPrecondition(
            f"tokenizer.json: not in the model folder {model_dir}", reason="BAD_MODEL_FOLDER"
        )
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except ValueError as error:
        raise FailedPrecondition(f"tokenizer.json: {error}", reason="BAD_MODEL_FOLDER") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextModel(tokenizer, read_folder(model_dir, tokenizer.token_to_id))


def _renderer(template: str | None, folder: FolderText) -> ChatRenderer | None:
    return ChatRenderer(template, folder.special_tokens) if template else None


def _tables(tokenizer: Tokenizer) -> tuple[PieceTable, PieceTable] | None:
    """The tables for skip_special_tokens False and True, or None when the decoder needs whole texts."""
    rules = read_rules(json.loads(tokenizer.to_str())["decoder"])
    if rules is None:
        return None
    added = tokenizer.get_added_tokens_decoder()
    special = frozenset(token_id for token_id, token in added.items() if token.special)
    return PieceTable(tokenizer, rules, frozenset()), PieceTable(tokenizer, rules, special)
