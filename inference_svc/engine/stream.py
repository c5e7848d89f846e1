"""The loop's end of one generation: what has arrived and was not taken yet.

An engine feeds it on the event loop's thread; the service takes everything that is there at once,
so a slow reader gets fewer, larger messages. It is bounded by the request's own max_tokens.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the protocol names this class
    from inference_svc.engine.protocol import EngineError, Finish, TokenLogprobs


@dataclass(slots=True)
class GeneratedCounts:
    """What one attempt used up to now, in tokens.

    Attributes:
        cached: prompt positions [0, cached) came from the prefix cache.
        prefilled: prompt positions [cached, prefilled) were computed.
        output: output positions [emitted before, output) were generated.
    """

    cached: int = 0
    prefilled: int = 0
    output: int = 0


@dataclass(slots=True)
class TokenDelta:
    """Consecutive new tokens, and the end when `finish` is set.

    Attributes:
        first_position: position in the answer of token_ids[0].
        text: text that became final with these tokens, in pieces.
    """

    first_position: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: "list[TokenLogprobs]" = field(default_factory=list)
    finish: "Finish | None" = None


class TokenStream:
    """A generation, as its reader sees it.

    `source`, when given, is called for more tokens each time the reader asks and nothing is there:
    an engine that needs no time hands over a batch instead of waking the reader for each token.
    """

    def __init__(
        self,
        emitted_count: int,
        on_cancel: Callable[[], None],
        source: Callable[[], None] | None = None,
    ) -> None:
        self.counts = GeneratedCounts(output=emitted_count)
        self._on_cancel, self._source = on_cancel, source
        self._next_position = emitted_count
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._finish: Finish | None = None
        self._error: EngineError | None = None
        self._enough = 1
        self._ended = asyncio.Event()
        self._arrived = asyncio.Event()
        self._ripe = asyncio.Event()

    @property
    def done(self) -> bool:
        """Nothing more will arrive (what has arrived may still wait to be taken)."""
        return self._ended.is_set()

    @property
    def finish(self) -> "Finish | None":
        """How it ended; None while it runs, and when it failed."""
        return self._finish

    def feed(
        self, token_ids: Sequence[int], text: str, logprobs: "Sequence[TokenLogprobs]" = ()
    ) -> None:
        """The engine adds tokens."""
        self._ids += token_ids
        if text:
            self._texts.append(text)
        if logprobs:
            self._logprobs += logprobs
        self.counts.output += len(token_ids)
        self._arrived.set()
        if len(self._ids) >= self._enough:
            self._ripe.set()

    def end(self, finish: "Finish") -> None:
        """The engine ends the stream."""
        self._finish = finish
        self._close()

    def fail(self, error: "EngineError") -> None:
        """The engine gives this request up."""
        self._error = error
        self._close()

    def _close(self) -> None:
        self._ended.set()
        self._arrived.set()
        self._ripe.set()

    def poke(self) -> None:
        """The engine's source has tokens now."""
        self._arrived.set()

    def cancel(self) -> None:
        """Asks the engine to stop; the stream ends soon after. Repeatable."""
        if not self.done:
            self._on_cancel()

    async def take(self, hold_s: float = 0.0, enough: int = 1) -> TokenDelta:
        """What has arrived: at least one token, or the end.

        Once something is there, waits up to `hold_s` seconds for `enough` tokens or the end.

        Raises:
            EngineError: the engine gave this request up; tokens before it are taken first.
        """
        await self._something()
        if hold_s > 0 and self._source is None and not self.done and len(self._ids) < enough:
            await self._hold(hold_s, enough)
        if self._error is not None and not self._ids:
            raise self._error
        delta = TokenDelta(
            self._next_position, self._ids, "".join(self._texts), self._logprobs, self._finish
        )
        self._next_position += len(self._ids)
        self._ids, self._texts, self._logprobs = [], [], []
        return delta

    async def _something(self) -> None:
        while not self._ids and not self.done:
            if self._source is not None:
                self._source()
            if not self._ids and not self.done:
                self._arrived.clear()
                await self._arrived.wait()

    async def _hold(self, hold_s: float, enough: int) -> None:
        self._enough = enough
        self._ripe.clear()
        timer = asyncio.get_running_loop().call_later(hold_s, self._ripe.set)
        await self._ripe.wait()
        timer.cancel()

    async def ended(self) -> None:
        """Waits for the end; takes nothing."""
        await self._ended.wait()
