"""JSON schemas of the supported features, as hypothesis strategies."""

from typing import Any

from hypothesis import strategies as st

NAMES = ["name", "age", "tags", 'a "quoted"', "é", "x y", ""]

_strings = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 9)},
)
_patterns = st.sampled_from(
    [
        {"type": "string", "pattern": "^[a-z]{2,5}$"},
        {"type": "string", "pattern": "b+c"},
        {"type": "string", "pattern": r"^\d{3}-\d{4}$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "ipv4"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "email"},
    ]
)


@st.composite
def _numbers(draw: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    low = draw(st.none() | st.integers(-200, 200))
    if low is not None:
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        high = (low or 0) + draw(st.integers(2, 5000))
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = high
    elif schema["type"] == "integer" and low is None and draw(st.booleans()):
        schema["multipleOf"] = draw(st.integers(1, 7))
    return schema


_values = (
    st.none() | st.booleans() | st.integers(-9, 99) | st.sampled_from([1.5, "yes", 'né \n"', ""])
)
_leaves = st.one_of(
    _strings,
    _patterns,
    _numbers(),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": ["string", "null"]}),
    st.lists(_values, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    (_values | st.lists(_values, max_size=2)).map(lambda value: {"const": value}),
)


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def made(draw: Any) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: draw(inner) for name in names},
            "required": [name for name in names if draw(st.booleans())],
        }
        extra = draw(st.none() | st.just(False) | inner)
        if extra is not None:
            schema["additionalProperties"] = extra
        return schema

    return made()


def _arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 4)},
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda items: {"type": "array", "prefixItems": items, "items": False}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda schemas: {"anyOf": schemas}),
    )


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Objects at the top, as OpenAI wants them, of depth up to about 3."""
    inner = st.recursive(_leaves, lambda deeper: _objects(deeper) | _arrays(deeper), max_leaves=6)
    return _objects(inner)
