"""Chats of (role, content) pairs, as the text layer takes them."""

from collections.abc import Iterable

from scheduler_svc.limits import ChatPrompt


def chat_of(turns: Iterable[tuple[str, str]], add_generation_prompt: bool = True) -> ChatPrompt:
    return ChatPrompt(
        tuple({"role": role, "content": content} for role, content in turns), add_generation_prompt
    )
