"""The documentation as a site: built strictly, whole, and without the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import docs_site

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"[^>]*>")


def build(target: Path) -> subprocess.CompletedProcess[str]:
    """No proxy and no route out is needed; strict is mkdocs.yml's."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(target)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(target)
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_there(site: Path) -> None:
    """Links and anchors were checked by the strict build."""
    for page in PAGES:
        name = page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        assert (site / name).is_file()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    found = {
        target
        for page in site.rglob("*.html")
        for target in LOADED.findall(page.read_text(encoding="utf-8"))
        if target.startswith(("http:", "https:", "//"))
    }
    assert not found
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)


def test_lists_and_tables_after_a_text_are_drawn_as_such(site: Path) -> None:
    text = (site / "scheduler.html").read_text(encoding="utf-8")
    assert "<table>" in text
    assert not re.search(r"<p>[^<]*\n\|", text)
    assert not re.search(r"<p>[^<]*\n- ", text)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("[server.py](../scheduler_svc/server.py)", "`scheduler_svc/server.py`"),
        ("[the server](../scheduler_svc/server.py)", "the server (`scheduler_svc/server.py`)"),
        ("[limits](limits.md#a)", "[limits](limits.md#a)"),
        ("[there](https://example.org/x)", "[there](https://example.org/x)"),
    ],
)
def test_a_link_out_of_the_pages_becomes_a_path(given: str, made: str) -> None:
    assert docs_site.outward(given, ROOT / "docs" / "index.md") == made


def test_a_link_out_of_the_pages_to_nothing_stops_the_build() -> None:
    with pytest.raises(docs_site.LinkError, match=r"docs/index.md: ../no_such.py"):
        docs_site.outward("[x](../no_such.py)", ROOT / "docs" / "index.md")


def test_fences_are_left_alone() -> None:
    text = "a\n```\nb\n- c\n| d |\n```\n"
    assert docs_site.spaced(text) == "a\n\n```\nb\n- c\n| d |\n```\n"
