"""Contract <-> domain: messages in, checked; decisions out. Decides nothing."""

import json
import re
from collections.abc import Iterable, Sequence

import grpc

from chatmesh.content.v1 import content_pb2
from chatmesh.safety.v1 import safety_pb2 as pb
from mesh.chassis.errors import MeshError
from safety_svc.audit import Grounds
from safety_svc.detectors.base import Audience, PromptFinding
from safety_svc.masking import Mask
from safety_svc.policy import TIER_WORDS, TIERS, Action, Policy

MESSAGE_COUNT_MAX = 4_096
CONTENT_BYTE_COUNT_MAX = 1 << 20
REPLY_BYTE_COUNT_MAX = 4 << 20
CHOICE_INDEX_MAX = 3
NAME_LENGTH_MAX = 64

# What a person is told whose prompt was not judged whole.
UNREAD = (
    "The conversation holds more new text than is checked at once, so it is not answered. Send it "
    "in several turns, or shorten it."
)

_ID = re.compile(r"[!-~]{1,128}")
_COUNTRY = re.compile(r"(?:[A-Z]{2})?")
AUDIENCES = {
    content_pb2.ROLE_UNSPECIFIED: Audience.USER,
    content_pb2.ROLE_SYSTEM: Audience.SYSTEM,
    content_pb2.ROLE_USER: Audience.USER,
    content_pb2.ROLE_ASSISTANT: Audience.ASSISTANT,
    content_pb2.ROLE_TOOL: Audience.TOOL,
}


def audience(role: "content_pb2.Role.ValueType") -> Audience:
    """Who wrote a message of this role."""
    return AUDIENCES.get(role, Audience.USER)


def tier_of(subject: pb.Subject) -> str:
    """The tier as a word; a caller of the version before sends it so."""
    return TIER_WORDS.get(subject.account_tier, subject.tier)


def verdict(
    audit_id: str,
    grounds: Grounds,
    findings: Iterable[PromptFinding],
    masks: Iterable[pb.Mask],
    policy: Policy,
) -> pb.Verdict:
    """The decision as the caller sees it."""
    action, category = grounds.judgement.action, grounds.judgement.category
    refused = action > Action.REDACT
    return pb.Verdict(
        action=pb.Action.Value(f"ACTION_{action.name}"),
        category=_category(category) if category else pb.CATEGORY_UNSPECIFIED,
        findings=[
            pb.Finding(
                category=_category(finding.category),
                score=finding.score,
                detector=finding.detector,
                start_offset=finding.start,
                end_offset=finding.end,
                message_index=index,
            )
            for index, finding in findings
        ],
        policy_version=policy.version,
        audit_id=audit_id,
        message=(policy.message(category) if category else UNREAD) if refused else "",
        masks=masks,
        knows_masks=True,
        unjudged=[
            pb.Unjudged(message_index=index, start_offset=start, end_offset=end)
            for index, start, end in grounds.unjudged
        ],
    )


def masks_of(
    masks: Sequence[Mask], policy: Policy, message_index: int = 0, *, is_json: bool = False
) -> list[pb.Mask]:
    """Masks with what stands in their place; in a string of JSON it is escaped."""
    return [
        pb.Mask(
            start_offset=start,
            end_offset=end,
            replacement=_escaped(policy.mask(kind)) if is_json else policy.mask(kind),
            message_index=message_index,
        )
        for start, end, kind in masks
    ]


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _category(category: str) -> pb.Category.ValueType:
    return pb.Category.Value(f"CATEGORY_{category.upper()}")


def check_subject(subject: pb.Subject) -> None:
    """Raises MeshError when a subject is out of its range."""
    for name in ("turn_id", "account_id"):
        if not _ID.fullmatch(getattr(subject, name)):
            raise bad(f"subject.{name} must be 1 to 128 visible ASCII characters.", name)
    if tier_of(subject) not in TIERS:
        raise bad(f"subject.account_tier must be one of {', '.join(TIERS)}.", "tier")
    if not _COUNTRY.fullmatch(subject.jurisdiction):
        raise bad(
            "subject.jurisdiction must be a country code such as DE, or empty.", "jurisdiction"
        )


def check_messages(request: pb.ScreenPromptRequest) -> None:
    """Raises MeshError when messages are out of their range."""
    if not 1 <= len(request.messages) <= MESSAGE_COUNT_MAX:
        raise bad(f"messages must hold 1 to {MESSAGE_COUNT_MAX} entries.", "messages")
    for index, message in enumerate(request.messages):
        if message.parts:  # what is not read is not judged, either
            raise bad(f"messages[{index}].parts is not empty: give the text as content.", "parts")
        if len(message.name) > NAME_LENGTH_MAX:
            raise bad(
                f"messages[{index}].name is over {NAME_LENGTH_MAX} characters: shorten it.", "name"
            )
        if len(message.content) * 4 > CONTENT_BYTE_COUNT_MAX < len(message.content.encode()):
            raise bad(f"messages[{index}].content is over 1 MiB: shorten it.", "content")


def check_start(first: pb.ScreenReplyRequest | None) -> pb.ReplyStart:
    """The first message of a stream; raises MeshError when it is another one."""
    if first is None or first.WhichOneof("event") != "start":
        raise bad("The first message must be `start`.", "start")
    start = first.start
    check_subject(start.subject)
    if start.choice_index > CHOICE_INDEX_MAX:
        raise bad(f"choice_index is {start.choice_index}: use 0 to 3.", "choice_index")
    if len(start.released_text) > REPLY_BYTE_COUNT_MAX:
        raise bad(f"released_text is over {REPLY_BYTE_COUNT_MAX} bytes.", "released_text")
    return start


def bad(message: str, param: str) -> MeshError:
    """BAD_REQUEST for one field."""
    return MeshError(
        grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", message, metadata={"param": param}
    )


def unjudged() -> MeshError:
    """BACKEND_UNAVAILABLE."""
    return MeshError(
        grpc.StatusCode.UNAVAILABLE,
        "BACKEND_UNAVAILABLE",
        "The classifier gave no answer, so no decision was made. Try again; if it lasts, the "
        "operator must look at the log of the safety service.",
        retry_after_s=1.0,
    )


def overloaded() -> MeshError:
    """OVERLOADED."""
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "OVERLOADED",
        "Too many prompts wait for the classifier, so no decision was made. Try again shortly.",
        retry_after_s=1.0,
    )
