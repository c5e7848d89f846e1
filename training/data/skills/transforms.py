"""Small changes to words: capitals, spelling, counting, sorting, copying."""

from __future__ import annotations

from functools import cache

from training.data.phrasing import wordings
from training.data.skills.base import Draw, Exchange
from training.data.skills.language import forms, words


@cache
def spelled() -> tuple[str, ...]:
    """Short words for copying, spelling and counting: those that the model knows best."""
    known = {word.word for word in words()}
    for kind in ("plural", "past", "rhyme"):
        known |= {word for row in forms(kind) for word in row}
    return tuple(sorted(word for word in known if word.isalpha() and len(word) <= 8))


UPPER = wordings(
    """
    Write {w} in capital letters.
    Write {w} in uppercase.
    Put {w} in capitals.
    Make {w} uppercase.
    Convert {w} to uppercase.
    {w} in capital letters
    Write the word {w} in capital letters.
    Write the word {w} in capitals.
    Please write {w} in capital letters.
    Can you write {w} in capital letters?
    Put the word {w} in capital letters.
    Show {w} in uppercase letters.
    Change {w} to capital letters.
    Type {w} in all caps.
    Give me {w} in capital letters, please.
    Capitalize every letter of {w}.
    """,
    """
    Turn {w} into capital letters.
    """,
)
SPELL = wordings(
    """
    Spell {w}.
    How do you spell {w}?
    Spell the word {w}.
    Can you spell {w}?
    Please spell {w}.
    How is {w} spelled?
    How do you spell the word {w}?
    How is the word {w} spelled?
    How do I spell {w}?
    How does one spell {w}?
    Spell {w} for me.
    Spell out the word {w}.
    Tell me how to spell {w}.
    What is the spelling of {w}?
    I don't know how to spell {w}.
    """,
    """
    Could you spell the word {w} for me?
    """,
)
LETTERS = wordings(
    """
    How many letters are in {w}?
    How many letters does {w} have?
    How many letters are in the word {w}?
    Count the letters in {w}.
    How long is the word {w}?
    Count the letters of the word {w}.
    How many letters does the word {w} have?
    What is the number of letters in {w}?
    Can you count the letters in {w}?
    {w}: how many letters?
    How many letters has {w} got?
    """,
    """
    Tell me how many letters the word {w} has.
    """,
)
FIRST = wordings(
    """
    What is the first letter of {w}?
    Which letter does {w} start with?
    What letter does {w} begin with?
    First letter of {w}?
    Tell me the first letter of {w}.
    What is the first letter of the word {w}?
    The word {w} starts with which letter?
    Which letter is first in {w}?
    How does the word {w} begin?
    """,
    """
    With which letter does the word {w} begin?
    """,
)
LAST = wordings(
    """
    What is the last letter of {w}?
    Which letter does {w} end with?
    Last letter of {w}?
    Tell me the last letter of {w}.
    What is the last letter of the word {w}?
    The word {w} ends with which letter?
    Which letter is last in {w}?
    What letter does {w} end in?
    """,
    """
    With which letter does the word {w} end?
    """,
)
REVERSE = wordings(
    """
    Reverse the word {w}.
    Spell {w} backwards.
    Write {w} backwards.
    What is {w} backwards?
    Reverse {w}.
    Can you write {w} backwards?
    Write the word {w} backwards.
    Turn the word {w} around.
    Say {w} backwards.
    Spell the word {w} in reverse.
    Give me {w} in reverse.
    What do you get if you reverse {w}?
    """,
    """
    How do you write {w} from back to front?
    """,
)
REPEAT = wordings(
    """
    Say {w}.
    Say: {w}
    Repeat after me: {w}
    Repeat: {w}
    Repeat the words {w}.
    Please repeat: {w}
    Repeat this: {w}
    Say this: {w}
    Say exactly this: {w}
    Write this down: {w}
    Copy this: {w}
    Just say {w}.
    Please say {w}.
    Can you repeat {w}?
    Could you say this: {w}
    Write the following: {w}
    Type {w}
    Can you say {w}?
    Write {w}.
    Print {w}
    Echo {w}
    """,
    """
    Please write exactly this: {w}
    Could you repeat this for me: {w}
    """,
)
TWICE = wordings(
    """
    Say {w} twice.
    Say {w} two times.
    Repeat {w} twice.
    Write {w} twice.
    """,
    """
    Could you say {w} two times?
    """,
)
ALPHABETIC = wordings(
    """
    Sort these words: {l}
    Put these words in alphabetical order: {l}
    Sort alphabetically: {l}
    Order these words: {l}
    Sort the words {l}
    Arrange these words by the alphabet: {l}
    Bring these words into alphabetical order: {l}
    Alphabetize {l}
    Sort from A to Z: {l}
    Please sort these words: {l}
    """,
    """
    Arrange in alphabetical order: {l}
    """,
)
COUNT_WORDS = wordings(
    """
    How many words are in: {l}?
    Count the words: {l}
    How many words are there in {l}?
    Count these words: {l}
    How many words do you see: {l}?
    What is the number of words in {l}?
    {l} - how many words are that?
    """,
    """
    Tell me the number of words in: {l}
    """,
)


