"""The operator's prompts in force: a file that is followed; a bad change changes nothing."""

import asyncio
from pathlib import Path

import structlog

from gateway import metrics
from gateway.context.operator import OperatorPrompts, parse
from mesh.chassis.checked_yaml import YamlError

FILE_BYTE_COUNT_MAX = 4 << 20
FOLLOW_INTERVAL_S = 1.0

log = structlog.get_logger()


class OperatorPromptsFile:
    """Publishes the prompts of a file."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: there are none, and nothing to follow.

        Raises:
            YamlError: the file cannot be used.
        """
        self._path = path
        self._seen = b""
        self.current = OperatorPrompts()
        if path is not None:
            self._seen = _read(path)
            self.current = _parsed(self._seen, path)

    def refresh(self) -> bool:
        """Reads the file when it changed; True when new prompts are in force."""
        if self._path is None:
            return False
        try:
            data = _read(self._path)
        except YamlError as error:
            return self._refuse(b"", error)
        if data == self._seen:
            return False
        try:
            self.current = _parsed(data, self._path)
        except YamlError as error:
            return self._refuse(data, error)
        self._seen = data
        metrics.OPERATOR_PROMPTS_READS.labels("published").inc()
        log.info("operator_prompts_published", count=self.current.count)
        return True

    async def follow(self, interval_s: float = FOLLOW_INTERVAL_S) -> None:
        """Refreshes for ever."""
        while self._path is not None:
            await asyncio.sleep(interval_s)
            self.refresh()

    def _refuse(self, data: bytes, error: YamlError) -> bool:
        if data != self._seen:  # told once for each change
            metrics.OPERATOR_PROMPTS_READS.labels("refused").inc()
            log.error("operator_prompts_refused", problems=error.problems)
        self._seen = data
        return False


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTE_COUNT_MAX + 1)
    except OSError as error:
        remedy = "put the file there, readable, or unset GATEWAY_OPERATOR_PROMPTS_FILE"
        raise YamlError([f"{path}: {error.strerror}; {remedy}"]) from error
    if len(data) > FILE_BYTE_COUNT_MAX:
        raise YamlError([f"{path}: too large; use at most {FILE_BYTE_COUNT_MAX} bytes"])
    return data


def _parsed(data: bytes, path: Path) -> OperatorPrompts:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError([f"{path.name}:{line}: file: not UTF-8; save it as UTF-8"]) from error
    return parse(text, path.name)
