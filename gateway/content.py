"""The words of a turn and the numbers of content.v1: one table each, both ways."""

from chatmesh.chat.v1 import chat_pb2 as chat
from chatmesh.content.v1 import content_pb2 as pb
from mesh.chassis.enums import words_of

ROLE_WORDS = words_of(pb.Role)
ROLES = {word: number for number, word in ROLE_WORDS.items()}

FINISH_WORDS = words_of(pb.FinishReason)
FINISH_REASONS = {word: number for number, word in FINISH_WORDS.items()}
FINISH_REASONS[""] = pb.FINISH_REASON_UNSPECIFIED  # of messages that are no answers

TOOL_CHOICE_WORDS = words_of(pb.ToolChoice)
TOOL_CHOICES = {word: number for number, word in TOOL_CHOICE_WORDS.items()}

TIER_WORDS = words_of(pb.Tier)
TIERS = {word: number for number, word in TIER_WORDS.items()}

LIMIT_WORDS = words_of(pb.Limit)
LIMITS = {word: number for number, word in LIMIT_WORDS.items()}
PAYER_WORDS = words_of(pb.Payer)
PAYERS = {word: number for number, word in PAYER_WORDS.items()}

# Parts of a prompt, as `gateway.context.parts` names them.
PART_WORDS = words_of(chat.PromptPart)
PARTS = {word: number for number, word in PART_WORDS.items()}
