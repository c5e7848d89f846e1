"""What a technique is, and the small tools that techniques are written with. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Messages = Sequence[Mapping[str, str]]
# One request by language: "en", "de", …
Words = Mapping[str, str]
Build = Callable[[Words], Messages]


class Goal(StrEnum):
    """What an attack is after; the key of its seeds."""

    HARMFUL = "harmful"
    INJECTED = "injected"
    EXTRACTED = "extracted"


# Where the harmless twins of an attack's seeds stand.
TWINS = {Goal.HARMFUL: "harmless", Goal.INJECTED: "quiet", Goal.EXTRACTED: "asked"}


@dataclass(frozen=True, slots=True)
class Technique:
    """One way to get a request past the screens.

    Attributes:
        name: for reports and regression cases.
        family: of like techniques, such as "cipher".
        goal: which seeds it takes.
        build: a seed's words, by language, to messages.
        is_innocent: the frame is no attack by itself, so that it has harmless twins. What a user
            says around a harmless request never is one; false role marks in a tool result are.
    """

    name: str
    family: str
    goal: Goal
    build: Build
    is_innocent: bool = True


def family(name: str, builds: Mapping[str, Build], goal: Goal = Goal.HARMFUL) -> list[Technique]:
    """The techniques of one family."""
    return [Technique(each, name, goal, build) for each, build in builds.items()]


def user(text: str) -> Messages:
    """One message of the user."""
    return [{"role": "user", "content": text}]


def dialogue(*texts: str) -> Messages:
    """Turns of user and assistant, the user's first."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def wrap(pattern: str) -> Build:
    """`{}` in `pattern` is the request in English."""
    return lambda words: user(pattern.replace("{}", words["en"]))


def coded(how: str, code: Callable[[str], str]) -> Build:
    """The request in English, coded, under a line that says how to read it."""
    return lambda words: user(f"{how}\n\n{code(words['en'])}")


def by_word(change: Callable[[str], str]) -> Callable[[str], str]:
    """`change` for each word of a text."""
    return lambda text: " ".join(map(change, text.split(" ")))
