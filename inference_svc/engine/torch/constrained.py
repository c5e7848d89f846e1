"""Constrained output: which tokens may come next so that the finished text has the wanted form.

    ResponseFormat ──compile, cached──> Grammar ──a request──> Constraint: allowed, accept, ended

llguidance does the work (decision 0010). It knows the tokens as the bytes that `Vocabulary` gives
them, which is what the answer's text is made of. White space is fixed (", " and ": ", nothing
else), so that no model can go on with it for ever. Only a model's end-of-sequence token can follow
a complete text, and it may only follow one.
"""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import BadFormatError, FormatKind, ResponseFormat
from inference_svc.engine.torch.calls import JSON_OPTIONS, calls_grammar
from inference_svc.model_folder import ModelFolder

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

GRAMMAR_CACHE_COUNT_MAX = 32
# llguidance's own defaults, but fewer lexer states (1-2 kB each), and less work for one token: a
# hostile grammar may take about 15 MB and 4 ms a token, then its request fails.
LEXER_STATE_COUNT_MAX = 10_000
STEP_LEXER_FUEL_MAX = 50_000
STEP_ITEM_COUNT_MAX = 12_500
# Each costs a compilation on the engine's thread, so that only what compiles fast has any.
RESTART_COUNT_MAX = 2
RESTART_COMPILE_S_MAX = 0.05
ERROR_LENGTH_MAX = 300
# What a schema may not choose for itself by its "x-guidance".
_JSON_OPTIONS: "JsonCompileOptions" = {**JSON_OPTIONS, "whitespace_pattern": None}


class GrammarFailedError(Exception):
    """A grammar became too complex while it was followed; the text tells the user."""

    def __init__(self) -> None:
        super().__init__(
            "The response format became too complex while the answer was written; simplify the "
            "schema or the expression."
        )


