"""docs/models.md says what the registry and the tests' lists say."""

from tools import model_docs


def test_the_tables_are_up_to_date() -> None:
    text = model_docs.PAGE.read_text(encoding="utf-8")
    assert model_docs.page(text) == text, "python -m tools.model_docs --write"
    assert model_docs.OWN in text
    assert model_docs.THEIRS in text
