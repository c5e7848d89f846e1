"""Small real servicers that stand where the gateway's upstreams do; each test says what they do.

Words are tokens here: "two words" is two tokens, each id the word's place in `Words`.
"""

# ruff: noqa: N802  the names are the contracts'

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import grpc

from chatmesh.billing.v1 import billing_pb2_grpc
from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2, conversation_pb2_grpc
from chatmesh.inference.v1 import inference_pb2, inference_pb2_grpc
from chatmesh.safety.v1 import safety_pb2, safety_pb2_grpc
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh.chassis.errors import MeshError
from tests.support.call_syntax import CALL_SYNTAX
from tests.support.fake_billing import FakeBilling
from tests.support.fake_faults import Faults, failure

MODEL = "chatmesh-tiny"
CONTEXT = 4096
FOREVER_S = 30.0


class FakeConversation(
    conversation_pb2_grpc.ThreadReadServiceServicer,
    conversation_pb2_grpc.ThreadWriteServiceServicer,
):
    """Keeps threads in memory, each account's its own."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.threads: dict[tuple[str, str], list[conversation_pb2.NewMessage]] = {}
        self.appended: list[conversation_pb2.AppendMessagesRequest] = []
        # How many of the oldest messages a tail leaves out.
        self.omit = 0
        self.stored = asyncio.Event()
        # What owners asked for, by thread.
        self.background: dict[str, bool] = {}

    def _of(self, request) -> list[conversation_pb2.NewMessage]:
        try:
            return self.threads[request.account_id, request.thread_id]
        except KeyError:
            raise failure(grpc.StatusCode.NOT_FOUND, "THREAD_NOT_FOUND") from None

    def _thread(self, thread_id: str) -> conversation_pb2.Thread:
        thread = conversation_pb2.Thread(id=thread_id, title="A title", model=MODEL)
        thread.background = self.background.get(thread_id, False)
        thread.create_time.FromSeconds(1_700_000_000)
        thread.update_time.FromSeconds(1_700_000_100)
        thread.total_token_count = 12
        return thread

    async def GetTail(self, request, context):
        self.faults.check("GetTail")
        messages = [
            conversation_pb2.Message(
                **{name: getattr(each, name) for name in ("role", "content", "token_count")},
                parts=each.parts,
            )
            for each in self._of(request)
        ]
        tail = conversation_pb2.GetTailResponse(
            thread=self._thread(request.thread_id),
            messages=messages[self.omit :],
            omitted_message_count=self.omit,
        )
        tail.thread.total_token_count = sum(each.token_count for each in messages)
        return tail

    async def GetThread(self, request, context):
        self._of(request)
        return conversation_pb2.GetThreadResponse(thread=self._thread(request.thread_id))

    async def ListThreads(self, request, context):
        if request.page_token not in ("", "next"):
            raise failure(grpc.StatusCode.INVALID_ARGUMENT, "BAD_PAGE_TOKEN")
        mine = [each for account, each in self.threads if account == request.account_id]
        return conversation_pb2.ListThreadsResponse(
            threads=[self._thread(each) for each in mine], next_page_token="next"
        )

    async def ListMessages(self, request, context):
        result = conversation_pb2.ListMessagesResponse()
        for index, each in enumerate(self._of(request)):
            message = result.messages.add(
                id=f"msg_{index}",
                role=each.role,
                content=each.content,
                token_count=each.token_count,
                turn_id="T",
                finish_reason=each.finish_reason,
                finish=each.finish,
                model=each.model,
                parts=each.parts,
            )
            message.create_time.FromSeconds(1_700_000_000 + index)
        return result

    async def AppendMessages(self, request, context):
        self.faults.check("AppendMessages")
        key = (request.account_id, request.thread_id)
        if request.create_if_missing:
            self.threads.setdefault(key, [])
        self._of(request).extend(request.messages)
        self.appended.append(request)
        self.stored.set()
        return conversation_pb2.AppendMessagesResponse(thread=self._thread(request.thread_id))

    async def UpdateThread(self, request, context):
        self._of(request)
        if request.HasField("background"):
            self.background[request.thread_id] = request.background
        thread = self._thread(request.thread_id)
        thread.title = request.title or thread.title
        return conversation_pb2.UpdateThreadResponse(thread=thread)

    async def RenameThread(self, request, context):
        self._of(request)
        thread = self._thread(request.thread_id)
        thread.title = request.title
        return conversation_pb2.RenameThreadResponse(thread=thread)

    async def DeleteThread(self, request, context):
        self._of(request)
        del self.threads[request.account_id, request.thread_id]
        return conversation_pb2.DeleteThreadResponse()


class FakeSafety(safety_pb2_grpc.SafetyServiceServicer):
    """Blocks prompts that have `bad_prompt`, and answers at `bad_reply`; releases all else."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.bad_prompt = "FORBIDDEN"
        self.bad_reply = "POISON"
        self.bad_prompt_action = safety_pb2.ACTION_BLOCK
        # With ACTION_REDACT: what of the prompt is masked.
        self.bad_prompt_masks: list[safety_pb2.Mask] = []
        # What comes with the release that covers it.
        self.reply_masks: list[safety_pb2.Mask] = []
        # Verdict of answers that are halted.
        self.bad_reply_verdict = safety_pb2.Verdict(action=safety_pb2.ACTION_BLOCK)
        # Verdict of answers that are cleared.
        self.reply_verdict = safety_pb2.Verdict(action=safety_pb2.ACTION_ALLOW)
        # Bytes that wait for more context before they are released.
        self.window = 0
        self.prompts: list[safety_pb2.ScreenPromptRequest] = []
        self.starts: list[safety_pb2.ReplyStart] = []
        self.delta_token_counts: list[int] = []
        # Set at each delta of a choice.
        self.seen = [asyncio.Event() for _ in range(4)]
        # A stream breaks after so many deltas; one entry a stream, None for those that do not.
        self.break_reply_after: list[int | None] = []
        # So many streams decide nothing, ever, about an answer that has ended.
        self.undecided_count = 0

    async def ScreenPrompt(self, request, context):
        self.faults.check("ScreenPrompt")
        self.prompts.append(request)
        verdict = safety_pb2.Verdict(action=safety_pb2.ACTION_ALLOW)
        if any(self.bad_prompt in each.content for each in request.messages):
            verdict.action = self.bad_prompt_action
            verdict.category = safety_pb2.CATEGORY_VIOLENCE
            verdict.message = "That is not something to help with."
            verdict.masks.extend(self.bad_prompt_masks)
        return safety_pb2.ScreenPromptResponse(verdict=verdict)

    async def ScreenReply(self, requests, context):
        text, seen, released, choice = "", 0, 0, 0
        break_after = self.break_reply_after.pop(0) if self.break_reply_after else None
        async for request in requests:
            event = request.WhichOneof("event")
            if event == "start":
                self.starts.append(request.start)
                choice = request.start.choice_index
                continue
            if event == "end":
                break
            seen += 1
            self.seen[choice].set()
            if break_after is not None and seen > break_after:
                raise failure(grpc.StatusCode.UNAVAILABLE)
            text += request.delta.text
            self.delta_token_counts.append(request.delta.token_count)
            if (at := text.find(self.bad_reply)) >= 0:
                clean = safety_pb2.Release(release_up_to_offset=len(text[:at].encode()))
                yield safety_pb2.ScreenReplyResponse(release=clean)
                block = safety_pb2.Block(
                    verdict=self.bad_reply_verdict, offset=len(text[:at].encode())
                )
                yield safety_pb2.ScreenReplyResponse(block=block)
                return
            upto = max(released, len(text.encode()) - self.window)
            if upto > released:
                masks = [each for each in self.reply_masks if released < each.end_offset <= upto]
                released = upto
                release = safety_pb2.Release(release_up_to_offset=released, masks=masks)
                yield safety_pb2.ScreenReplyResponse(release=release)
        if self.undecided_count:
            self.undecided_count -= 1
            await asyncio.Event().wait()
        cleared = safety_pb2.Cleared(verdict=self.reply_verdict)
        yield safety_pb2.ScreenReplyResponse(cleared=cleared)


class FakeTokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """A token a word."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.context = CONTEXT
        # How many of the oldest messages that are no system messages do not fit.
        self.drop = 0
        self.requests: list[tokenizer_pb2.EncodeRequest] = []
        self.counted: list[tokenizer_pb2.CountTokensRequest] = []

    async def Encode(self, request, context):
        self.requests.append(request)
        self.faults.check("Encode")
        system = content_pb2.ROLE_SYSTEM
        others = [i for i, each in enumerate(request.messages) if each.role != system]
        gone = others[: self.drop]
        kept = [each for i, each in enumerate(request.messages) if i not in gone]
        counts = [max(1, len(each.content.split())) for each in kept]
        count = sum(counts)
        if count + max(1, request.max_tokens) > self.context:
            raise failure(
                grpc.StatusCode.INVALID_ARGUMENT,
                "CONTEXT_LENGTH_EXCEEDED",
                limit=str(self.context),
                count=str(count),
            )
        return tokenizer_pb2.EncodeResponse(
            token_ids=range(1, count + 1),
            dropped_message_count=self.drop,
            answer_token_count_max=self.context - count,
            context_token_count_max=self.context,
            message_token_counts=counts,
            call_syntax=CALL_SYNTAX if request.HasField("tool_use") else None,
        )

    async def CountTokens(self, request, context):
        self.counted.append(request)
        self.faults.check("CountTokens")
        counts = [len(each.split()) for each in request.texts]
        return tokenizer_pb2.CountTokensResponse(text_token_counts=counts)


@dataclass
class Script:
    """What a fake node does with a request."""

    # One entry a message: its text, one token each word (at least one).
    frames: list[str] = field(default_factory=lambda: ["Hello", " wide", " world", "."])
    finish: "content_pb2.FinishReason.ValueType" = content_pb2.FINISH_REASON_STOP
    # After so many frames of an attempt this is raised.
    break_after: int | None = None
    error: MeshError | None = None
    # Wait for this before the frame of that index.
    gate_at: int | None = None


class FakeInference(inference_pb2_grpc.InferenceServiceServicer):
    """Says what its script says; continues where `emitted_token_ids` end, as a real node does."""

    def __init__(self, name: str = "inference-1") -> None:
        self.name = name
        self.faults = Faults()
        # By attempt; the last one serves all further attempts.
        self.scripts = [Script()]
        self.choose: Callable[[inference_pb2.GenerateRequest], Script] | None = None
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.pins: list[str] = []
        self.gate = asyncio.Event()
        self.at_gate = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.models = [MODEL]
        # Whether another node would draw the same tokens.
        self.draws_by_position = True
        self.binds_calls = True
        self.sent_frame_count = 0
        # Each frame but the first waits for this event of its choice: so that a test knows what
        # the gateway can put into one message. Given by `Fakes`.
        self.pace: list[asyncio.Event] = []

    async def ListModels(self, request, context):
        self.faults.check("ListModels")
        return inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(
                    id=each,
                    context_token_count_max=CONTEXT,
                    engine="simulated",
                    tokenizer_digest="d",
                    draws_by_position=self.draws_by_position,
                    binds_calls=self.binds_calls,
                    created_unix_s=1_700_000_000,
                )
                for each in self.models
            ]
        )

    async def WatchLoad(self, request, context):
        yield inference_pb2.WatchLoadResponse(
            running_count=len(self.requests),
            queue_depth_max=8,
            kv_block_count=100,
            kv_block_free_count=90,
            kv_block_token_count=16,
        )
        await asyncio.wait_for(self.gate.wait(), FOREVER_S)

    async def Generate(self, request, context):
        self.requests.append(request)
        metadata = dict(context.invocation_metadata())
        self.pins.append(metadata.get("x-chatmesh-instance", ""))
        self.faults.check("Generate")
        script = self.scripts[min(request.attempt, len(self.scripts) - 1)]
        if self.choose:
            script = self.choose(request)
        try:
            async for response in self._play(script, request):
                yield response
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _play(self, script: Script, request):
        started = inference_pb2.Started(instance=self.name)
        yield inference_pb2.GenerateResponse(started=started)
        position, emitted, sent = 0, len(request.emitted_token_ids), 0
        for index, text in enumerate(script.frames):
            ids = [1000 + position + offset for offset in range(max(1, len(text.split())))]
            position += len(ids)
            if position <= emitted:
                continue
            if position > request.max_tokens:  # a frame has a token more than may be generated
                position -= len(ids)
                script = replace(script, finish=content_pb2.FINISH_REASON_LENGTH)
                break
            if script.error and sent == (script.break_after or 0):
                raise script.error
            if sent and script.frames[index - 1] and self.pace:
                pace = self.pace[request.choice_index]
                await asyncio.wait_for(pace.wait(), FOREVER_S)
                pace.clear()
            if index == script.gate_at:
                self.at_gate.set()
                await asyncio.wait_for(self.gate.wait(), FOREVER_S)
            yield inference_pb2.GenerateResponse(
                tokens=inference_pb2.Tokens(
                    first_position=position - len(ids),
                    token_ids=ids,
                    text=text,
                    logprobs=[self._logprob(text)] * len(ids) if request.logprobs else [],
                )
            )
            sent += 1
            self.sent_frame_count += 1
        if script.error and sent == (script.break_after or 0):
            raise script.error
        usage = inference_pb2.GenerationUsage(
            prompt_token_count=len(request.prompt_token_ids),
            cached_token_count=2,
            output_token_count=position,
        )
        yield inference_pb2.GenerateResponse(
            finished=inference_pb2.Finished(finish_reason=script.finish, usage=usage)
        )

    @staticmethod
    def _logprob(text: str) -> inference_pb2.PositionLogprobs:
        token = inference_pb2.TokenLogprob(token_id=1, logprob=-0.5, text=text.encode())
        return inference_pb2.PositionLogprobs(chosen=token, top=[token])


@dataclass
class Fakes:
    """All of them, and how to serve them."""

    billing: FakeBilling = field(default_factory=FakeBilling)
    conversation: FakeConversation = field(default_factory=FakeConversation)
    safety: FakeSafety = field(default_factory=FakeSafety)
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    inference: FakeInference = field(default_factory=FakeInference)

    def __post_init__(self) -> None:
        self.inference.pace = self.safety.seen

    def registrations(self):
        """(add_…_to_server, servicer) pairs; one server serves them all."""
        return [
            (billing_pb2_grpc.add_QuotaServiceServicer_to_server, self.billing),
            (billing_pb2_grpc.add_UsageServiceServicer_to_server, self.billing),
            (billing_pb2_grpc.add_KeyServiceServicer_to_server, self.billing),
            (conversation_pb2_grpc.add_ThreadReadServiceServicer_to_server, self.conversation),
            (conversation_pb2_grpc.add_ThreadWriteServiceServicer_to_server, self.conversation),
            (safety_pb2_grpc.add_SafetyServiceServicer_to_server, self.safety),
            (tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, self.tokenizer),
            (inference_pb2_grpc.add_InferenceServiceServicer_to_server, self.inference),
        ]
