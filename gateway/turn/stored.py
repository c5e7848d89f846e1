"""A turn as the journal keeps it: what happened since the last write, and all of it read back.

The stored form is `gateway/v1/journal.proto`. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chatmesh.chat.v1 import chat_pb2 as chat
from chatmesh.content.v1 import content_pb2
from chatmesh.gateway.v1 import journal_pb2 as pb
from gateway.content import (
    FINISH_REASONS,
    FINISH_WORDS,
    LIMIT_WORDS,
    LIMITS,
    PART_WORDS,
    PARTS,
    PAYER_WORDS,
    PAYERS,
)
from gateway.turn.answer import Answer, HeldFrame
from gateway.turn.domain import (
    Bound,
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    LeftOut,
    Logprob,
    Started,
    TextDelta,
    Usage,
)
from gateway.turn.events import Numbered


@dataclass(slots=True)
class _Mark:
    """How much of an answer was written."""

    token_count: int = 0
    byte_count: int = 0


class Progress:
    """What of a turn is not written yet; each batch begins where the one before ended."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self.rewind()

    def rewind(self) -> None:
        """The next batch has everything: the journal lost what it had."""
        self._marks = [_Mark() for _ in self._answers]

    def written(self) -> None:
        """The next batch has what happens from now on: all that is there was read from there."""
        for answer, mark in zip(self._answers, self._marks, strict=True):
            mark.token_count, mark.byte_count = len(answer.token_ids), len(answer.text_bytes)

    def batch(self, events: Iterable[Numbered]) -> bytes:
        """What happened since the last batch, with the events given."""
        batch = pb.JournalBatch(events=[event_to_stored(*each) for each in events])
        for answer, mark in zip(self._answers, self._marks, strict=True):
            batch.progress.append(_progress(answer, mark))
            mark.token_count, mark.byte_count = len(answer.token_ids), len(answer.text_bytes)
        return batch.SerializeToString()


def _progress(answer: Answer, mark: _Mark) -> pb.AnswerProgress:
    return pb.AnswerProgress(
        choice_index=answer.choice_index,
        token_ids=answer.token_ids[mark.token_count :],
        text=answer.text_bytes[mark.byte_count :].decode(),
        released_offset=answer.released_offset,
        released_token_count=answer.released_token_count,
        held=[
            pb.HeldFrame(
                start_offset=frame.start,
                end_offset=frame.end,
                token_count=frame.token_count,
                logprobs=[logprobs_to_stored(each) for each in frame.logprobs],
            )
            for frame in answer.held
        ],
        cached_token_count=answer.cached_token_count,
    )


def read_batches(
    batches: Iterable[bytes], started: Started, answers: Sequence[Answer]
) -> list[Numbered]:
    """The events of a turn, in order; the answers take over what is known of them."""
    events: list[Numbered] = []
    for data in batches:
        batch = pb.JournalBatch.FromString(data)
        for each in batch.progress:
            answers[each.choice_index].resume(
                token_ids=each.token_ids,
                text=each.text,
                released_offset=each.released_offset,
                released_token_count=each.released_token_count,
                held=[_held(frame) for frame in each.held],
                cached_token_count=each.cached_token_count,
            )
        for stored in batch.events:
            event = event_of_stored(stored, started)
            events.append(Numbered(stored.number, event))
            if isinstance(event, TextDelta | ChoiceFinished):
                answers[event.choice_index].replay(event)
    return events


def events_of(data: bytes, started: Started) -> list[Numbered]:
    """The events of one batch."""
    batch = pb.JournalBatch.FromString(data)
    return [Numbered(stored.number, event_of_stored(stored, started)) for stored in batch.events]


def _held(frame: pb.HeldFrame) -> HeldFrame:
    logprobs = [logprobs_of_stored(each) for each in frame.logprobs]
    return HeldFrame(frame.start_offset, frame.end_offset, frame.token_count, logprobs)


