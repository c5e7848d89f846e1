"""What the supply chain brings: `python -m tests.supply check | sbom FILE | refresh`."""

import argparse
import datetime as dt
import json
import sys
from pathlib import Path

from tests.supply import advisories, licences, sbom

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
# Comes with Python's venv, and installs what the pins say; not ours to pin.
UNPINNED = frozenset({"pip"})
_OLD_DAYS = 30


def check() -> int:
    """Prints what is wrong with what is installed; exit status 1 where something is."""
    held = {name: one for name, one in sbom.installed().items() if name not in UNPINNED}
    date, rows = advisories.read()
    found = advisories.findings([(name, one.version) for name, one in held.items()], rows)
    found += licences.findings([(name, one.metadata) for name, one in held.items()])
    for line in found:
        print(f"chatmesh: {line}", file=sys.stderr)
    age = (dt.datetime.now(dt.UTC).date() - date).days
    old = "; refresh: python -m tests.supply refresh" if age > _OLD_DAYS else ""
    print(f"supply: {len(held)} distributions, {len(rows)} advisories of {date}{old}")
    return 1 if found else 0


def pinned() -> list[str]:
    """The names in constraints.txt."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return [line.partition("==")[0] for line in lines if line and line[0] != "#"]


def main() -> int:
    """Does what the verb says."""
    parser = argparse.ArgumentParser(prog="tests.supply", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="vulnerabilities and licences of what is installed")
    verbs.add_parser("sbom", help="write the bill of materials").add_argument("file", type=Path)
    verbs.add_parser("refresh", help="fetch the advisories anew; needs the network")
    arguments = parser.parse_args()
    if arguments.verb == "refresh":
        print(f"{advisories.refresh(pinned())} advisories")
        return 0
    if arguments.verb == "sbom":
        bill = sbom.document(sbom.installed(), dt.datetime.now(dt.UTC))
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        arguments.file.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        print(f"supply: {len(bill['components'])} components in {arguments.file}")
        return 0
    return check()


if __name__ == "__main__":
    sys.exit(main())
