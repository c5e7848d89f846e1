"""The price list in force: read at start, read again when its file changes, swapped whole."""

from pathlib import Path

import structlog
from prometheus_client import Counter

from billing_svc import prices
from billing_svc.prices import PriceList, PriceListError
from mesh.chassis.followed_file import FollowedFile

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
        self._file = FollowedFile(path, parse=self._parse, refused=self._refuse)
        try:
            self._file.load()
        except PriceListError:
            raise
        except (OSError, ValueError) as error:
            raise PriceListError(f"{path.name}:1: cannot be read: {error}") from error

    @property
    def current(self) -> PriceList:
        """The list in force."""
        assert self._file.current is not None  # since the constructor
        return self._file.current

    def reload(self) -> bool:
        """Takes over a changed file; a wrong one is refused and the list before stays."""
        return self._file.refresh(_announce)

    async def watch(self) -> None:
        """Reloads for ever."""
        await self._file.follow(POLL_INTERVAL_S, _announce)

    def _parse(self, text: str) -> PriceList:
        fresh, kept = prices.parse(text, self._path.name), self._file.current
        if kept is not None and fresh.version == kept.version and fresh != kept:
            raise PriceListError(
                f"{self._path.name}:1: prices changed but version {fresh.version!r} did not: "
                "give it a new one"
            )
        return fresh

    def _refuse(self, error: OSError | ValueError) -> None:
        _reloads.labels("refused").inc()
        log.error("price_list_refused", error=str(error), kept=self.current.version)


def _announce(fresh: PriceList) -> None:
    _reloads.labels("taken").inc()
    log.info("price_list_taken", version=fresh.version)
