"""docs/api.md against the parameters over HTTP."""

import re

from gateway.bodies import ChatBody, CompletionBody
from tests.architecture.sources import text_of

PAGE = text_of("docs/api.md")
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `")]
ALONE = PAGE.split("## Over HTTP alone")[1].split("\n## ")[0]
VALUES = {"auto", "default", "top_k", "v", "completions", "chat"}


def test_every_parameter_over_http_is_on_the_page_and_no_other() -> None:
    served = set(CompletionBody.model_fields) | set(ChatBody.model_fields)
    named = {name for row in ROWS for name in re.findall(r"`([a-z_]+)", row[1])}
    named |= set(re.findall(r"`([a-z_]+)", ALONE))
    assert served - named == set()
    assert named - served - VALUES - {"id"} == set()
