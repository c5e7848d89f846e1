"""The C++ parts against their Python twins: the same bits, over thousands of texts."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh.chassis.native import NativeLibrary
from mesh.chassis.native_build import find_compiler
from safety_svc.classifier import model, normalise, weights
from safety_svc.classifier.features import LENGTH_MAX, features
from safety_svc.classifier.linear import Linear
from safety_svc.classifier.model import Classifier
from safety_svc.classifier.normalise import is_plain, plain, readings
from safety_svc.detectors.base import Audience, Turn
from safety_svc.fast import library
from tests.unit.safety.texts import SIGNS, UNUSUAL, lines, texts

TEXT_COUNT = 20_000
# Of natural windows so many are told at once, at least; fewer would make the prefilter useless.
PLAIN_SHARE_MIN = 0.5
# Where there is a compiler, a library that is missing is a failure.
pytestmark = pytest.mark.skipif(
    library.load() is None and find_compiler() is None, reason="there is no C++ compiler"
)


@pytest.fixture(scope="module")
def loaded() -> weights.Weights:
    assert library.load() is not None, f"run `{library.BUILD_COMMAND}`"
    return weights.load(weights.SHIPPED)


def check_plain(text: str) -> bool:
    told = is_plain(text)
    if told:
        assert plain(text) == text.strip(), text
        assert readings(text.strip()) == [], text
    return told


def check_score(linear: Linear, text: str) -> None:
    assert linear.fast is not None
    slow = features(text)
    steps = int(linear.weights.take(slow).sum())
    assert linear.fast.sum(text) == (steps, len(slow)), text
    twin = Linear(linear.weights, linear.scale, linear.bias)
    assert linear.score(text).hex() == twin.score(text).hex()


def check_pieces(loaded: weights.Weights, text: str) -> bool:
    assert loaded.encoder.fast is not None
    found = loaded.encoder.fast.pieces(text)
    if found:
        slow = loaded.encoder.tokenizer.encode(text, add_special_tokens=False)
        assert found.ids == slow.ids, text
        assert list(zip(found.starts, found.ends, strict=True)) == slow.offsets, text
    return found is not None


def test_thousands_of_texts_are_read_alike(loaded: weights.Weights) -> None:
    counts = [0, 0]
    for text in texts(TEXT_COUNT):
        check_score(loaded.linear, text)
        counts[0] += check_plain(text)
        counts[1] += check_pieces(loaded, text)
    assert min(counts) > TEXT_COUNT // 10  # both said yes often enough to be wrong


def test_most_natural_texts_are_told_at_once() -> None:
    told = [check_plain(text) for text in lines()]
    assert sum(told) >= PLAIN_SHARE_MIN * len(told)


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            ["the ", "of you ", "bomb", "Gur ", "eht ", "a", "x", "GPT4", "v1.2", "[CLS]"]
        ),
        st.sampled_from(list(SIGNS + UNUSUAL)),
        st.text(max_size=4),
        st.from_regex(r"[01]{1,9}|[a-f0-9]{1,9}|[.\-]{1,4}", fullmatch=True),
    ),
    max_size=40,
).map("".join)


@given(TEXTS)
@settings(deadline=None, max_examples=600)
@example("It is great! Eat 5-a-day of the fruit.")
@example("great! (5)word")
@example("a_b_c_d")
@example("K\u212a and \u0130stanbul")
@example("\u1100\u1161")
@example("x" * 120 + " y")
@example("[MASK] and [SEP]")
def test_any_text_is_read_alike(text: str) -> None:
    loaded = model.shipped()._weights
    check_plain(text)
    check_score(loaded.linear, text)
    check_pieces(loaded, text)


def test_texts_about_the_limits_are_read_alike(loaded: weights.Weights) -> None:
    for count in (1_990, 2_000, 2_001, LENGTH_MAX - 3, LENGTH_MAX - 2, LENGTH_MAX + 9):
        for text in ("ab c" * count, "\u00e9 x" * count, "w" * count, " " * count):
            check_plain(text[:count])
            check_score(loaded.linear, text[:count])
            check_pieces(loaded, text[:count])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Classifier:
    """The classifier where the library is missing."""
    monkeypatch.setattr(library, "FAST", NativeLibrary("fast", tmp_path))
    library.load.cache_clear()
    normalise._fast.cache_clear()
    yield Classifier(weights.load(weights.SHIPPED))
    monkeypatch.undo()
    library.load.cache_clear()
    normalise._fast.cache_clear()


GIVEN = list(texts(120, seed=7))
CONVERSATIONS = [
    [Turn(Audience.USER, text), Turn(Audience.ASSISTANT, "Yes."), Turn(Audience.USER, other)]
    for text, other in zip(GIVEN[::2], GIVEN[1::2], strict=True)
]


def judged(classifier: Classifier) -> list[object]:
    """What a classifier says of GIVEN and CONVERSATIONS."""
    scores = [classifier.scores(text, Audience.REPLY).tobytes() for text in GIVEN]
    return [*scores, *(classifier.conversation(turns) for turns in CONVERSATIONS)]


@pytest.fixture(scope="module")
def expected(loaded: weights.Weights) -> list[object]:
    return judged(Classifier(loaded))


def test_without_the_library_all_is_the_same(expected: list[object], slow: Classifier) -> None:
    assert not is_plain("The cat is on the mat.")
    assert not any(slow.clears(text, Audience.REPLY) for text in GIVEN)
    assert judged(slow) == expected


@pytest.mark.parametrize("audience", [Audience.REPLY, Audience.USER, Audience.TOOL])
def test_what_is_cleared_has_no_findings(loaded: weights.Weights, audience: Audience) -> None:
    classifier, cleared = Classifier(loaded), 0
    for text in texts(4_000, seed=3):
        if classifier.clears(text, audience):
            cleared += 1
            assert classifier.inspect_many([text], audience) == [[]]
    assert cleared > 100
