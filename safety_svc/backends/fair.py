"""What waits, fair between those who wait. Pure, but for `Turns`, which needs a loop."""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by owner: the owners take turns, and of each the first item comes first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: str, item: T) -> None:
        """Appends an item; an owner that has none yet is the last whose turn comes."""
        self._waiting.setdefault(owner, deque()).append(item)
        self._count += 1

    def peek(self) -> T:
        """The next item; there must be one."""
        return next(iter(self._waiting.values()))[0]

    def get(self) -> T:
        """Takes the next item; raises KeyError when there is none."""
        owner, items = self._waiting.popitem(last=False)
        item = items.popleft()
        if items:
            self._waiting[owner] = items
        self._count -= 1
        return item


class Turns:
    """Turns at the event loop: one for each of its rounds, the owners one after the other.

    Work that needs many turns holds nobody up for longer than one, and its owner's other work waits
    with it.
    """

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._giving: asyncio.Task[None] | None = None

    async def turn(self, owner: str) -> None:
        """Returns when `owner` may work until it next awaits something."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.put(owner, mine)
        if self._giving is None or self._giving.done():
            self._giving = asyncio.create_task(self._give())
        await mine

    async def _give(self) -> None:
        while len(self._waiting):
            one = self._waiting.get()
            if not one.done():  # who gave up takes no turn
                one.set_result(None)
                await asyncio.sleep(0)
