"""Prometheus text into numbers.

Owns the parsing of one scrape; knows no metric. Invariant: a sample's key is its name with its labels, as
written.
"""

import urllib.request


def exposition(url: str) -> str:
    """The text of one scrape."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def scrape(url: str) -> dict[str, float]:
    """Every sample of the address, `name{labels}` to value."""
    return parsed(exposition(url))


def parsed(text: str) -> dict[str, float]:
    """The samples of one scrape's text."""
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def total(samples: dict[str, float], name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(value for key, value in samples.items() if key.split("{")[0] == name)
