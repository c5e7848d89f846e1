"""One spelling for words that only look different.

Unicode NFKD without combining marks (so that NFKC look-alikes, accents and zalgo fall away),
full case folding, invisible characters removed, and the Cyrillic and Greek letters that look like
Latin ones mapped to them (a small part of Unicode TS 39 `confusables.txt`).
"""

import unicodedata

# Characters that are drawn as nothing inside a word.
INVISIBLE = "\u00ad\u034f\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"

_CONFUSABLE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b\u051d"
    "\u043a\u043c\u0442\u043d\u0432\u03b1\u03bf\u03c1\u03bd\u03b9\u03ba\u03c4\u03c5\u03c7\u0131",
    "aeopcyxijshdqwkmthbaopviktuxi",
)
_DROPPED = dict.fromkeys(map(ord, INVISIBLE))
_LEET = str.maketrans("013457", "oieast")


def normalise(word: str) -> str:
    """The canonical spelling of `word`; a prefix of a word gives a prefix of its spelling."""
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFKD", word.translate(_DROPPED))
    letters = "".join(c for c in decomposed if not unicodedata.category(c).startswith("M"))
    return letters.casefold().translate(_CONFUSABLE)


def unleet(word: str) -> str:
    """Digits read as the letters they stand for ("b0mb" -> "bomb")."""
    return word.translate(_LEET)
