"""Models, conversations and usage as JSON. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from chatmesh.billing.v1 import billing_pb2
from chatmesh.conversation.v1 import conversation_pb2
from gateway.content import FINISH_WORDS, PAYER_WORDS, ROLE_WORDS
from gateway.errors import bad_parameter
from gateway.faces.openai.chunks import call_object
from gateway.turn.domain import ModelInfo
from gateway.upstreams.contents import call_id_in, calls_in

THREADS_PAGE_SIZE_MAX = 100
MESSAGES_PAGE_SIZE_MAX = 1000
NANOUSD_PER_USD = 1_000_000_000


def page_size(text: str, maximum: int) -> int:
    """A page size from a query; "" is 0, the default.

    Raises:
        MeshError: INVALID_PARAMETER.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(maximum))):
        raise bad_parameter("page_size", f"page_size must be a number from 1 to {maximum}.")
    if not 1 <= int(text) <= maximum:
        raise bad_parameter("page_size", f"page_size must be from 1 to {maximum}.")
    return int(text)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _model(model: ModelInfo) -> dict[str, object]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_unix_s,
        "owned_by": "chatmesh",
        "context_window": model.context_token_count_max,
    }


def models(found: Sequence[ModelInfo]) -> bytes:
    """A list of models."""
    return _json({"object": "list", "data": [_model(model) for model in found]})


def model(found: ModelInfo) -> bytes:
    """One model."""
    return _json(_model(found))


def _thread(found: conversation_pb2.Thread) -> dict[str, object]:
    return {
        "id": found.id,
        "object": "conversation",
        "title": found.title,
        "model": found.model,
        "created_at": found.create_time.seconds,
        "updated_at": found.update_time.seconds,
        "total_tokens": found.total_token_count,
        "message_count": found.message_count,
        "background": found.background,
    }


def _message(found: conversation_pb2.Message) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": found.id,
        "role": ROLE_WORDS.get(found.role, "user"),
        "content": found.content,
        "created_at": found.create_time.seconds,
        "token_count": found.token_count,
        "turn_id": found.turn_id,
    }
    if calls := calls_in(found.parts):
        shown["tool_calls"] = [call_object(call) for call in calls]
    if call_id := call_id_in(found.parts):
        shown["tool_call_id"] = call_id
    # A store of the version before says the word only.
    if reason := FINISH_WORDS.get(found.finish) or found.finish_reason:
        shown |= {"finish_reason": reason, "model": found.model}
    return shown


def threads(page: conversation_pb2.ListThreadsResponse) -> bytes:
    """A page of conversations."""
    data = [_thread(each) for each in page.threads]
    return _json({"object": "list", "data": data, "next_page_token": page.next_page_token})


def thread(
    found: conversation_pb2.Thread, page: conversation_pb2.ListMessagesResponse | None = None
) -> bytes:
    """One conversation, with a page of its messages where there is one."""
    shown = _thread(found)
    if page is not None:
        shown["messages"] = [_message(each) for each in page.messages]
        shown["next_page_token"] = page.next_page_token
    return _json(shown)


def deleted(thread_id: str) -> bytes:
    """What a delete answers."""
    return _json({"id": thread_id, "object": "conversation", "deleted": True})


def _usd(nanousd: int) -> float | None:
    return None if nanousd < 0 else nanousd / NANOUSD_PER_USD


def _limits(found: billing_pb2.Limits) -> dict[str, object]:
    """What may be used, and is; null is no limit."""
    return {
        "id": found.id,
        "of": PAYER_WORDS.get(found.payer, "account"),
        "budget_usd": _usd(found.monthly_budget_nanousd),
        "spent_usd": _usd(found.spent_nanousd),
        "held_usd": _usd(found.held_nanousd),
        "tokens_per_minute": _count(found.tokens_per_minute),
        "tokens_this_minute": found.minute_token_count,
        "parallel_requests": _count(found.parallel_max),
        "running_requests": found.running_count,
    }


def _count(limit: int) -> int | None:
    return None if limit < 0 else limit


def usage(found: billing_pb2.GetUsageResponse) -> bytes:
    """The usage of a month; a budget of null is no limit."""
    return _json(
        {
            "object": "usage",
            "period": found.period,
            "input_tokens": found.input_token_count,
            "cached_input_tokens": found.cached_input_token_count,
            "output_tokens": found.output_token_count,
            "total_tokens": found.input_token_count + found.output_token_count,
            "cost_usd": _usd(found.cost_nanousd),
            "budget_usd": _usd(found.budget_nanousd),
            "held_usd": _usd(found.held_nanousd),
            "turn_count": found.turn_count,
            "limits": [_limits(each) for each in found.limits],
            "keys": [
                {
                    "key_id": each.key_id or None,
                    "name": each.name,
                    "input_tokens": each.input_token_count,
                    "cached_input_tokens": each.cached_input_token_count,
                    "output_tokens": each.output_token_count,
                    "cost_usd": _usd(each.cost_nanousd),
                    "turn_count": each.turn_count,
                }
                for each in found.keys
            ],
            "models": [
                {
                    "model": each.model,
                    "input_tokens": each.input_token_count,
                    "cached_input_tokens": each.cached_input_token_count,
                    "output_tokens": each.output_token_count,
                    "cost_usd": _usd(each.cost_nanousd),
                }
                for each in found.models
            ],
        }
    )
