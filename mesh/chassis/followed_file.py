"""Files that are read again when they change, the last good content staying in force.

Content is compared, not the time of change: two writes within one tick of the file system's clock
are seen, and a file that was only touched is not taken anew.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

BYTE_COUNT_MAX = 4 << 20

T = TypeVar("T")


class FollowedFile(Generic[T]):
    """What one file, or several that belong together, say.

    Args:
        paths: the files; their texts go to `parse` in this order. UTF-8, 4 MiB at most each.
        parse: makes the content; raises ValueError with what is wrong.
        refused: told of content that is not taken, once for each: OSError or ValueError.
    """

    def __init__(
        self,
        *paths: Path,
        parse: Callable[..., T],
        refused: Callable[[OSError | ValueError], None],
    ) -> None:
        self._paths, self._parse, self._refused = paths, parse, refused
        self._seen: tuple[bytes, ...] | None = None
        # Whether the last look found the files missing or unreadable.
        self._away = False
        # The content in force; None until one was good.
        self.current: T | None = None

    def load(self) -> T:
        """Reads at start, for those who cannot go on without.

        Raises:
            OSError, ValueError: the content cannot be used.
        """
        self._seen = self._read()
        self.current = self._parsed(self._seen)
        return self.current

    def refresh(self, take: Callable[[T], None] | None = None) -> bool:
        """Reads again; True when new content is in force.

        Args:
            take: puts the content in force elsewhere; what it refuses with a ValueError is refused.
        """
        try:
            found = self._read()
        except OSError as error:
            if not self._away:
                self._refused(error)
            # When it is back it is looked at, although it may be what it was.
            self._away, self._seen = True, None
            return False
        self._away = False
        if found == self._seen:
            return False
        self._seen = found
        try:
            content = self._parsed(found)
            if take is not None:
                take(content)
        except ValueError as error:
            self._refused(error)
            return False
        self.current = content
        return True

    async def follow(self, interval_s: float, take: Callable[[T], None] | None = None) -> None:
        """Refreshes for ever."""
        while True:
            await asyncio.sleep(interval_s)
            self.refresh(take)

    def _read(self) -> tuple[bytes, ...]:
        contents = []
        for path in self._paths:
            with path.open("rb") as file:
                contents.append(file.read(BYTE_COUNT_MAX + 1))
        return tuple(contents)

    def _parsed(self, contents: tuple[bytes, ...]) -> T:
        for path, content in zip(self._paths, contents, strict=True):
            if len(content) > BYTE_COUNT_MAX:
                raise ValueError(f"{path.name} is larger than {BYTE_COUNT_MAX} bytes; shorten it")
        return self._parse(*(content.decode() for content in contents))
