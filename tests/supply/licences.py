"""Which licences the installed distributions have, and whether each may be used here. Pure.

Read from the metadata: the SPDX expression (PEP 639), else the field License, else the
classifiers. What none of them tells is an error, not a guess.
"""

import re
from collections.abc import Sequence
from email.message import Message

# May be used, shipped beside ours (Apache-2.0) and changed. MPL-2.0 binds changes of its own files.
_NAMES = """
0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CNRI-Python ISC MIT MIT-0 MIT-CMU MPL-2.0
PSF-2.0 Zlib
"""
ALLOWED = frozenset(_NAMES.split())
# "Apache-2.0 WITH LLVM-exception" gives more than Apache-2.0 does.
_EXCEPTIONS = {"Apache-2.0 WITH LLVM-exception": "Apache-2.0"}
# Allowed for one distribution each, with the reason.
ACCEPTED = {
    "python-stdnum": (
        "LGPL-2.1-or-later",
        "used as a library of its own, unchanged and replaceable: what section 6 asks for",
    ),
}
# Words of the field License, and ends of classifiers, that stand for an SPDX name.
_WORDS = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.1-or-later",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "lgpl": "LGPL-2.1-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
_APPROVED = "License :: OSI Approved :: "
_SPDX = re.compile(r"[A-Za-z0-9.+-]+(?: WITH [A-Za-z0-9.-]+)?")


def licence(metadata: Message) -> str:
    """The SPDX expression of a distribution; "" where its metadata does not tell."""
    told = metadata.get("License-Expression") or _named(metadata.get("License") or "")
    if told:
        return told
    lines = [one for one in metadata.get_all("Classifier", []) if one.startswith(_APPROVED)]
    names = [_named(line.removeprefix(_APPROVED)) for line in lines]
    return " AND ".join(names) if all(names) else ""


def is_allowed(expression: str) -> bool:
    """Whether an expression can be kept to: all that AND joins, one of what OR joins."""
    parts = re.split(r" AND (?![^(]*\))", expression)
    return all(_is_one_allowed(part.strip("() ").split(" OR ")) for part in parts)


def findings(distributions: Sequence[tuple[str, Message]]) -> list[str]:
    """What is wrong, one line each, with what to do."""
    found = []
    for name, metadata in sorted(distributions, key=lambda one: one[0].lower()):
        told = licence(metadata)
        accepted = ACCEPTED.get(name.lower(), ("", ""))[0]
        if not told:
            found.append(f"{name}: no licence told; read its text, then add it to licences.py")
        elif not is_allowed(told) and told != accepted:
            found.append(f"{name}: {told} is not on the list; use another library, or say why not")
    return found


def _named(text: str) -> str:
    """The SPDX name for a line of words, or of the first line of a licence's text."""
    line = next((one.strip() for one in text.splitlines() if one.strip()), "")
    if line in ALLOWED or " OR " in line or " AND " in line:
        return line
    return _WORDS.get(line.lower(), "") or (line if _SPDX.fullmatch(line) and "-" in line else "")


def _is_one_allowed(names: Sequence[str]) -> bool:
    return any(_EXCEPTIONS.get(name, name) in ALLOWED for name in map(str.strip, names))
