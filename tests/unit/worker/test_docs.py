"""docs/worker.md says what the settings are."""

import re

from pydantic_core import PydanticUndefined

from gpu_worker.config import Settings
from tests.e2e.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "worker.md"


def test_every_setting_stands_on_the_page_with_its_default() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \| (\S+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    written = {flag.replace("-", "_"): default.strip("`") for flag, default in rows}
    actual = {
        name: "required" if field.default is PydanticUndefined else str(field.default)
        for name, field in Settings.model_fields.items()
    }
    assert written == actual
