"""The rules over a conversation, on the event loop: fair, in pieces, and each message once."""

from collections.abc import Sequence

from safety_svc.backends.fair import Turns
from safety_svc.detectors.base import Finding, Turn
from safety_svc.memory import Memory, digest
from safety_svc.policy_source import Published
from safety_svc.prompt import PromptScreener
from safety_svc.screen import PIECE_LENGTH, pieces

# Messages that are looked up in one turn.
_LOOKUP_COUNT = 64


class PromptRules:
    """Reads conversations; one for the process.

    What is short is read at once. Of what is longer a piece is read in each round of the loop, some
    milliseconds at most, and the accounts take turns.
    """

    def __init__(self) -> None:
        self._memory: Memory[Finding] = Memory("rules")
        self._turns = Turns()

    async def read(
        self, screener: PromptScreener, turns: Sequence[Turn], owner: str, published: Published
    ) -> None:
        """Gives `screener` all messages: those that are new piece by piece, the others as known.

        Args:
            screener: a fresh one.
            turns: the conversation.
            owner: its account.
            published: the policy in force.
        """
        room = PIECE_LENGTH  # characters until the next turn
        for number, turn in enumerate(turns, 1):
            if number % _LOOKUP_COUNT == 0:
                await self._turns.turn(owner)
            key = digest(published.policy.digest, owner, turn.audience, turn.name, turn.text)
            known = self._memory.get(key)
            if known is not None:
                screener.known(turn, known)
                continue
            screener.message(turn)
            for piece in pieces(turn.text):
                if len(piece) > room:
                    await self._turns.turn(owner)
                    room = PIECE_LENGTH
                room -= len(piece)
                screener.piece(piece)
            self._memory.put(key, screener.close())
