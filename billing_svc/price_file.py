"""The price list in force: read at start, read again when its file changes, swapped whole."""

import asyncio
from pathlib import Path

import structlog
from prometheus_client import Counter

from billing_svc import prices
from billing_svc.prices import PriceList, PriceListError

POLL_INTERVAL_S = 1.0

log = structlog.get_logger()
_reloads = Counter("chatmesh_billing_price_reloads_total", "Changed price lists", ["outcome"])


class PriceFile:
    """A file with a price list; `current` is always a checked one.

    Raises:
        PriceListError: the file is missing or wrong now, at start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = self._read()
        self.current: PriceList = prices.parse(self._text, path.name)

    def _read(self) -> str:
        try:
            return self._path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise PriceListError(f"{self._path.name}:1: cannot be read: {error}") from error

    def reload(self) -> bool:
        """Takes over a changed file; a wrong one is refused and the list before stays."""
        try:
            text = self._read()
            if text == self._text:
                return False
            self._text = text  # a wrong file is complained about once
            fresh = prices.parse(text, self._path.name)
            if fresh.version == self.current.version and fresh != self.current:
                raise PriceListError(
                    f"{self._path.name}:1: prices changed but version {fresh.version!r} did not: "
                    "give it a new one"
                )
        except PriceListError as error:
            _reloads.labels("refused").inc()
            log.error("price_list_refused", error=str(error), kept=self.current.version)
            return False
        self.current = fresh
        _reloads.labels("taken").inc()
        log.info("price_list_taken", version=fresh.version)
        return True

    async def watch(self) -> None:
        """Reloads for ever."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await asyncio.to_thread(self.reload)
