"""Chat templates: Jinja in a sandbox, as Hugging Face defines it.

The environment is that of `transformers` (`utils/chat_template_utils.py`): trim_blocks,
lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that does not escape
HTML, and the `{% generation %}` block, which only training looks at.

The template's loop over the messages is extended by a mark at the start of each round, so that
the output comes in chunks of known owner. A mark goes only where the output leaves the template
unseen by it (never inside a macro, a filter or a captured block), so it changes nothing else.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Output that belongs to no message: what stands before the first and after the last.
NO_OWNER = -1
_MARK_FILTER = "chunk_mark"
_CAPTURES = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)


class TemplateError(Exception):
    """The template refused the messages or failed; the text is its own."""


class Chunk(NamedTuple):
    """A piece of rendered text and the index of the message it shows, or NO_OWNER."""

    owner: int
    text: str


class _Message(dict[str, Any]):
    """A message as templates read it; its mark is read by the filter only."""

    chunk_mark = ""


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012  # the way jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source.
        mark: a string that occurs in no content and has no white space.
        variables: what templates may read beside the messages, such as bos_token.

    Raises:
        TemplateError: the source does not compile.
    """

    def __init__(self, source: str, mark: str, variables: Mapping[str, str]) -> None:
        self._mark = mark
        self._variables = dict(variables)
        environment = _environment()
        try:
            tree = environment.parse(source)
            _mark_loops(tree, mark)
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise TemplateError(f"The chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        first_owner: int = 0,
    ) -> list[Chunk]:
        """Renders messages ({"role", "content"[, …]}); the chunks in order are the prompt.

        Args:
            messages: oldest first.
            tools: shown where the template shows tools.
            first_owner: index of the first message; NO_OWNER when it is none of the caller's.

        Raises:
            TemplateError: the template refused the messages.
        """
        marked = []
        for index, message in enumerate(messages, first_owner):
            entry = _Message(message)
            entry.chunk_mark = f"{self._mark}{index};"
            marked.append(entry)
        try:
            text = self._template.render(
                messages=marked,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=True,
                **self._variables,
            )
        except Exception as error:  # a template is a program of the model's author: all can happen
            raise TemplateError(str(error) or type(error).__name__) from error
        return list(self._chunks(text, len(messages) + first_owner))

    def _chunks(self, text: str, message_count: int) -> Iterator[Chunk]:
        preamble, *marked = text.split(self._mark)
        chunks = []
        for piece in marked:
            owner, _, shown = piece.partition(";")
            chunks.append(Chunk(int(owner), shown))
        if preamble:
            # A message that the loop does not show (often the system prompt) stands before it.
            shown_in_loop = {chunk.owner for chunk in chunks if chunk.text}
            hidden = (i for i in range(message_count) if i not in shown_in_loop)
            yield Chunk(next(hidden, NO_OWNER), preamble)
        yield from (chunk for chunk in chunks if chunk.text)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.filters[_MARK_FILTER] = _chunk_mark
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _mark_loops(tree: nodes.Node, mark: str) -> None:
    """Puts a mark at the start of each round, and after the end, of every outermost loop."""
    for _, value in tree.iter_fields():
        if not isinstance(value, list):
            continue
        for item in list(value):
            if isinstance(item, nodes.For) and _prints(item):
                item.body.insert(0, _owner_mark(item))
                end = nodes.Output([nodes.TemplateData(f"{mark}{NO_OWNER};")])
                value.insert(value.index(item) + 1, end.set_lineno(item.lineno))
            elif isinstance(item, nodes.Node) and not isinstance(item, (*_CAPTURES, nodes.For)):
                _mark_loops(item, mark)


def _prints(loop: nodes.For) -> bool:
    """Whether a loop over single values writes output of its own."""
    return isinstance(loop.target, nodes.Name) and any(
        not isinstance(part, nodes.TemplateData) or part.data.strip()
        for output in loop.find_all(nodes.Output)
        for part in output.nodes
    )


def _owner_mark(loop: nodes.For) -> nodes.Output:
    assert isinstance(loop.target, nodes.Name)
    target = nodes.Name(loop.target.name, "load")
    # A filter, because an attribute would pass the sandbox's checks, at ten times the time.
    mark = nodes.Filter(target, _MARK_FILTER, [], [], None, None)
    output = nodes.Output([mark])
    for node in (output, mark, target):
        node.set_lineno(loop.lineno)
    return output


def _chunk_mark(value: Any) -> str:
    # Loops over other things than messages write no marks.
    return value.chunk_mark if isinstance(value, _Message) else ""
