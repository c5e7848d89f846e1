"""Work that goes on as long as the process does; it never ends in silence.

What ends although it should not is begun again, a little later each time. What ends again and again
is given up, and the process with it: it leaves the balancing, and its supervisor starts another.
"""

import asyncio
import contextlib
import contextvars
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import structlog
from prometheus_client import Counter

AGAIN_S_MIN = 0.1
AGAIN_S_MAX = 5.0
# Work that went on for so long was well: its next end is a first one again.
SETTLED_AFTER_S = 60.0
# Ends in a row, about 6 s when each comes at once, after which another process may do better.
ENDS_MAX = 7

Work = Callable[[], Awaitable[None]]

log = structlog.get_logger()
_ends = Counter(
    "chatmesh_background_ends_total",
    "Times that work which should go on as long as the process ended and was begun again",
    ["work"],
)


class GiveUpError(Exception):
    """Beginning again does not help; only another process does."""


async def kept(
    name: str,
    work: Work,
    *,
    ends_max: int | None = ENDS_MAX,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Does `work`, and begins it again when it returns or raises. Ends by cancellation.

    Args:
        name: in logs and metrics, such as "renewal".
        work: makes the awaitable anew each time.
        ends_max: ends in a row that are borne; None: any number.
        clock: monotonic seconds.
        sleep: waits seconds.

    Raises:
        GiveUpError: `work` raised it, or ended ends_max times in a row.
    """
    ends, delay_s = 0, AGAIN_S_MIN
    while True:
        begun = clock()
        try:
            await work()
            reason = "it returned"
        except GiveUpError:
            raise
        except Exception as error:
            # Type and place only: the text may hold what no log should.
            reason = f"{type(error).__name__} at {_place(error)}"
        _ends.labels(name).inc()
        if clock() - begun > SETTLED_AFTER_S:
            ends, delay_s = 0, AGAIN_S_MIN
        ends += 1
        log.error("background_work_ended", work=name, reason=reason, in_a_row=ends)
        if ends_max is not None and ends >= ends_max:
            raise GiveUpError(f"{name} ended {ends} times in a row: {reason}")
        await sleep(delay_s)
        delay_s = min(delay_s * 2, AGAIN_S_MAX)


@contextlib.asynccontextmanager
async def keeping(works: Mapping[str, Work], give_up: Callable[[str], None]) -> AsyncIterator[None]:
    """Keeps all of `works` going beside the block.

    Args:
        works: by name.
        give_up: told why, once, when one of them cannot go on.
    """
    # In no call's context: the deadline and the trace of whoever is served now are not theirs.
    tasks = [
        asyncio.get_running_loop().create_task(
            _kept_or_given_up(name, work, give_up), name=name, context=contextvars.Context()
        )
        for name, work in works.items()
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _kept_or_given_up(name: str, work: Work, give_up: Callable[[str], None]) -> None:
    try:
        await kept(name, work)
    except GiveUpError as error:
        give_up(f"{name}: {error}")


def _place(error: BaseException) -> str:
    trail = error.__traceback__
    place = ""
    while trail:
        code = trail.tb_frame.f_code
        place = f"{os.path.basename(code.co_filename)}:{trail.tb_lineno}"
        trail = trail.tb_next
    return place
