"""Known vulnerabilities of what is installed, from a file that lies beside this module.

`advisories.json` holds the part of the OSV format (ossf.github.io/osv-schema) that the check needs.
`make check` reads the file and no network. `python -m tests.supply refresh` fetches it anew from
OSV's service for every distribution that constraints.txt pins; do that before a release, and look
at the date: the check says how old it is.
"""

import datetime as dt
import json
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

FILE = Path(__file__).with_name("advisories.json")
SERVICE = "https://api.osv.dev/v1"
_TIMEOUT_S = 30.0
# Looked at and found not to concern us, with the reason.
ACCEPTED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Advisory:
    """One vulnerability of one distribution.

    Attributes:
        id: such as "CVE-2025-27516".
        name: of the distribution, as indexes spell it.
        ranges: [introduced, fixed) pairs of versions; "" as fixed: not mended yet.
        summary: one line.
    """

    id: str
    name: str
    ranges: Sequence[tuple[str, str]]
    summary: str

    def concerns(self, version: str) -> bool:
        """Whether a version has it."""
        here = Version(version)
        return any(
            Version(introduced) <= here and (not fixed or here < Version(fixed))
            for introduced, fixed in self.ranges
        )


def read(path: Path = FILE) -> tuple[dt.date, list[Advisory]]:
    """When the file was made, and what is in it."""
    held = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        Advisory(one["id"], one["name"], [(a, b) for a, b in one["ranges"]], one["summary"])
        for one in held["advisories"]
    ]
    return dt.date.fromisoformat(held["date"]), rows


def findings(
    installed: Iterable[tuple[str, str]],
    advisories: Iterable[Advisory],
    accepted: Mapping[str, str] = ACCEPTED,
) -> list[str]:
    """What is installed in a version that has an advisory, one line each, with what to do."""
    versions = {canonicalize_name(name): version for name, version in installed}
    return [
        f"{one.name} {versions[one.name]}: {one.id}, {one.summary}; take a version that mends it "
        f"({', '.join(fixed for _, fixed in one.ranges if fixed) or 'none yet'}) in constraints.txt"
        for one in advisories
        if one.name in versions and one.id not in accepted and one.concerns(versions[one.name])
    ]


def refresh(names: Sequence[str], path: Path = FILE, service: str = SERVICE) -> int:
    """Fetches the advisories of these distributions and writes the file; returns how many.

    Raises:
        OSError: when the service does not answer; the file stays as it is.
    """
    found: dict[tuple[str, str], Advisory] = {}
    for name in sorted(map(canonicalize_name, names)):
        asked: dict[str, Any] = {"package": {"name": name, "ecosystem": "PyPI"}}
        while True:
            told = _post(f"{service}/query", asked)
            for row in told.get("vulns", ()):
                one = _advisory(name, row)
                if one.ranges and "withdrawn" not in row:
                    found[one.name, one.id] = one
            if not told.get("next_page_token"):
                break
            asked["page_token"] = told["next_page_token"]
    rows = [
        {"id": one.id, "name": one.name, "ranges": one.ranges, "summary": one.summary}
        for one in found.values()
    ]
    today = dt.datetime.now(dt.UTC).date().isoformat()
    body = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    text = f'{{"date": "{today}", "source": "{service}", "advisories": [\n  {body}\n]}}\n'
    path.write_text(text, encoding="utf-8")
    return len(rows)


def _advisory(name: str, row: Mapping[str, Any]) -> Advisory:
    """An entry of OSV; its CVE as the id where it has one."""
    ids = [row["id"], *row.get("aliases", ())]
    shown = next((one for one in ids if one.startswith("CVE-")), row["id"])
    ranges: list[tuple[str, str]] = []
    for affected in row.get("affected", ()):
        package = affected.get("package", {})
        if package.get("ecosystem") != "PyPI" or canonicalize_name(package["name"]) != name:
            continue
        for span in affected.get("ranges", ()):
            if span["type"] == "ECOSYSTEM":
                ranges += _pairs(span["events"])
    return Advisory(shown, name, ranges, (row.get("summary") or "no summary")[:120])


def _pairs(events: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """[introduced, fixed) out of a list of events, in their order."""
    pairs: list[tuple[str, str]] = []
    for event in events:
        if "introduced" in event:
            pairs.append((event["introduced"], ""))
        elif "fixed" in event and pairs:
            pairs[-1] = (pairs[-1][0], event["fixed"])
        elif "last_affected" in event and pairs:
            # The first version after it, whatever it is called.
            pairs[-1] = (pairs[-1][0], f"{event['last_affected']}.post0")
    return pairs


def _post(address: str, body: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        return dict(json.load(response))
