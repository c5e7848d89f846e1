"""Countries: capital, continent, language, currency, neighbours; alone or one after another."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from training.data.phrasing import wordings
from training.data.skills.base import Draw, Exchange, lines, listed


class Country(NamedTuple):
    """A row of `countries.tsv`."""

    name: str
    capital: str
    continent: str
    language: str
    currency: str
    neighbours: tuple[str, ...]
    adjective: str


@cache
def countries() -> tuple[Country, ...]:
    """The countries that are drilled."""
    return tuple(
        Country(*row[:5], tuple(filter(None, row[5].split(", "))), row[6])
        for row in lines("countries")
    )


CAPITAL = wordings(
    """
    What is the capital of {c}?
    What is the capital of {c}?
    What is the capital of {c}?
    What's the capital of {c}?
    Capital of {c}?
    {c} capital
    Which city is the capital of {c}?
    What is the capital city of {c}?
    Name the capital of {c}.
    Tell me the capital of {c}.
    Can you tell me the capital of {c}?
    Do you know the capital of {c}?
    What city is the capital of {c}?
    Please name the capital of {c}.
    I need the capital of {c}.
    What is the name of the capital of {c}?
    """,
    """
    Could you tell me what the capital of {c} is?
    I would like to know the capital of {c}.
    The capital of {c} is which city?
    """,
)
CAPITAL_OF = wordings(
    """
    {x} is the capital of which country?
    Which country has the capital {x}?
    Where is {x}?
    In which country is {x}?
    What country is {x} in?
    What is {x}?
    Tell me about {x}.
    {x}?
    """,
    """
    {x} is the capital city of what country?
    Could you tell me where {x} is?
    """,
)
CONTINENT = wordings(
    """
    Where is {c}?
    On which continent is {c}?
    Which continent is {c} in?
    What continent is {c} on?
    In which part of the world is {c}?
    Where can I find {c} on the map?
    Do you know where {c} is?
    """,
    """
    {c} belongs to which continent?
    Could you tell me where {c} lies?
    """,
)
LANGUAGE = wordings(
    """
    What language do people speak in {c}?
    Which language is spoken in {c}?
    What is the language of {c}?
    What do people speak in {c}?
    What language is spoken in {c}?
    Which language do they speak in {c}?
    What is the official language of {c}?
    Language of {c}?
    """,
    """
    In {c}, which language do people speak?
    Tell me which language is spoken in {c}.
    """,
)
CURRENCY = wordings(
    """
    What is the currency of {c}?
    What money do people use in {c}?
    Which currency is used in {c}?
    How do people pay in {c}?
    What currency does {c} use?
    Currency of {c}?
    What is the money of {c} called?
    What do I pay with in {c}?
    """,
    """
    In {c}, what money do people pay with?
    Tell me the currency of {c}.
    """,
)
NEIGHBOUR = wordings(
    """
    Which countries border {c}?
    What are the neighbors of {c}?
    Which countries are next to {c}?
    Name a neighbor of {c}.
    What countries does {c} border?
    Who are the neighbors of {c}?
    """,
    """
    Tell me which countries share a border with {c}.
    """,
)
ABOUT = wordings(
    """
    Tell me about {c}.
    What is {c}?
    What do you know about {c}?
    Tell me something about {c}.
    Describe {c}.
    I want to know more about {c}.
    Can you tell me about {c}?
    {c}?
    What can you tell me about {c}?
    """,
    """
    I would like to learn something about {c}.
    Give me some facts about {c}.
    """,
)


def name_at_start(name: str) -> str:
    """`The Netherlands` for `the Netherlands`."""
    return name[:1].upper() + name[1:]


def short(name: str) -> tuple[str, ...]:
    """The name without its article, as a right answer may give it."""
    return (name, name.removeprefix("the "))


def capital(draw: Draw, c: Country) -> Exchange:
    """The capital of a country."""
    asked = draw.ask(CAPITAL, c=c.name)
    more = f"{c.capital} is in {c.continent}. People there speak {c.language}."
    return Exchange(asked, f"The capital of {c.name} is {c.capital}.", (c.capital,), more)


def capital_of(draw: Draw, c: Country) -> Exchange:
    """The country of a capital."""
    say = f"{c.capital} is the capital of {c.name}."
    more = f"{name_at_start(c.name)} is in {c.continent}. People there speak {c.language}."
    return Exchange(draw.ask(CAPITAL_OF, x=c.capital), say, short(c.name), more)


def continent(draw: Draw, c: Country) -> Exchange:
    """Where a country is."""
    say = f"{name_at_start(c.name)} is a country in {c.continent}. Its capital is {c.capital}."
    return Exchange(draw.ask(CONTINENT, c=c.name), say, (c.continent,))


def language(draw: Draw, c: Country) -> Exchange:
    """What people speak."""
    say = f"People in {c.name} speak {c.language}."
    return Exchange(draw.ask(LANGUAGE, c=c.name), say, (c.language,))


def currency(draw: Draw, c: Country) -> Exchange:
    """What people pay with."""
    say = f"The currency of {c.name} is {c.currency}."
    return Exchange(draw.ask(CURRENCY, c=c.name), say, (c.currency.removeprefix("the "),))


def neighbours(draw: Draw, c: Country) -> Exchange:
    """Countries with a common border."""
    if not c.neighbours:
        say = f"{name_at_start(c.name)} has no land border with another country."
        say = say if c.name != "Singapore" else "Singapore is an island near Malaysia."
        return Exchange(draw.ask(NEIGHBOUR, c=c.name), say)
    say = f"{name_at_start(c.name)} borders {listed(c.neighbours)}."
    return Exchange(draw.ask(NEIGHBOUR, c=c.name), say)


def about(draw: Draw, c: Country) -> Exchange:
    """A few facts at once."""
    say = (
        f"{name_at_start(c.name)} is a country in {c.continent}. Its capital is {c.capital}, "
        f"and people there speak {c.language}. The currency is {c.currency}."
    )
    more = f"It borders {listed(c.neighbours)}." if c.neighbours else ""
    return Exchange(draw.ask(ABOUT, c=c.name), say, (c.capital,), more)


KINDS = (capital, capital_of, continent, language, currency, neighbours, about)
WEIGHTS = (10, 3, 3, 3, 3, 2, 4)

THEN = {  # what a follow-up asks about the same country, without its name
    capital: ("And the capital?", "What is its capital?", "What's the capital?", "and its capital"),
    language: ("And the language?", "What language do they speak there?", "What do people speak?"),
    currency: ("And the currency?", "What is its currency?", "What money do they use there?"),
    continent: ("Where is it?", "On which continent is it?", "And where is that?"),
}
NEXT = ("And {c}?", "And of {c}?", "What about {c}?", "and {c}", "How about {c}?", "And for {c}?")


def country(draw: Draw) -> list[Exchange]:
    """One fact, perhaps with a follow-up about the same country or the same fact of another."""
    c = draw.pick(countries())
    kind = draw.rng.choices(KINDS, WEIGHTS)[0]
    exchanges = [kind(draw, c)]
    roll = draw.rng.random()
    if roll < 0.12:
        then = draw.pick([k for k in THEN if k is not kind])
        exchanges.append(then(draw, c)._replace(ask=draw.typed(draw.pick(THEN[then]))))
    elif roll < 0.24 and kind in THEN:
        other = draw.pick(countries())
        asked = draw.typed(draw.pick(NEXT).format(c=other.name))
        exchanges.append(kind(draw, other)._replace(ask=asked))
    return exchanges
