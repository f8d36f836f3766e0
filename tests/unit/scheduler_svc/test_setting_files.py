"""Files that settings name: looked at beforehand, and every obstacle in a few words."""

import errno
import os
from pathlib import Path

import pytest

from octavo_client.errors import BadArgument
from octavo_client.supervisor.stack import find_model
from scheduler_svc.setting_files import require_writable, token_in


def test_what_can_be_begun_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "older").write_text("x")
    for path in (tmp_path / "new", tmp_path / "older", Path("/dev/null")):
        require_writable(path)
    assert (tmp_path / "older").read_text(encoding="utf-8") == "x"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "Is a directory"),
        ("missing/log", "No such file or directory"),
        ("file/log", "Not a directory"),
    ],
)
def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"^cannot be written: {why}$"):
        require_writable(tmp_path / name)


def test_a_folder_that_may_not_be_looked_into_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as somebody to whom nothing is forbidden."""

    def forbidden(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", forbidden)
    monkeypatch.setattr(Path, "is_file", forbidden)
    with pytest.raises(ValueError, match=r"^cannot be written: Permission denied$"):
        require_writable(tmp_path / "log")
    with pytest.raises(BadArgument, match=f"^--model {tmp_path}: Permission denied$"):
        find_model(str(tmp_path))


def test_a_token_is_long_enough_and_can_be_typed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert token_in("") == ""
    file.write_text("  0123456789abcdef\n")
    assert token_in(str(file)) == "0123456789abcdef"
    for content in ("short", "0123456789abcde\u00e9", "0123456789 \x07 abcdef"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="must hold 16 printable ASCII characters or more"):
            token_in(str(file))
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        token_in(str(tmp_path / "missing"))
