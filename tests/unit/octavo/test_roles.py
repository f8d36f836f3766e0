"""Which roles a model is asked with: OpenAI's, and those that its template knows."""

from pathlib import Path

import pytest

from octavo.roles import ROLES, roles_of

TEMPLATES = sorted((Path(__file__).parents[2] / "data" / "chat_templates").glob("*.jinja"))


@pytest.mark.parametrize(
    ("template", "more"),
    [
        ("{% if message['role'] == 'ipython' %}", ["ipython"]),
        ('{% if message.role == "observation" %}', ["observation"]),
        ("{% if role != 'model' %}", ["model"]),
        ("{% if 'critic' == message.role %}", ["critic"]),
        ("{% if message['role'] in ['user', 'judge', \"jury\"] %}", ["judge", "jury"]),
        ("{% if m.role not in ('user', 'judge') %}", ["judge"]),
        ("{{ message['role'] }} says 'alien' == x['content']", []),
        ("{{ messages }}", []),
    ],
)
def test_a_role_that_a_template_compares_with_is_one(template: str, more: list[str]) -> None:
    assert roles_of(template) == (*ROLES, *more)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_real_template_adds_few(path: Path) -> None:
    found = roles_of(path.read_text(encoding="utf-8"))
    assert found[: len(ROLES)] == ROLES
    assert len(found) <= len(ROLES) + 3, found
    assert "alien" not in found
