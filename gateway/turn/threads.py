"""Where a turn is kept: an old thread with its history, a new one, or none."""

from ulid import ULID

from gateway.turn.domain import Ask, Caller, ModelInfo
from gateway.upstreams.conversation import Conversation, Thread


class Threads:
    """Opens threads for turns."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    async def open(self, ask: Ask, caller: Caller, model: ModelInfo) -> Thread:
        """The thread of a turn; a new one is only named here and made with its first answer.

        Raises:
            MeshError: CONVERSATION_NOT_FOUND.
        """
        if ask.conversation_id:
            # More than the context would only be dropped again.
            return await self._conversation.history(
                caller, ask.conversation_id, model.context_token_count_max
            )
        return Thread(f"thr_{ULID()}", is_new=True) if ask.store else Thread()