def event_to_stored(number: int, event: Event) -> pb.JournalEvent:
    """An event in its stored form."""
    stored = pb.JournalEvent(number=number)
    if isinstance(event, TextDelta):
        delta = chat.TextDelta(
            choice_index=event.choice_index, text=event.text, token_count=event.token_count
        )
        delta.logprobs.extend(logprobs_to_stored(each) for each in event.logprobs)
        stored.delta.CopyFrom(delta)
    elif isinstance(event, Started):
        stored.started = True
    elif isinstance(event, ChoiceFinished):
        stored.choice_finished.choice_index = event.choice_index
        stored.choice_finished.finish_reason = FINISH_REASONS[event.finish_reason]
        stored.choice_finished.filter_category = event.filter_category
        stored.choice_finished.filter_offset = event.filter_offset
        bound_to_stored(event.bound, stored.choice_finished)
    elif isinstance(event, Finished):
        stored.finished.prompt_token_count = event.usage.prompt_token_count
        stored.finished.cached_token_count = event.usage.cached_token_count
        stored.finished.completion_token_count = event.usage.completion_token_count
    else:
        stored.failed.reason, stored.failed.message = event.reason, event.message
        stored.failed.metadata.update(event.metadata)
    return stored


def event_of_stored(stored: pb.JournalEvent, started: Started) -> Event:
    """The event of a stored form; `started` is what the plan says of the first."""
    kind = stored.WhichOneof("event")
    if kind == "delta":
        found = stored.delta
        logprobs = [logprobs_of_stored(each) for each in found.logprobs]
        return TextDelta(found.choice_index, found.text, found.token_count, logprobs)
    if kind == "choice_finished":
        ended = stored.choice_finished
        reason = FINISH_WORDS[ended.finish_reason]
        return ChoiceFinished(
            ended.choice_index,
            reason,
            ended.filter_category,
            ended.filter_offset,
            bound_of(ended.limit, ended.limit_payer),
        )
    if kind == "finished":
        used = stored.finished
        return Finished(
            Usage(used.prompt_token_count, used.cached_token_count, used.completion_token_count)
        )
    if kind == "failed":
        failed = stored.failed
        return Failed(failed.reason, failed.message, dict(failed.metadata))
    return started


def bound_to_stored(bound: Bound | None, ended: chat.ChoiceFinished) -> None:
    """Which limit cut an answer, as the contract has it."""
    if bound:
        ended.limit, ended.limit_payer = LIMITS[bound.limit], PAYERS[bound.payer]


def bound_of(limit: int, payer: int) -> Bound | None:
    """A limit of content.v1 and whose it is, in words; None: none, or one of a later version."""
    found = LIMIT_WORDS.get(content_pb2.Limit.ValueType(limit))
    whose = PAYER_WORDS.get(content_pb2.Payer.ValueType(payer), "account")
    return Bound(found, whose) if found else None


def left_out_to_stored(entry: LeftOut) -> chat.LeftOut:
    """What the model did not read of a part, as the contract has it."""
    return chat.LeftOut(
        part=PARTS[entry.part], message_count=entry.message_count, token_count=entry.token_count
    )


def left_out_of_stored(entry: chat.LeftOut) -> LeftOut:
    """And back."""
    tokens = entry.token_count if entry.HasField("token_count") else None
    return LeftOut(PART_WORDS[entry.part], entry.message_count, tokens)


def logprobs_to_stored(entry: Logprob) -> chat.PositionLogprobs:
    """Log probabilities of a position, as the contract has them."""

    def one(token: Logprob) -> chat.TokenLogprob:
        return chat.TokenLogprob(text=token.text, logprob=token.logprob)

    return chat.PositionLogprobs(chosen=one(entry), top=[one(token) for token in entry.top])


def logprobs_of_stored(entry: chat.PositionLogprobs) -> Logprob:
    """And back."""

    def one(token: chat.TokenLogprob, top: Sequence[Logprob] = ()) -> Logprob:
        return Logprob(token.text, token.logprob, top)

    return one(entry.chosen, [one(token) for token in entry.top])
