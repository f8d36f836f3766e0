"""What the site's builder does with a page: a hook of mkdocs (mkdocs.yml).

Owns the difference between a page as it is read in the repository and on the site, and the places of pages
that mkdocs.yml does not name; knows no page. Invariant: every page has a place, and a link out of docs/ names
a file that is there, or the build fails.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
_FENCE = re.compile(r"\s*```")


class LinkError(Exception):
    """A link names nothing."""


def on_config(config: Any) -> Any:
    """The decisions as a section of their own, and under More whatever page has no place yet."""
    docs = ROOT / "docs"
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    named = set(re.findall(r"[\w./-]+\.md", str(config["nav"])))
    decisions = sorted(
        (page for page in pages if page.startswith("adr/")), key=lambda page: page[4].isdigit()
    )
    more = [page for page in pages if page not in named and page not in decisions]
    config["nav"] += [{"Decisions": decisions}, *([{"More": more}] if more else [])]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text, made for the site."""
    path = ROOT / "docs" / page.file.src_uri
    return spaced(outward(markdown, path))


def outward(markdown: str, path: Path) -> str:
    """Links to files of the repository outside docs/ become their text and path: the site has no sources.

    Raises LinkError for one that is not there.
    """

    def replaced(match: re.Match[str]) -> str:
        image, text, target, _anchor = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        found = (path.parent / target).resolve()
        if not found.exists():
            raise LinkError(f"{path.relative_to(ROOT)}: {target} does not exist")
        if image or found.is_relative_to(ROOT / "docs"):
            return match[0]
        place = found.relative_to(ROOT).as_posix()
        named = text.strip("`")
        return f"`{place}`" if place.endswith(named) else f"{text} (`{place}`)"

    return _LINK.sub(replaced, markdown)


def spaced(markdown: str) -> str:
    """An empty line before each list and table that follows a text, as the site's Markdown needs it."""
    out: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        before = out[-1] if out else ""
        if not fenced and before.strip() and _begins_anew(line, before):
            out.append("")
        if _FENCE.match(line):
            fenced = not fenced
        out.append(line)
    return "\n".join(out) + "\n"


def _begins_anew(line: str, before: str) -> bool:
    if line.startswith("|"):
        return not before.startswith("|")
    if _ITEM.match(line) and not line.startswith(" "):
        return not _ITEM.match(before) and not before.startswith(" ")
    return _FENCE.match(line) is not None and not _FENCE.match(before)
