"""Settings of the gateway: precedence, unknown names, contradictions, and the page that lists them."""

import re

import pytest

from gateway.config import Settings, load
from octavo.environment import GATEWAY_NAMES, PREFIX, unknown_names
from octavo.settings import flag_of
from tests.architecture.sources import text_of

PAGE = "docs/gateway.md"


def test_every_setting_is_a_known_variable() -> None:
    assert set(GATEWAY_NAMES) == {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert unknown_names(dict.fromkeys(GATEWAY_NAMES, "")) == []


def test_flag_over_variable_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_SERVER", "there:1")
    monkeypatch.setenv("OCTAVO_MAX_PROMPTS", "7")
    settings = load(["--max-prompts", "9"])
    assert (settings.server, settings.max_prompts, settings.listen) == ("there:1", 9, "127.0.0.1:8000")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:8000"], ["0.0.0.0:8000", "--allow-insecure-bind"]),
        (["--listen", "unix:/tmp/x"], ["unix:/tmp/x", "must be host:port"]),
        (["--listen", "127.0.0.1:99999"], ["127.0.0.1:99999", "65535"]),
        (["--salt-by-api-key"], ["--salt-by-api-key", "--api-key-file"]),
        (["--max-body-bytes", "0"], ["--max-body-bytes", "0", "of at least 1"]),
        (["--log-level", "LOUD"], ["--log-level", "LOUD"]),
        (["--api-key", "x"], ["--api-key"]),
    ],
)
def test_bad_settings_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load(arguments, {})
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def test_the_page_lists_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(--[a-z-]+)` \| ?(.*?) \|", text_of(PAGE), re.MULTILINE))
    wanted = {
        flag_of(name): f"`{field.default}`" if field.default not in ("", None) else ""
        for name, field in Settings.model_fields.items()
    }
    assert rows == wanted
