"""Writes the files of all dashboards, or with --check says which are stale."""

import sys

from deploy.dashboards.every import DASHBOARDS, FOLDER


def main() -> int:
    stale = [d for d in DASHBOARDS if _now(d.file_name) != d.text()]
    for dashboard in stale:
        sys.stdout.write(f"{dashboard.file_name}\n")
        if "--check" not in sys.argv:
            (FOLDER / dashboard.file_name).write_text(dashboard.text(), encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv)


def _now(name: str) -> str:
    file = FOLDER / name
    return file.read_text(encoding="utf-8") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
