"""Words: definitions, opposites, plural and past forms, rhymes, a few translations."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from training.data.phrasing import wordings
from training.data.skills.base import Draw, Exchange, article, lines, listed


class Word(NamedTuple):
    """A row of `words.tsv`."""

    word: str
    kind: str
    meaning: str
    example: str
    synonym: str
    opposite: str


@cache
def words() -> tuple[Word, ...]:
    """The words that are defined."""
    return tuple(Word(*row) for row in lines("words"))


@cache
def forms(kind: str) -> tuple[tuple[str, ...], ...]:
    """Pairs or rows of one kind from `forms.tsv`."""
    split = {"french", "spanish", "german", "italian"}
    for row in lines("forms"):
        if row[0] == kind:
            items = row[1].split(",")
            if kind not in split:
                return tuple(tuple(item.split()) for item in items)
            return tuple(_translated(item) for item in items)
    raise KeyError(f"content/forms.tsv has no row {kind}")


def _translated(item: str) -> tuple[str, str]:
    cut = 2 if item.startswith("good morning") else 1
    parts = item.split()
    return " ".join(parts[:cut]), " ".join(parts[cut:])


MEANING = wordings(
    """
    What does {w} mean?
    What does the word {w} mean?
    What is the meaning of {w}?
    Define {w}.
    Define the word {w}.
    Explain the word {w}.
    What is the definition of {w}?
    Meaning of {w}?
    Tell me what {w} means.
    Can you explain what {w} means?
    Do you know what {w} means?
    What is meant by the word {w}?
    What does it mean when something is {w}?
    Could you explain the word {w}?
    I don't know the word {w}. What does it mean?
    I read the word {w}. What does it mean?
    What is {w} supposed to mean?
    """,
    """
    How would you define {w}?
    Could you tell me the meaning of the word {w}?
    """,
)
EXAMPLE = wordings(
    """
    Use {w} in a sentence.
    Give me a sentence with {w}.
    Write a sentence with the word {w}.
    Make a sentence with {w}.
    Can you use the word {w} in a sentence?
    Give me an example sentence for {w}.
    """,
    """
    Show me how the word {w} is used in a sentence.
    """,
)
SYNONYM = wordings(
    """
    What is another word for {w}?
    Give me a synonym for {w}.
    What is a synonym of {w}?
    Another word for {w}?
    Tell me a word that means the same as {w}.
    Which word means the same as {w}?
    What other word can I use for {w}?
    Find a synonym for {w}.
    Do you know a synonym for {w}?
    Name a word with the same meaning as {w}.
    What can I say instead of {w}?
    """,
    """
    Which word means about the same as {w}?
    """,
)
OPPOSITE = wordings(
    """
    What is the opposite of {w}?
    What is the opposite of {w}?
    What's the opposite of {w}?
    Opposite of {w}?
    Tell me the opposite of {w}.
    Give me the opposite of {w}.
    What is the antonym of {w}?
    Which word means the opposite of {w}?
    Can you tell me the opposite of {w}?
    What word is the opposite of {w}?
    What is {w}'s opposite?
    Name the opposite of {w}.
    Please tell me the opposite of {w}.
    Do you know the opposite of {w}?
    I need the opposite of {w}.
    {w} - what is the opposite?
    What is not {w}, but the opposite?
    Find the opposite of the word {w}.
    Which word is the contrary of {w}?
    """,
    """
    Could you name the opposite of {w}?
    {w} is the opposite of what?
    """,
)
PLURAL = wordings(
    """
    What is the plural of {w}?
    What's the plural of {w}?
    Plural of {w}?
    Give me the plural of {w}.
    What is the plural form of {w}?
    Tell me the plural of {w}.
    One {w}, two what?
    What is more than one {w} called?
    How do you write the plural of {w}?
    I have one {w}, you have two what?
    Name the plural of {w}.
    What is {w} in the plural?
    Can you tell me the plural of {w}?
    """,
    """
    How do you form the plural of {w}?
    """,
)
PAST = wordings(
    """
    What is the past tense of {w}?
    What's the past tense of {w}?
    Past tense of {w}?
    Give me the past tense of {w}.
    What is the past form of {w}?
    Tell me the past tense of {w}.
    What is {w} in the past tense?
    Put {w} into the past tense.
    Can you tell me the past tense of {w}?
    Which form does {w} have in the past?
    What is the past of the verb {w}?
    Name the past tense of {w}.
    """,
    """
    Which past tense does the verb {w} have?
    """,
)
COMPARE = wordings(
    """
    What are the comparative and superlative of {w}?
    Compare the adjective {w}.
    What comes after {w}, as in good, better, best?
    Give me the forms of {w}.
    What are the three forms of {w}?
    How do you compare {w}?
    Give me the comparative of {w}.
    What is the superlative of {w}?
    """,
    """
    Tell me the comparative forms of {w}.
    """,
)
RHYME = wordings(
    """
    What rhymes with {w}?
    What rhymes with {w}?
    Which words rhyme with {w}?
    Give me a rhyme for {w}.
    Give me words that rhyme with {w}.
    Find a rhyme for {w}.
    Tell me a word that rhymes with {w}.
    Do you know a rhyme for {w}?
    What words sound like {w}?
    I need a word that rhymes with {w}.
    Name a word that rhymes with {w}.
    Which word rhymes with {w}?
    """,
    """
    Can you think of words that rhyme with {w}?
    """,
)
TRANSLATE = wordings(
    """
    What is {w} in {l}?
    How do you say {w} in {l}?
    How do I say {w} in {l}?
    Translate {w} into {l}.
    Translate {w} to {l}.
    What is the {l} word for {w}?
    Say {w} in {l}.
    What does {w} mean in {l}?
    {w} in {l}?
    """,
    """
    What would {w} be in {l}?
    """,
)
BACK = wordings(
    """
    What does the {l} word {w} mean?
    What does the {l} word {w} mean in English?
    Translate the {l} word {w} into English.
    What is the {l} word {w} in English?
    """,
    """
    Which English word is the {l} word {w}?
    """,
)


def definition(draw: Draw) -> list[Exchange]:
    """What a word means, or an example of its use."""
    word = draw.pick(words())
    if draw.chance(0.2):
        return [Exchange(draw.ask(EXAMPLE, w=word.word), word.example)]
    if word.kind == "verb":
        say = f"To {word.word} means {word.meaning}."
    elif word.kind == "noun":
        uncountable = {"courage", "wisdom", "kindness", "patience", "knowledge", "health", "luck"}
        uncountable |= {"silence", "truth", "treasure", "fear", "noise"}
        head = word.word if word.word in uncountable else article(f"a {word.word}")
        say = f"{head[:1].upper()}{head[1:]} is {word.meaning}."
    else:
        say = f"{word.word.capitalize()} means {word.meaning}."
    more = f"For example: {word.example}"
    key = word.meaning.removeprefix("to ")
    return [Exchange(draw.ask(MEANING, w=word.word), say, (key,), more)]


@cache
def opposites() -> tuple[tuple[str, str], ...]:
    """Pairs in both directions, from the words and from the shorter list."""
    pairs = [(w.word, w.opposite) for w in words() if w.opposite != "none"]
    more = (
        "up down,left right,day night,black white,good bad,long short,high low,near far,first last,"
        "true false,always never,yes no,summer winter,north south,east west,inside outside,"
        "stop start,come go,thick thin,wide narrow,tall short,before after,more less,many few"
    )
    known = {left for left, _ in pairs}
    for left, right in (item.split() for item in more.split(",")):
        pairs += [pair for pair in ((left, right), (right, left)) if pair[0] not in known]
        known |= {left, right}
    return tuple(pairs)


def opposite(draw: Draw) -> list[Exchange]:
    """Opposites and synonyms."""
    if draw.chance(0.3):
        word = draw.pick(words())
        say = f"Another word for {word.word} is {word.synonym}."
        return [Exchange(draw.ask(SYNONYM, w=word.word), say, (word.synonym,))]
    left, right = draw.pick(opposites())
    say = f"The opposite of {left} is {right}."
    return [Exchange(draw.ask(OPPOSITE, w=left), say, (f"is {right}",))]


def word_form(draw: Draw) -> list[Exchange]:
    """Plurals, past tenses, comparatives, rhymes."""
    kind = draw.rng.choices(("plural", "past", "compare", "rhyme"), (4, 4, 1, 3))[0]
    row = draw.pick(forms(kind))
    if kind == "plural":
        say, answers = f"The plural of {row[0]} is {row[1]}.", (f"is {row[1]}",)
        return [Exchange(draw.ask(PLURAL, w=row[0]), say, answers)]
    if kind == "past":
        say, answers = f"The past tense of {row[0]} is {row[1]}.", (f"is {row[1]}",)
        return [Exchange(draw.ask(PAST, w=row[0]), say, answers)]
    if kind == "compare":
        return [Exchange(draw.ask(COMPARE, w=row[0]), f"{', '.join(row)}.", (row[1],))]
    word = draw.pick(row)
    others = [other for other in row if other != word]
    say = f"{listed(others)[:1].upper()}{listed(others)[1:]} rhyme with {word}."
    return [Exchange(draw.ask(RHYME, w=word), say, tuple(others))]


def translation(draw: Draw) -> list[Exchange]:
    """A few everyday words in four languages."""
    language = draw.pick(("french", "spanish", "german", "italian"))
    english, foreign = draw.pick(forms(language))
    name = language.capitalize()
    if draw.chance(0.25):
        say = f"The {name} word {foreign} means {english}."
        return [Exchange(draw.ask(BACK, w=foreign, l=name), say, (english,))]
    say = f"In {name}, {english} is {foreign}."
    return [Exchange(draw.ask(TRANSLATE, w=english, l=name), say, (foreign,))]
