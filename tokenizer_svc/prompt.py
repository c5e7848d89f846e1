"""Messages to the token ids of a prompt, and back: one tokenizer with its chat template."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from tokenizer_svc.cache import Encoded, EncodedCache
from tokenizer_svc.chat_template import NO_OWNER, ChatTemplate, Chunk
from tokenizer_svc.context import affordable_turn_count, kept_indexes, smallest_drop, turns_of
from tokenizer_svc.messages import length_of
from tokenizer_svc.model_folder import ModelFiles, ModelFolderError
from tokenizer_svc.special_tokens import SpecialTokens
from tokenizer_svc.tools import ToolTexts

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


class ContextLengthError(Exception):
    """The prompt does not fit, with nothing left that may be dropped.

    Attributes:
        limit: context of the model in tokens.
        prompt_count: tokens of the smallest prompt that was allowed.
        answer_count: tokens that the answer needs.
    """

    def __init__(self, limit: int, prompt_count: int, answer_count: int) -> None:
        super().__init__(f"{prompt_count} + {answer_count} tokens pass the context of {limit}")
        self.limit, self.prompt_count, self.answer_count = limit, prompt_count, answer_count

    @property
    def count(self) -> int:
        """Tokens that would be needed."""
        return self.prompt_count + self.answer_count


class BadTokenError(Exception):
    """Token ids that cannot be decoded; `token_id` is the first of them."""

    def __init__(self, token_id: int, text: str) -> None:
        super().__init__(text)
        self.token_id = token_id


class Prompt(NamedTuple):
    """A prompt that was encoded.

    Attributes:
        token_ids: the prompt.
        message_token_counts: tokens of each message as rendered; what belongs to no message
            (begin of text, generation prompt) is in none.
        dropped_message_count: messages that were left out.
    """

    token_ids: list[int]
    message_token_counts: list[int]
    dropped_message_count: int


class ChatTokenizer:
    """Tokenizer and chat template of one model. Safe to use from several threads.

    Args:
        files: the model's files.
        cache_byte_count_max: memory for encoded messages.

    Raises:
        ModelFolderError: tokenizer.json is none.
        chat_template.TemplateError: the template does not compile.
    """

    def __init__(self, files: ModelFiles, cache_byte_count_max: int) -> None:
        try:
            self._plain = Tokenizer.from_str(files.tokenizer_json)
            added = self._plain.get_added_tokens_decoder().values()
            special = [token for token in added if token.special]
            self._special = SpecialTokens([token.content for token in special])
            self._sealed = Tokenizer.from_str(self._special.renamed(files.tokenizer_json))
        except Exception as error:  # the library raises bare Exception
            raise ModelFolderError(f"tokenizer.json cannot be used: {error}") from error
        for tokenizer in (self._plain, self._sealed):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._template = ChatTemplate(
            files.chat_template, self._special.mark, files.template_variables
        )
        self.tools = ToolTexts(files.chat_template)
        self._cache = EncodedCache(cache_byte_count_max)
        self._borders = _Borders.of(special, _is_byte_level(self._plain))
        vocabulary = self._plain.get_vocab(with_added_tokens=True)
        self._valid_ids = frozenset(vocabulary.values())
        self.digest = files.digest
        self.vocabulary_size = len(self._valid_ids)
        self.context_token_count_max = files.context_token_count_max

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        """The prompt of all messages, generation prompt included, whatever its length.

        Raises:
            chat_template.TemplateError: the template refused the messages.
        """
        return self._encoded(self._rendered(messages, tools), len(messages))

    def fit(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        forbid_truncation: bool = False,
        tools: Sequence[Tool] = (),
    ) -> Prompt:
        """The prompt of the newest turns that leave room for an answer.

        Args:
            messages: oldest first; at least one.
            max_tokens: tokens to keep free for the answer; 0 stands for 1.
            forbid_truncation: all messages or none.
            tools: what the model may call.

        Raises:
            ContextLengthError: system messages and newest turn do not fit.
            chat_template.TemplateError: the template refused the messages.
        """
        answer_count = max(1, max_tokens)
        room = self.context_token_count_max - answer_count
        turns = turns_of([message["role"] for message in messages])
        drop_max = 0 if forbid_truncation else max(0, len(turns) - 1)
        prompts: dict[int, Prompt] = {}

        def without(dropped: int) -> Prompt:
            if dropped not in prompts:
                kept = kept_indexes(len(messages), turns, dropped)
                prompts[dropped] = self.prompt([messages[index] for index in kept], tools)
            return prompts[dropped]

        # A token has at least one byte: what has fewer characters than room fits, nearly always.
        size = sum(map(length_of, messages))
        guess = self._guessed_drop(messages, tools, turns, room) if drop_max and size > room else 0
        dropped = smallest_drop(
            lambda count: len(without(count).token_ids) <= room, min(guess, drop_max), drop_max
        )
        if dropped is None:
            smallest = len(without(drop_max).token_ids)
            raise ContextLengthError(self.context_token_count_max, smallest, answer_count)
        dropped_message_count = sum(map(len, turns[:dropped]))
        return without(dropped)._replace(dropped_message_count=dropped_message_count)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text by itself; special tokens in it count as text."""
        encodings = self._sealed.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding.ids) for encoding in encodings]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of tokens; bytes that are no character become U+FFFD.

        Raises:
            BadTokenError: an id is outside the vocabulary.
        """
        bad = next((i for i in token_ids if i not in self._valid_ids), None)
        if bad is not None:
            raise BadTokenError(bad, f"{bad} is no token id of this model.")
        text: str = self._plain.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> list[list[Chunk]]:
        """Rendered text in units: pieces that are encoded apart with the same result."""
        shown, first_owner = self.tools.written_out(messages, tools)
        guarded = [
            {key: text if key == "role" else self._guarded(text) for key, text in m.items()}
            for m in shown
        ]
        chunks = self._template.render(guarded, self._guarded(tools), first_owner=first_owner)
        return list(self._borders.units(chunks))

    def _guarded(self, value: Any) -> Any:
        """A text, or JSON with all its texts, in which nothing spells a special token."""
        if isinstance(value, str):
            return self._special.guard(value)
        if isinstance(value, Mapping):
            return {self._special.guard(key): self._guarded(each) for key, each in value.items()}
        if isinstance(value, Sequence):
            return [self._guarded(each) for each in value]
        return value

    def _encoded(self, units: list[list[Chunk]], message_count: int) -> Prompt:
        token_ids: list[int] = []
        counts = [0] * (message_count + 1)  # the last one takes what has no owner
        for unit, encoded in zip(units, self._encode_units(units), strict=True):
            token_ids.extend(encoded.token_ids)
            for chunk, count in zip(unit, encoded.chunk_token_counts, strict=True):
                counts[chunk.owner] += count
        return Prompt(token_ids, counts[:message_count], 0)

    def _encode_units(self, units: list[list[Chunk]]) -> list[Encoded]:
        texts = [[chunk.text for chunk in unit] for unit in units]
        keys = [self._cache.key(text) for text in texts]
        found = [self._cache.get(key) for key in keys]
        missing = [index for index, entry in enumerate(found) if entry is None]
        sealed = [[self._special.seal(text) for text in texts[index]] for index in missing]
        for index, entry in zip(missing, self._encode(sealed), strict=True):
            self._cache.put(keys[index], entry)
            found[index] = entry
        return [entry for entry in found if entry is not None]

    def _encode(self, texts: list[list[str]]) -> Iterator[Encoded]:
        if not texts:
            return
        if all(len(chunks) == 1 for chunks in texts):
            # Without offsets, and in parallel: the way of nearly every prompt.
            whole = [chunks[0] for chunks in texts]
            for encoding in self._sealed.encode_batch_fast(whole, add_special_tokens=False):
                ids = array("I", encoding.ids)
                yield Encoded(ids, (len(ids),))
            return
        for chunks in texts:
            encoding = self._sealed.encode("".join(chunks), add_special_tokens=False)
            yield Encoded(array("I", encoding.ids), _counts_by_chunk(encoding.offsets, chunks))

    def _guessed_drop(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        turns: Sequence[Sequence[int]],
        room: int,
    ) -> int:
        """How many turns must go, by the counts of the whole conversation; a guess, because a
        template may write a message differently in another place. What goes is not encoded."""
        units = self._rendered(messages, tools)
        droppable = {index: t for t, turn in enumerate(turns) for index in turn}
        units_of_turn: list[list[list[Chunk]]] = [[] for _ in turns]
        fixed = 0
        for unit in units:
            owners = {droppable.get(chunk.owner, NO_OWNER) for chunk in unit}
            newest = max(owners)
            if NO_OWNER in owners:
                fixed += len(self._encode_units([unit])[0].token_ids)
            else:
                units_of_turn[newest].append(unit)
        costs = (
            sum(len(encoded.token_ids) for encoded in self._encode_units(turn_units))
            for turn_units in reversed(units_of_turn)
        )
        return len(turns) - max(1, affordable_turn_count(costs, room - fixed))


class _Borders(NamedTuple):
    """Where a rendered prompt may be cut so that the pieces give the ids of the whole.

    A tokenizer takes special tokens out before all else, and no merge crosses them. A special
    token that swallows white space beside it, or wants a word's border, is no such place.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]

    @classmethod
    def of(cls, special: Sequence[Any], is_byte_level: bool) -> "_Borders":
        """Borders at these tokens; none where the tokenizer treats a text's start specially."""
        sharp = [token for token in special if is_byte_level and not token.single_word]
        starts = tuple(token.content for token in sharp if not token.lstrip)
        return cls(starts, tuple(token.content for token in sharp if not token.rstrip))

    def units(self, chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
        """Joins chunks with no border between them."""
        unit: list[Chunk] = []
        for chunk in chunks:
            if unit and (chunk.text.startswith(self.starts) or unit[-1].text.endswith(self.ends)):
                yield unit
                unit = []
            unit.append(chunk)
        if unit:
            yield unit


def _counts_by_chunk(offsets: Sequence[tuple[int, int]], chunks: Sequence[str]) -> tuple[int, ...]:
    """How many tokens start in each chunk."""
    counts = [0] * len(chunks)
    starts = [0]
    for chunk in chunks[:-1]:
        starts.append(starts[-1] + len(chunk))
    for start, _ in offsets:
        counts[bisect_right(starts, start) - 1] += 1
    return tuple(counts)


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether pieces of text are tokenised alike wherever they stand."""
    shown = repr(tokenizer.pre_tokenizer)
    return "ByteLevel(" in shown and type(tokenizer.model).__name__ == "BPE"
