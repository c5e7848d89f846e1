"""The history of a turn: from the hot copy where it shows the thread as it is, else from the
truth."""

import asyncio

from prometheus_client import Counter

from conversation_svc import hot_tail
from conversation_svc.hot_tail import HotTail
from conversation_svc.store import Store
from conversation_svc.thread import Tail, selected

_reads = Counter("chatmesh_conversation_tail_reads", "Reads of a tail by result", ["result"])


async def read_history(
    store: Store,
    hot: HotTail,
    account_id: str,
    thread_id: str,
    *,
    token_count_max: int,
    message_count_max: int,
) -> Tail:
    """The newest messages of a thread that fit, and its system messages.

    Args:
        token_count_max: most tokens of all messages; 0: any.
        message_count_max: most messages.

    Raises:
        ThreadNotFoundError: the account has no such thread.
        StoreUnavailableError: PostgreSQL does not answer; the copy alone is not enough, because
            it may be older than the thread.
    """
    copy, thread = await asyncio.gather(
        hot.get(account_id, thread_id), store.get_thread(account_id, thread_id)
    )
    if copy is not None and hot_tail.shows(copy, thread):
        fresh = Tail(thread, copy.messages)  # a title may be newer than the copy's
        answer = selected(fresh, token_count_max, message_count_max, is_all_there_is=False)
        if answer is not None:
            _reads.labels("hit").inc()
            return answer
    _reads.labels("miss" if copy is None else "stale_or_short").inc()
    limit = max(message_count_max, hot_tail.MESSAGE_COUNT_MAX)
    truth = await store.read_tail(account_id, thread, limit)
    await hot.put(account_id, truth)
    answer = selected(truth, token_count_max, message_count_max, is_all_there_is=True)
    assert answer is not None
    return answer
