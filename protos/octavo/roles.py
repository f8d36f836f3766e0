"""Who may speak in a chat.

Owns the roles that every model is asked with; knows no template. Invariant: a role that is none of them is
taken only where the model's chat template names it.
"""

import re

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""OpenAI's. A template may refuse one, or write it like any other."""
_COMPARED = re.compile(
    r"""\brole\b['"\])\s]*(?:==|!=)\s*['"]([\w-]+)['"]|['"]([\w-]+)['"]\s*(?:==|!=)[\w\s.(\['"]*\brole\b"""
)
_LISTED = re.compile(r"""\brole\b['"\])\s]*(?:not\s+)?in\s*[\[(]([^\])]*)[\])]""")
_QUOTED = re.compile(r"""['"]([\w-]+)['"]""")


def roles_of(template: str) -> tuple[str, ...]:
    """The roles of a model: ROLES, and what its template compares a role with."""
    found = [left or right for left, right in _COMPARED.findall(template)]
    for listed in _LISTED.findall(template):
        found += _QUOTED.findall(listed)
    return tuple(dict.fromkeys((*ROLES, *found)))
