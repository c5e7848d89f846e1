"""Postal addresses, where they follow a pattern: number and street, street and number, PO boxes.

There is no checksum to a street, so that these are the least certain of the personal data; the
pattern asks for capitals and for a word that names a street.
"""

import re
from collections.abc import Iterator

_STREET = (
    r"(?:Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Place|Pl|Square|Sq|"
    r"Squares|Terrace|Ter|Parkway|Pkwy|Highway|Hwy|Circle|Cir|Crescent|Close|Grove|Way|Row|Mews|"
    r"Parade|Trail|Alley|Quay|Fort)"
)
_UNIT = r"(?:,? ?(?:Apt|Apartment|Suite|Ste|Unit|Flat|Floor|#)\.? ?\w{1,6})"
_TOWN = r"(?:\s*,?\s+[A-Z][\w'’\-]*(?: [A-Z][\w'’\-]*){0,2})"
_CODE = r"(?:\s*,?\s+(?:[A-Z]{2}\s+)?\d{4,5}(?:-\d{4})?)"
_ENGLISH = re.compile(
    rf"\d{{1,6}}[A-Za-z]?,? (?:[A-Z0-9][\w'’.\-]* ){{1,4}}?{_STREET}\b\.?{_UNIT}?"
    rf"(?:{_TOWN}{{0,3}}{_CODE})?"
)
_BOX = re.compile(
    r"(?:P\.? ?O\.? ?|Post ?|Postal )[Bb]ox \d{1,6}"
    r"|(?:PSC|Unit) \d{1,5},? Box \d{1,6}|[AFD]PO A[AEP] \d{5}"
)
# A unit makes an address of what else might be anything.
_UNITED = re.compile(
    r"\d{1,6} (?:[A-ZÀ-Þ][\w'’\-]*,? |\d{1,4}[.,]? ){1,5}"
    r"(?:Apt|Apartment|Suite|Ste|Flat)\.? ?\d{1,5}"
)
_ENDINGS = (
    r"(?:straße|strasse|str\.|weg|gasse|allee|platz|damm|ufer|gatan|gata|vägen|väg|veien|vegen|vej|"
    r"gade|vænget|katu|tie|kuja|polku|straat|laan|gracht|plein|utca|ulica)"
)
_JOINED = re.compile(rf"[A-ZÀ-Þ][\w\-]{{2,}}{_ENDINGS} \d{{1,4}}[A-Za-z]?\b{_UNIT}?")
_LED = re.compile(
    r"(?:\d{1,6} )?"
    r"(?:Rua|Calle|Via|Viale|Corso|Rue|Avenida|Av\.|Plaza|Piazza|Ulica|Ul\.|Carrer|Strada) "
    r"(?:[A-ZÀ-Þ][\w'’.\-]* ){1,4}\d{1,5}\b"
)

# Numbers and capitalised words with what stands between them; each beginning of it is one too.
WORDS = re.compile(
    r"(?<![\w.$€£#])(?:[A-ZÀ-Þ][\w.'’\-]{0,30}|\d{1,6}[A-Za-z]?)"
    r"(?:[ ,\n]{1,3}(?:[A-ZÀ-Þ0-9#][\w.'’\-]{0,30})?){0,16}"
)
# In every address: a number beside a capitalised word or another number.
MARK = re.compile(r"[A-ZÀ-Þ0-9#][\w.'’\-]{0,30}[ ,\n]{1,3}\d|\d[A-Za-z]?[ ,\n]{1,3}[A-ZÀ-Þ0-9#]")


def addresses(text: str) -> Iterator[tuple[int, int]]:
    """Spans of the addresses in a run of numbers and capitalised words; they do not overlap."""
    end = 0
    spans = sorted(
        match.span()
        for pattern in (_ENGLISH, _BOX, _UNITED, _JOINED, _LED)
        for match in pattern.finditer(text)
    )
    for start, stop in spans:
        if start >= end:
            end = stop
            yield start, stop
