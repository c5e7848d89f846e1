"""A turn as server-sent events, as one body, and as JSON. Decides nothing."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc
import structlog
from google.api import httpbody_pb2

from gateway import errors
from gateway.faces.openai.chunks import (
    DONE,
    ChunkWriter,
    Completion,
    call_object,
    ending,
    usage_object,
)
from gateway.faces.openai.errors import error_object, failure_error, http_error, public_error
from gateway.faces.openai.stream import ClientWriter, EventBody
from gateway.settings import TurnLimits
from gateway.turn.answer import Answer
from gateway.turn.calls import read
from gateway.turn.domain import Event, Failed, Finished, Started
from gateway.turn.follow import Following
from gateway.turn.plan import Plan
from gateway.turn.turns import View
from mesh.chassis.errors import MeshError

JSON = "application/json"
STATUS_KEY = "x-http-status"
ACCEPTED = 202
NO_CACHE = ("cache-control", "no-cache")
# Of a body, in one message: far below what a message may have.
PIECE_BYTES = 1 << 20
# Opens the body of a reader that may have nothing to read for a while.
OPENING = b": following\n\n"

Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger()


async def write_events(
    following: Following, context: Context, limits: TurnLimits, *, at_once: bool = False
) -> None:
    """Writes what a reader follows, to the end of the turn or of the reader.

    A failure before the first byte is an HTTP status and a body; with `at_once` the body is opened
    before there is an event.
    """
    chunks, body = ChunkWriter(following.started), EventBody(context)
    client = ClientWriter(body.write, limits.heartbeat_s, limits.reader_stall_s_max)
    try:
        async with (
            asyncio.timeout(None) as limit,
            client.guarded(limit),
            aclosing(following.events()) as batches,
        ):
            if at_once:
                body.begin(headers_of(following.started), b"")
                await client.write(OPENING)
            last: Event | None = None
            async for batch in batches:
                last = batch[-1].event
                if isinstance(last, Failed) and not body.is_open:
                    raise failure_error(last)
                data = chunks.events(following.epoch, batch)
                if isinstance(last, Started):
                    body.begin(headers_of(last), data)
                    continue
                if not body.has_begun:
                    body.begin(headers_of(following.started), b"")
                await client.write(data)
            if not isinstance(last, Finished | Failed):  # the reader had seen the last event
                await client.write(DONE)
    except Exception as error:
        if not body.is_open:
            await context.write(await refused(context, error))
        elif client.is_stuck:
            # A status cannot overtake the message that is stuck; the call ends with the client or
            # at the edge. The turn goes on without this reader.
            log.warning("reader_stalled", turn_id=following.plan.turn_id)
            raise asyncio.CancelledError from error
        else:
            await client.write(chunks.error(shown(error)))


async def write_completion(following: Following, context: Context, limits: TurnLimits) -> None:
    """Writes the whole turn as one body, when it has ended; in pieces, where one would be too large
    for a message."""
    completion = Completion(following.started)
    try:
        async with aclosing(following.events()) as batches:
            async for batch in batches:
                for _, event in batch:
                    if isinstance(event, Failed):
                        raise failure_error(event)
                    completion.add(event)
    except Exception as error:
        await context.write(await refused(context, error))
        return
    await context.send_initial_metadata(headers_of(following.started))
    body = completion.body()
    try:
        for begin in range(0, len(body), PIECE_BYTES):
            piece = httpbody_pb2.HttpBody(content_type=JSON, data=body[begin : begin + PIECE_BYTES])
            async with asyncio.timeout(limits.reader_stall_s_max):
                await context.write(piece)
    except TimeoutError as error:
        # A status cannot overtake the message that is stuck.
        raise asyncio.CancelledError from error


async def write_view(view: View, context: Context) -> None:
    """Writes the turn as it is: it has been accepted and goes on without this client."""
    status = (STATUS_KEY, str(ACCEPTED))
    headers = headers_of(view.plan.started(journaled=view.journaled))
    await context.send_initial_metadata((status, *headers))
    await context.write(httpbody_pb2.HttpBody(content_type=JSON, data=turn_body(view)))


def headers_of(started: Started) -> Sequence[tuple[str, str]]:
    """Headers of an answer."""
    journal = "on" if started.journaled else "off"
    headers = [NO_CACHE, ("x-turn-id", started.turn_id), ("x-turn-journal", journal)]
    if started.conversation_id:
        headers.append(("x-conversation-id", started.conversation_id))
    return headers


def turn_body(view: View) -> bytes:
    """A turn as JSON."""
    started = view.plan.started(journaled=view.journaled)
    shown_turn: dict[str, object] = {
        "id": view.plan.turn_id,
        "object": "turn",
        "status": view.state,
        "model": started.model.id,
        "created": started.created_unix_s,
        "background": view.plan.stored.background,
        "journal": "on" if view.journaled else "off",
        "cursor": view.cursor.of(view.plan.turn_id),
        "conversation_id": started.conversation_id or None,
        "choices": [_choice(view.plan, answer) for answer in view.answers],
        "usage": usage_object(view.usage) if view.usage else None,
        "error": error_object(failure_error(view.failure)) if view.failure else None,
    }
    return json.dumps(shown_turn, ensure_ascii=False, separators=(",", ":")).encode()


def _choice(plan: Plan, answer: Answer) -> dict[str, object]:
    found = read(plan, answer)
    shown_choice: dict[str, object] = {"index": answer.choice_index, "text": found.text}
    if found.calls:
        shown_choice["tool_calls"] = [call_object(call) for call in found.calls]
    if not answer.is_finished:
        return shown_choice | {"finish_reason": None}
    return shown_choice | ending(replace(answer.finish(), finish_reason=found.finish_reason))


def shown(error: Exception) -> MeshError:
    """Any failure as the client sees it."""
    told = public_error(error)
    if told.reason == errors.INTERNAL_ERROR:
        # The type only: the text of an unknown error may hold a prompt.
        log.error("request_crashed", error=type(error).__name__)
    return told


async def refused(context: Context, error: Exception) -> httpbody_pb2.HttpBody:
    """The body of a failure; its status and headers are sent."""
    refusal = http_error(shown(error))
    await context.send_initial_metadata(
        ((STATUS_KEY, str(refusal.status)), NO_CACHE, *refusal.headers)
    )
    return httpbody_pb2.HttpBody(content_type=JSON, data=refusal.body)
