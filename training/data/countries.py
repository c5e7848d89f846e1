"""Countries as the World Factbook describes them, reduced to what fits one short sentence."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.data import sources


@dataclass(frozen=True)
class Country:
    """A country; a field is empty where the factbook says nothing short."""

    name: str
    capital: str
    region: str
    language: str
    currency: str
    neighbours: tuple[str, ...] = ()


def _field(record: str, key: str) -> str:
    found = re.search(rf"^{re.escape(key)}: (.*)", record, re.MULTILINE)
    return html.unescape(found.group(1)).strip() if found else ""


def _first(text: str) -> str:
    return re.split(r"[(;,:\[]| per US| in Romanian| bordering|\d", text)[0].strip()


def factbook(data: Path) -> Iterator[Country]:
    """All countries and territories that have a capital."""
    for record in sources.records(data, "text-world-factbook", "factbook.txt.xz"):
        name = html.unescape(record.splitlines()[0].lstrip("# ").split("(")[0]).strip()
        borders = _field(record, "Land boundaries - border countries")
        near = tuple(
            re.sub(r"[\d,.]+ km.*", "", b).split("(")[0].strip() for b in borders.split(";")
        )
        language = _first(_field(record, "Languages - Languages"))
        country = Country(
            name=name,
            capital=_first(_field(record, "Capital - name")),
            region="Western Europe" if name == "France" else _first(_field(record, "Location")),
            language=language if language.istitle() and len(language) < 20 else "",
            currency=_first(_field(record, "Exchange rates - Currency")),
            neighbours=tuple(n for n in near if n),
        )
        if country.capital and country.region and len(name) < 45 and len(country.region) < 45:
            yield country


def profiles(data: Path) -> Iterator[str]:
    """The background paragraph of each country, after its name."""
    for record in sources.records(data, "text-world-factbook", "factbook.txt.xz"):
        name = html.unescape(record.splitlines()[0].lstrip("# ").split("(")[0]).strip()
        background = html.unescape(_field(record, "Background"))
        parts = re.split(r"(?<=[a-z\d)]\.) (?=[A-Z])", background)
        lines = [" ".join(parts[i : i + 3]) for i in range(0, len(parts), 3)]
        yield "\n".join([name, *lines])
