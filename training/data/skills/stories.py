"""Short stories and poems about what the user names."""

from __future__ import annotations

from training.data.phrasing import wordings
from training.data.skills import lexicon
from training.data.skills.base import Draw, Exchange, article, lines

STORY = wordings(
    """
    Tell me a story about a {h}.
    Tell me a story about a {h}.
    Write a short story about a {h}.
    Tell a story about a {h}.
    Can you tell me a story about a {h}?
    A story about a {h}, please.
    Can you write a story about a {h} and a {o}?
    Tell me a story about a {h} and a {o}.
    Tell me a short story about a {m} {h}.
    Write a story about a {m} {h}.
    Make up a story about a {h}.
    I want a story about a {h}.
    Please write a story about a {h}.
    Give me a story about a {m} {h}.
    Story about a {h}
    Tell my daughter a story about a {h}.
    Tell my son a bedtime story about a {h}.
    """,
    """
    I would love to hear a story about a {h}.
    Could you invent a short tale about a {m} {h}?
    """,
)
ANY_STORY = wordings(
    """
    Tell me a story.
    Write a story.
    Another story, please.
    I want to hear a story.
    Tell me a short story.
    Can you tell me a story?
    Tell me a bedtime story.
    Story please
    Tell me another story.
    Once upon a time
    Write a fairy tale.
    Tell me a fairy tale.
    """,
    """
    I would like a little story.
    """,
)
POEM = wordings(
    """
    Write a poem about a {h}.
    Write a poem.
    Tell me a poem.
    A poem about a {h}, please.
    Can you write a poem about a {h}?
    Write me a short poem about a {h}.
    Make a poem about a {h}.
    Poem about a {h}
    Write a rhyme about a {h}.
    """,
    """
    I would like a short poem about a {h}.
    """,
)
SHE = frozenset(["girl", "princess", "queen", "cow", "hen", "witch", "grandmother"])
HE = frozenset(["boy", "king", "knight", "grandfather"])


def story(draw: Draw) -> list[Exchange]:
    """A story of an opening, one of the plots and an ending."""
    hero, other = draw.rng.sample(lexicon.HEROES, 2)
    mood = draw.pick(lexicon.MOODS)
    asked = draw.ask(ANY_STORY) if draw.chance(0.25) else draw.ask(STORY, h=hero, o=other, m=mood)
    return [Exchange(asked, text(draw, hero, other, mood), more=draw.pick(lexicon.ENDINGS_MORE))]


def text(draw: Draw, hero: str, other: str, mood: str) -> str:
    """About 80 words; the friend of the hero is the `other`."""
    names = [n for n in lexicon.STORY_NAMES if hero not in (HE if n in lexicon.SHE_NAMES else SHE)]
    name = draw.pick(names)
    friend = draw.pick([n for n in lexicon.STORY_NAMES if n != name])
    she = name in lexicon.SHE_NAMES
    forms = ("she", "her", "her") if she else ("he", "him", "his")
    slots = {"n": name, "f": friend, "g": other, "o": draw.pick(lexicon.THINGS), "h": hero}
    slots |= dict(zip(("he", "him", "his"), forms, strict=True)) | {"He": forms[0].capitalize()}
    slots |= {"m": mood, "p": draw.pick(lexicon.PLACES)}
    parts = (draw.pick(lexicon.OPENINGS), draw.pick(lines("plots"))[0], draw.pick(lexicon.ENDINGS))
    return article(" ".join(part.format(**slots) for part in parts))


def poem(draw: Draw) -> list[Exchange]:
    """Four lines about a hero."""
    hero = draw.pick(lexicon.HEROES)
    return [Exchange(draw.ask(POEM, h=hero), article(draw.pick(lexicon.POEMS).format(w=hero)))]
