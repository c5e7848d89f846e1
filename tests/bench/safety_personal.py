"""Precision and recall of the personal-data recognisers, by type.

    python -m tests.bench.safety_personal synth_dataset_v2.jsonl.gz

Rows as presidio-research writes them: `full_text` and `spans` with `entity_type`, `start_position`
and `end_position`. A span counts as found when a finding of its type overlaps it. The last line of
stdout is one JSON object.
"""

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from safety_svc.detectors import kinds
from safety_svc.detectors.base import Audience
from safety_svc.detectors.rulebook import Detectors, house_rules

TYPES = {
    "EMAIL_ADDRESS": kinds.EMAIL_ADDRESS,
    "PHONE_NUMBER": kinds.PHONE_NUMBER,
    "CREDIT_CARD": kinds.CARD_NUMBER,
    "IBAN_CODE": kinds.IBAN_CODE,
    "US_SSN": kinds.US_SSN,
    "IP_ADDRESS": kinds.IP_ADDRESS,
    "STREET_ADDRESS": kinds.STREET_ADDRESS,
}
Span = tuple[str, int, int]


def rows(path: Path) -> Iterator[tuple[str, list[Span]]]:
    """Texts with their labelled spans, in characters."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield (
                row["full_text"],
                [
                    (TYPES[one["entity_type"]], one["start_position"], one["end_position"])
                    for one in row["spans"]
                    if one["entity_type"] in TYPES
                ],
            )


def found_in(detectors: Detectors, text: str) -> list[Span]:
    """What the recognisers find, in characters."""
    data = text.encode()
    return [
        (one.detector, len(data[: one.start].decode()), len(data[: one.end].decode()))
        for scanner in detectors.scanners(Audience.USER)
        for one in scanner.feed(text, final=True)
        if one.detector in kinds.PERSONAL
    ]


def overlaps(one: Span, others: list[Span]) -> bool:
    return any(one[0] == kind and one[1] < end and start < one[2] for kind, start, end in others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    detectors = Detectors(house_rules(), {})
    hit, missed, false = Counter[str](), Counter[str](), Counter[str]()
    character_count = 0
    begin = time.perf_counter()
    for text, labelled in rows(path):
        character_count += len(text)
        found = found_in(detectors, text)
        for one in labelled:
            (hit if overlaps(one, found) else missed)[one[0]] += 1
        false.update(one[0] for one in found if not overlaps(one, labelled))
    seconds = time.perf_counter() - begin
    figures = {}
    for kind in TYPES.values():
        labelled_count, found_count = hit[kind] + missed[kind], hit[kind] + false[kind]
        figures[kind] = {
            "spans": labelled_count,
            "precision": round(hit[kind] / found_count, 3) if found_count else None,
            "recall": round(hit[kind] / labelled_count, 3) if labelled_count else None,
        }
        print(f"{kind:16} {figures[kind]}")
    rate = round(character_count / seconds)
    print(json.dumps({"types": figures, "characters_per_second": rate}))


if __name__ == "__main__":
    main()
