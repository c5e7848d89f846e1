"""Plain spelling and readings: what a person reads at once, and what has to be decoded first."""

import base64
import codecs

import pytest

from safety_svc.classifier.normalise import (
    READING_COUNT_MAX,
    READING_LENGTH_MAX,
    plain,
    readings,
)

LINE = "How do I open the old garden gate and not make a noise?"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Hello there.", "Hello there."),
        ("Ｈｅｌｌｏ", "Hello"),  # full width
        ("𝐇𝐞𝐥𝐥𝐨 𝓉𝒽ℯ𝓇ℯ", "Hello there"),  # styled letters
        ("he\u200bl\u00adlo", "hello"),  # invisible ones
        ("hеllо", "hello"),  # Cyrillic е and о among Latin letters
        ("Привет", "Привет"),  # a word of its own script stays
        ("Der Bär heißt Ünal", "Der Bär heißt Ünal"),
        ("h̸̢̛e̵̡l̷̨l̶o̴", "hello"),  # heaps of marks
        ("".join(chr(0xE0000 + ord(c)) for c in "hidden"), "hidden"),  # tag characters
        ("nooooooooo", "nooo"),
        ("a" + " " * 40 + "b", "a b"),
        ("x\n\n\n\n\ny", "x\n\ny"),
        ("\u202eabc\u202c", "abc"),
        ("", ""),
    ],
)
def test_plain(given: str, expected: str) -> None:
    assert plain(given) == expected
    assert plain(plain(given)) == plain(given)


@pytest.mark.parametrize(
    "hidden",
    [
        base64.b64encode(LINE.encode()).decode(),
        base64.urlsafe_b64encode(LINE.encode()).decode().rstrip("="),
        base64.b64encode(base64.b64encode(LINE.encode())).decode(),
        LINE.encode().hex(),
        LINE.encode().hex(" "),
        "".join(f"\\x{byte:02x}" for byte in LINE.encode()),
        " ".join(f"{byte:08b}" for byte in LINE.encode()),
        "".join(f"%{byte:02x}" for byte in LINE.encode()),
        "".join(f"&#{byte};" for byte in LINE.encode()),
        "".join(f"\\u{byte:04x}" for byte in LINE.encode()),
        codecs.encode(LINE, "rot13"),
        LINE[::-1],
    ],
)
def test_hidden_texts_are_read(hidden: str) -> None:
    assert LINE in readings(plain(hidden))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("H o w  t o  b a k e  b r e a d", "How to bake bread"),
        ("b.r.e.a.d please", "bread please"),
        ("h0w to b4k3 br34d", "how to bake bread"),
        (".... . .-.. .-.. --- / .-- --- .-. .-.. -..", "hello world"),
        (
            f"Decode this: {base64.b64encode(LINE.encode()).decode()} thanks",
            f"Decode this: {LINE} thanks",
        ),
    ],
)
def test_other_readings(given: str, expected: str) -> None:
    assert expected in readings(plain(given))


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        "Python 3.11, mp3, x86_64, H2O, 2nd, v1.2.3, $20 and file1.txt",
        "commit 3f2a9c1 of 2024-11-05, UUID 123e4567-e89b-42d3-a456-426614174000",
        "Der Zug fährt um 8 Uhr 15 nach Ulm.",
        "A, B, C and D are the answers; e.g. and i.e. are not.",
        "",
    ],
)
def test_ordinary_texts_have_no_other_reading(text: str) -> None:
    assert readings(text) == []


def test_readings_are_bounded() -> None:
    lines = " ".join(base64.b64encode(f"{LINE} {n}".encode()).decode() for n in range(3_000))
    found = readings(lines)
    assert len(found) <= READING_COUNT_MAX
    assert all(len(one) <= READING_LENGTH_MAX for one in found)


@pytest.mark.parametrize("spelled", [" ".join(LINE), LINE[::-1], codecs.encode(LINE, "rot13")])
def test_what_is_hidden_under_a_line_in_plain_english_is_read(spelled: str) -> None:
    heading = "Read it and answer what it asks:"
    found, alone, *_ = readings(plain(f"{heading}\n\n{spelled}"))
    assert found.startswith(heading)
    assert found.split("\n")[-1].replace(" ?", "?") == LINE
    assert alone.rstrip("?") == LINE.rstrip("?")  # without the line that makes it an exercise


def test_of_a_long_text_only_what_changed_is_read_again() -> None:
    words = [f"word{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}" for n in range(300)]
    hidden = [*words]
    hidden[20], hidden[250] = "b0mb5", "p01s0n"
    (found,) = readings(" ".join(hidden))
    read = found.split(" ")
    assert {"bombs", "poison", hidden[4], hidden[36], hidden[234], hidden[266]} <= set(read)
    assert hidden[100] not in read
    assert len(read) == 2 * 33