class Constraint:
    """The state of one answer; a function of the tokens accepted. One thread at a time."""

    def __init__(self, grammar: "Grammar", matcher: "LLMatcher") -> None:
        self._grammar, self._matcher = grammar, matcher
        self._restart_count = 0
        self._accepted: list[int] = []
        self._mask: bytes | None = None  # of this state, one bit a token, when asked for
        self.ended = False  # an end-of-sequence token was accepted

    def allows(self, token_id: int) -> bool:
        """Whether the token may come next.

        Raises:
            GrammarFailedError: the grammar is too complex here.
        """
        mask = self._computed_mask()
        byte = token_id >> 3
        return byte < len(mask) and bool(mask[byte] >> (token_id & 7) & 1)

    def allowed(self, token_count: int) -> npt.NDArray[np.bool_]:
        """[token_count]: which tokens may come next; at least one.

        Raises:
            GrammarFailedError: the grammar is too complex here.
        """
        bits = np.frombuffer(self._computed_mask(), np.uint8)
        allowed = np.unpackbits(bits, count=token_count, bitorder="little").view(np.bool_)
        if not allowed.any():
            raise GrammarFailedError
        return allowed

    def accept(self, token_id: int) -> None:
        """The token was emitted.

        Raises:
            GrammarFailedError: it was not allowed, or the grammar is too complex here.
        """
        self._mask = None
        if not self._matcher.consume_token(token_id):
            self._start_again()
            if not self._matcher.consume_token(token_id):
                raise GrammarFailedError
        self._accepted.append(token_id)
        self.ended = token_id in self._grammar.eos_token_ids

    def fitting_count(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, one after the other, fit the text."""
        return int(self._matcher.validate_tokens(list(token_ids)))

    def forced(self) -> list[int]:
        """The tokens that must come next, where only one text may: no other passes the mask."""
        return list(self._matcher.compute_ff_tokens())

    def _computed_mask(self) -> bytes:
        if self._mask is None:
            self._mask = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                self._start_again()
                self._mask = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                raise GrammarFailedError
        return self._mask

    def _start_again(self) -> None:
        """With lexer states of its own: the shared ones may have come to their limit.

        So a request fails only where its own tokens lead, whatever others asked.
        """
        if self._restart_count == RESTART_COUNT_MAX or not self._grammar.may_restart:
            raise GrammarFailedError
        self._restart_count += 1
        self._matcher = self._grammar.private()
        if not self._matcher.consume_tokens(self._accepted):
            raise GrammarFailedError


class Grammar:
    """A compiled response format; shared by all requests that want it, lexer states included.

    Args:
        make: compiles it.
    """

    def __init__(self, make: Callable[[], "LLMatcher"], eos_token_ids: frozenset[int]) -> None:
        self._make, self.eos_token_ids = make, eos_token_ids
        begin_s = time.thread_time()
        self._matcher: LLMatcher | None = make()
        self.may_restart = time.thread_time() - begin_s <= RESTART_COMPILE_S_MAX
        self._renewal_count = 0
        self._lock = threading.Lock()

    def constraint(self, emitted_token_ids: Sequence[int] = ()) -> Constraint:
        """The state behind the tokens that an earlier attempt emitted.

        Raises:
            BadFormatError: they are not of this format.
        """
        with self._lock:
            self._matcher = self._matcher or self._make()
            constraint = Constraint(self, self._matcher.deep_copy())
        try:
            for token_id in emitted_token_ids:
                constraint.accept(token_id)
        except GrammarFailedError as error:
            raise BadFormatError(
                "The tokens emitted before do not have the response format; send the request "
                "without them."
            ) from error
        return constraint

    def fault(self) -> str:
        """Why nothing can be written in this format; empty: something can."""
        matcher = self._make()
        # Some faults show only where tokens are asked for: at the beginning, and behind the "{".
        matcher.compute_bitmask()
        if not matcher.is_error():
            matcher.consume_tokens(matcher.compute_ff_tokens())
            matcher.compute_bitmask()
        return str(matcher.get_error())

    def private(self) -> "LLMatcher":
        """A matcher that shares nothing; what is shared has come to a limit and is given up."""
        with self._lock:
            self._matcher = None
            self._renewal_count += 1
        return self._make()


class GrammarCompiler:
    """Compiles response formats for one model; any thread may call it.

    The tokenizer is read at the first use: a node that is never asked for a format pays nothing.
    """

    def __init__(self, model: ModelFolder) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._grammars: OrderedDict[ResponseFormat, Grammar] = OrderedDict()

    def compile(self, wanted: ResponseFormat) -> Grammar:
        """The grammar of a format: about a millisecond, or none when it is known.

        Raises:
            BadFormatError: it is none, or has a feature that cannot be enforced; the text names it.
        """
        with self._lock:
            if wanted in self._grammars:
                self._grammars.move_to_end(wanted)
                return self._grammars[wanted]
            tokenizer = self._tokenizer = self._tokenizer or _tokenizer(self._model)
        grammar = self._compiled(wanted, tokenizer)
        with self._lock:
            self._grammars[wanted] = grammar
            while len(self._grammars) > GRAMMAR_CACHE_COUNT_MAX:
                self._grammars.popitem(last=False)
        return grammar

    def _compiled(self, wanted: ResponseFormat, tokenizer: "LLTokenizer") -> Grammar:
        from llguidance import LLMatcher

        text = _grammar_text(wanted)
        grammar = Grammar(
            lambda: LLMatcher(tokenizer, text, log_level=0, limits=_limits()),
            self._model.eos_token_ids,
        )
        if reason := grammar.fault():
            reason = " ".join(reason.replace("<non-verbose/>", "").split())[:ERROR_LENGTH_MAX]
            raise BadFormatError(f"The {wanted.kind.value} cannot be enforced: {reason}.")
        return grammar


def _grammar_text(wanted: ResponseFormat) -> str:
    """The format in llguidance's language."""
    from llguidance import LLMatcher, regex_to_lark

    if wanted.calls is not None:
        return LLMatcher.grammar_from_lark(calls_grammar(wanted.calls, wanted.text))
    if wanted.kind is FormatKind.REGEX:
        # The contract's syntax is RE2's: classes are of ASCII.
        expression = regex_to_lark(wanted.text, use_ascii="dws")
        return LLMatcher.grammar_from_lark(f"start: /{expression}/")
    if wanted.kind is FormatKind.CHOICE:
        texts = ("".join(f"\\x{{{ord(character):x}}}" for character in t) for t in wanted.choices)
        return LLMatcher.grammar_from_regex("|".join(texts))
    schema: Any = {"type": "object"}
    if wanted.kind is FormatKind.JSON_SCHEMA:
        try:
            schema = json.loads(wanted.text)
        except (ValueError, RecursionError) as error:
            raise BadFormatError(f"The JSON schema is no JSON: {error}.") from error
    if not isinstance(schema, dict):
        raise BadFormatError("The JSON schema must be a JSON object.")
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)
    except ValueError as error:
        raise BadFormatError(f"The JSON schema cannot be read: {error}.") from error


def _limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=LEXER_STATE_COUNT_MAX,
        step_lexer_fuel=STEP_LEXER_FUEL_MAX,
        step_max_items=STEP_ITEM_COUNT_MAX,
        verbose_errors=False,
    )


def _tokenizer(model: ModelFolder) -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    spelling = _Spelling(model)
    made = LLTokenizer(
        TokenizerWrapper(spelling),
        n_vocab=model.vocabulary.size,
        eos_token=sorted(model.eos_token_ids),
    )
    spelling.greedy = made.greedy_tokenize
    return made


class _Spelling:
    """What llguidance asks of a tokenizer: the bytes of each token, and how a text is spelled.

    Where only one text may come next it allows only the spelling given here; one that does not give
    the text back (a tokenizer that adds a space in front) would lead it into a dead end.
    """

    def __init__(self, model: ModelFolder) -> None:
        from tokenizers import Tokenizer

        self._encoder = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
        self._vocabulary = model.vocabulary
        self.eos_token_id = min(model.eos_token_ids)
        self.bos_token_id = None
        self.tokens = [model.vocabulary.token_bytes(i) for i in range(model.vocabulary.size)]
        self.special_token_ids = sorted(model.vocabulary.special_ids)
        self.greedy: Callable[[str], list[int]] = lambda text: []

    def __call__(self, text: str) -> list[int]:
        token_ids = list(self._encoder.encode(text, add_special_tokens=False).ids)
        if self._vocabulary.join(token_ids) == text.encode():
            return token_ids
        return self.greedy(text)
