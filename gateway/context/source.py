"""The operator's prompts in force: a file that is followed; a bad change changes nothing."""

import asyncio
from pathlib import Path

import structlog

from gateway import metrics
from gateway.context.operator import OperatorPrompts, parse
from mesh.chassis.checked_yaml import YamlError
from mesh.chassis.followed_file import FollowedFile

FOLLOW_INTERVAL_S = 1.0
NO_PROMPTS = OperatorPrompts()

log = structlog.get_logger()


class OperatorPromptsFile:
    """Publishes the prompts of a file."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: there are none, and nothing to follow.

        Raises:
            YamlError: the file cannot be used.
        """
        self._file: FollowedFile[OperatorPrompts] | None = None
        if path is None:
            return
        self._file = FollowedFile(
            path, parse=lambda text: parse(text, path.name), refused=self._refused
        )
        try:
            self._file.load()
        except (OSError, ValueError) as error:
            raise YamlError(_problems(error, path)) from error
        self._path = path

    @property
    def current(self) -> OperatorPrompts:
        """The prompts in force."""
        return (self._file and self._file.current) or NO_PROMPTS

    def refresh(self) -> bool:
        """Reads the file when it changed; True when new prompts are in force."""
        return self._file is not None and self._file.refresh(_published)

    async def follow(self, interval_s: float = FOLLOW_INTERVAL_S) -> None:
        """Refreshes for ever."""
        if self._file is None:
            await asyncio.Event().wait()  # there will be none to follow
        else:
            await self._file.follow(interval_s, _published)

    def _refused(self, error: OSError | ValueError) -> None:
        metrics.OPERATOR_PROMPTS_READS.labels("refused").inc()
        log.error("operator_prompts_refused", problems=_problems(error, self._path))


def _published(prompts: OperatorPrompts) -> None:
    metrics.OPERATOR_PROMPTS_READS.labels("published").inc()
    log.info("operator_prompts_published", count=prompts.count)


def _problems(error: OSError | ValueError, path: Path) -> tuple[str, ...]:
    """What is wrong with a file, with line and remedy; never its text."""
    if isinstance(error, YamlError):
        return error.problems
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return (f"{path.name}:{line}: file: not UTF-8; save it as UTF-8",)
    if isinstance(error, OSError):
        remedy = "put the file there, readable, or unset GATEWAY_OPERATOR_PROMPTS_FILE"
        return (f"{path}: {error.strerror}; {remedy}",)
    return (str(error),)
