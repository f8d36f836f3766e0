"""docs/scheduler.md against the code."""

import re

from octavo.settings import flag_of
from scheduler_svc.config import Settings
from tools.scheduler_docs import PAGE, page


def test_the_table_of_settings_is_that_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "python -m tools.scheduler_docs --write"


def test_every_flag_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE.read_text(encoding="utf-8"))) - {"--help"}
    assert named == {flag_of(name) for name in Settings.model_fields}
