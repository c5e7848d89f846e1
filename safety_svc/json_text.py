"""Where in a JSON document (RFC 8259) a text may be replaced: inside the strings that are values.

The document arrives in pieces. What is no JSON is followed as well as it can be: then few places,
or none, may be replaced.
"""

import re

_SIGNS = re.compile(rb'["\\{}\[\],:]')
_IN_STRING = re.compile(rb'["\\]')
_QUOTE, _BACKSLASH, _BRACE, _BRACKET, _COMMA, _COLON = b'"\\{[,:'
_CLOSING = b"}]"
_SHORT_ESCAPE_LENGTH, _LONG_ESCAPE_LENGTH = 2, 6  # \n, \u0041


class JsonText:
    """Follows a document. Use: `feed` any number of times, between them whatever is asked."""

    def __init__(self) -> None:
        self._size = 0
        self._open = bytearray()  # the objects and arrays around here
        self._is_key = False  # whether the next string is one
        self._in_string = False
        self._skip = 0  # up to here an escape goes on
        self._backslash = -1  # of an escape of which nothing more has come
        # Of values and of escapes: first byte, one past the last; those that may still be asked of.
        self._values: list[tuple[int, int]] = []
        self._escapes: list[tuple[int, int]] = []

    def feed(self, text: str) -> None:
        """Takes more of the document."""
        data, base = text.encode(), self._size
        self._size += len(data)
        if data and self._backslash >= 0:
            self._escape(data[0])
        at = self._skip - base
        while at < len(data):
            found = (_IN_STRING if self._in_string else _SIGNS).search(data, max(0, at))
            if not found:
                return
            at = found.end()
            sign, place = data[at - 1], base + at - 1
            if not self._in_string:
                self._structure(sign, place)
            elif sign == _QUOTE:
                self._in_string = False
                if not self._is_key:
                    self._values[-1] = (self._values[-1][0], place)
            else:
                self._backslash = place
                if at < len(data):
                    self._escape(data[at])
                    at = self._skip - base

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """The bytes to replace so that [start, end) are gone; None where that breaks the document.

        Whole escapes go with it.
        """
        for low, high in self._escapes:
            if low < start < high:
                start = low
            if low < end < high:
                end = high
        inside = any(low <= start and end <= high for low, high in self._values)
        return (start, end) if inside else None

    def whole(self, offset: int) -> int:
        """`offset`, or the beginning of the escape that it would cut."""
        if 0 <= self._backslash < offset:
            return self._backslash
        return next((low for low, high in self._escapes if low < offset < high), offset)

    def forget(self, before: int) -> None:
        """Nothing before this byte is asked of any more."""
        self._values = [one for one in self._values if one[1] > before]
        self._escapes = [one for one in self._escapes if one[1] > before]

    def _escape(self, sign: int) -> None:
        """Takes the sign after a backslash."""
        length = _LONG_ESCAPE_LENGTH if sign == ord("u") else _SHORT_ESCAPE_LENGTH
        self._skip = self._backslash + length
        self._escapes.append((self._backslash, self._skip))
        self._backslash = -1

    def _structure(self, sign: int, place: int) -> None:
        """Takes a sign outside of strings."""
        if sign == _QUOTE:
            self._in_string = True
            if not self._is_key:
                self._values.append((place + 1, 1 << 62))  # until it is closed
        elif sign in (_BRACE, _BRACKET):
            self._open.append(sign)
            self._is_key = sign == _BRACE
        elif sign in _CLOSING:
            del self._open[-1:]
            self._is_key = False
        elif sign == _COMMA:
            self._is_key = self._open[-1:] == b"{"
        elif sign == _COLON:
            self._is_key = False