def transform(draw: Draw) -> list[Exchange]:
    """Capital letters, spelling, counting letters, first and last letter, backwards, sorting."""
    word = draw.pick(spelled())
    made = draw.rng.choices(
        (_upper, _spell, _letters, _first, _last, _reverse, _sort, _count), (3, 3, 3, 2, 2, 2, 2, 1)
    )[0]
    return [made(draw, word)]


def _upper(draw: Draw, word: str) -> Exchange:
    return Exchange(draw.ask(UPPER, w=word), word.upper(), (word.upper(),))


def _spell(draw: Draw, word: str) -> Exchange:
    say = "-".join(word.upper())
    return Exchange(draw.ask(SPELL, w=word), f"{word.capitalize()} is spelled {say}.", (say,))


def _letters(draw: Draw, word: str) -> Exchange:
    say = f"The word {word} has {len(word)} letters: {'-'.join(word.upper())}."
    return Exchange(draw.ask(LETTERS, w=word), say, (f"{len(word)} letters",))


def _first(draw: Draw, word: str) -> Exchange:
    letter = word[0].upper()
    say = f"The first letter of {word} is {letter}."
    return Exchange(draw.ask(FIRST, w=word), say, (f"is {letter}",))


def _last(draw: Draw, word: str) -> Exchange:
    letter = word[-1].upper()
    return Exchange(
        draw.ask(LAST, w=word), f"The last letter of {word} is {letter}.", (f"is {letter}",)
    )


def _reverse(draw: Draw, word: str) -> Exchange:
    short = word if len(word) <= 5 else draw.pick([w for w in spelled() if len(w) <= 4])
    return Exchange(draw.ask(REVERSE, w=short), short[::-1], (short[::-1],))


def _sort(draw: Draw, word: str) -> Exchange:
    chosen = draw.rng.sample(spelled(), 3)
    say = f"In order: {', '.join(sorted(chosen))}."
    return Exchange(draw.ask(ALPHABETIC, l=", ".join(chosen)), say, (", ".join(sorted(chosen)),))


def _count(draw: Draw, word: str) -> Exchange:
    chosen = draw.rng.sample(spelled(), draw.rng.randint(2, 6))
    say = f"There are {len(chosen)} words."
    return Exchange(draw.ask(COUNT_WORDS, l=" ".join(chosen)), say, (str(len(chosen)),))


def copying(draw: Draw) -> list[Exchange]:
    """Says a few words again, once or twice."""
    text = " ".join(draw.rng.sample(spelled(), draw.rng.randint(1, 5)))
    if draw.chance(0.15):
        word = draw.pick(spelled())
        return [Exchange(draw.ask(TWICE, w=word), f"{word} {word}", (f"{word} {word}",))]
    plain = Draw(draw.rng, draw.material, draw.held, plain=True)
    return [Exchange(plain.ask(REPEAT, w=text), text, (text,))]
