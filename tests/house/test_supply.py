"""The supply chain: known vulnerabilities, licences, the bill of materials; and that they fail."""

import datetime as dt
import http.server
import json
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.supply import advisories, licences, sbom
from tests.supply.__main__ import check, pinned
from tests.supply.advisories import Advisory

BAD = Advisory("CVE-1", "old-thing", [("1.0", "1.4"), ("2.0", "")], "it breaks")


def metadata(**fields: str | list[str]) -> Message:
    found = Message()
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            found[name.replace("_", "-")] = one
    return found


def test_what_is_installed_has_no_known_vulnerability_and_a_licence_on_the_list() -> None:
    assert check() == 0, "take a version that mends it, or see tests/supply/licences.py"


@pytest.mark.parametrize(
    ("version", "concerned"),
    [("0.9", False), ("1.0", True), ("1.3.9", True), ("1.4", False), ("2.0", True), ("9", True)],
)
def test_a_vulnerable_version_is_found(version: str, concerned: bool) -> None:
    found = advisories.findings([("Old_Thing", version), ("other", "1.0")], [BAD])
    assert len(found) == concerned
    if concerned:
        assert found[0].startswith(f"old-thing {version}: CVE-1, it breaks; take")
    assert advisories.findings([("old-thing", version)], [BAD], {"CVE-1": "not used"}) == []


def test_the_shipped_advisories_would_find_what_was_once_installed() -> None:
    _, rows = advisories.read()
    once = [("Jinja2", "3.1.5"), ("torch", "2.5.1"), ("protobuf", "6.31.0")]
    found = advisories.findings(once, rows)
    assert [line.split(" ")[0] for line in found] == ["jinja2", "torch", "protobuf"]
    assert len({(one.name, one.id) for one in rows}) == len(rows)
    names = {canonicalize_name(name) for name in pinned()}
    unknown = {one.name for one in rows} - names - {"pillow"}
    assert not unknown, f"not in constraints.txt: {unknown}"
    for one in rows:
        assert one.name == canonicalize_name(one.name)
        assert not one.concerns("9999")


@pytest.mark.parametrize(
    ("fields", "told", "allowed"),
    [
        ({"License_Expression": "MIT"}, "MIT", True),
        ({"License_Expression": "GPL-3.0-only"}, "GPL-3.0-only", False),
        ({"License_Expression": "MIT OR GPL-3.0-only"}, "MIT OR GPL-3.0-only", True),
        ({"License_Expression": "MIT AND GPL-3.0-only"}, "MIT AND GPL-3.0-only", False),
        (
            {"License_Expression": "MPL-2.0 AND (Apache-2.0 OR MIT)"},
            "MPL-2.0 AND (Apache-2.0 OR MIT)",
            True,
        ),
        ({"License": "Apache License, Version 2.0"}, "Apache-2.0", True),
        ({"License": "MIT License\n\nCopyright (c) 2022\n\nPermission …"}, "MIT", True),
        ({"License": "AGPL-3.0-or-later"}, "AGPL-3.0-or-later", False),
        ({"Classifier": ["License :: OSI Approved :: BSD License"]}, "BSD-3-Clause", True),
        (
            {
                "Classifier": [
                    "License :: OSI Approved :: MIT License",
                    "License :: OSI Approved :: Academic Free License (AFL)",
                ]
            },
            "",
            False,
        ),
        ({"License": "see the file"}, "", False),
        ({}, "", False),
    ],
)
def test_licences_are_read_and_judged(fields: dict[str, str], told: str, allowed: bool) -> None:
    assert licences.licence(metadata(**fields)) == told
    assert bool(told and licences.is_allowed(told)) == allowed
    assert bool(licences.findings([("thing", metadata(**fields))])) != allowed


def test_what_is_accepted_is_installed_and_needs_it() -> None:
    held = sbom.installed()
    for name, (told, reason) in licences.ACCEPTED.items():
        assert not licences.is_allowed(told)
        assert reason
        assert licences.licence(held[name].metadata) == told
    lgpl = metadata(License="LGPL")
    assert licences.findings([("another", lgpl)])
    assert licences.findings([("python-stdnum", lgpl)]) == []


def test_the_bill_names_what_is_installed_and_what_needs_it() -> None:
    held = sbom.installed()
    now = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
    bill = json.loads(json.dumps(sbom.document(held, now)))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill == sbom.document(held, now)
    scopes = {one["name"]: one["scope"] for one in bill["components"]}
    assert {scopes[one] for one in ("grpcio", "torch", "markupsafe", "cffi")} == {"required"}
    assert {scopes[one] for one in ("pytest", "ruff", "matplotlib")} == {"excluded"}
    assert set(scopes) == set(held) - {"chatmesh"}
    refs = [one["bom-ref"] for one in bill["components"]]
    assert len(refs) == len(set(refs))
    assert all(one["licenses"] for one in bill["components"])
    ours = bill["metadata"]["component"]["bom-ref"]
    reach = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert set(reach) == {*refs, ours}
    assert all(set(needed) <= set(refs) for needed in reach.values())
    assert f"pkg:pypi/grpcio@{held['grpcio'].version}" in reach[ours]


def event(*events: dict[str, str]) -> list[dict[str, object]]:
    return [{"type": "ECOSYSTEM", "events": list(events)}]


def entry(name: str, ranges: list[dict[str, object]], **more: object) -> dict[str, object]:
    package = {"ecosystem": "PyPI", "name": name}
    return {"summary": "s", "affected": [{"package": package, "ranges": ranges}], **more}


MENDED = event({"introduced": "0"}, {"fixed": "2"})
OPEN = event({"introduced": "0"})
LAST = event({"introduced": "3"}, {"last_affected": "3.5"})
FIRST_PAGE = [
    entry("Thing", MENDED, id="GHSA-1", aliases=["CVE-7"]),
    entry("thing", OPEN, id="GHSA-2", withdrawn="2026-01-01"),
    entry("other", OPEN, id="GHSA-3"),
]
PAGES = {
    ("thing", ""): {"vulns": FIRST_PAGE, "next_page_token": "two"},
    ("thing", "two"): {"vulns": [entry("thing", LAST, id="PYSEC-4")]},
    ("quiet", ""): {},
}


class Osv(http.server.BaseHTTPRequestHandler):
    """A small OSV service; it breaks when it is asked for what it does not know."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        page = PAGES.get((asked["package"]["name"], asked.get("page_token", "")))
        data = json.dumps(page).encode()
        self.send_response(200 if page is not None else 500)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def osv() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Osv)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_advisories_are_fetched_anew_or_stay_as_they_are(osv: str, tmp_path: Path) -> None:
    path = tmp_path / "advisories.json"
    assert advisories.refresh(["Thing", "quiet"], path, osv) == 2
    date, rows = advisories.read(path)
    assert date == dt.datetime.now(dt.UTC).date()
    assert [(one.id, one.name) for one in rows] == [("CVE-7", "thing"), ("PYSEC-4", "thing")]
    assert [rows[1].concerns(v) for v in ("2.9", "3", "3.5", "3.5.1")] == [False, True, True, False]
    before = path.read_bytes()
    with pytest.raises(OSError, match="500"):
        advisories.refresh(["unknown"], path, osv)
    assert path.read_bytes() == before
