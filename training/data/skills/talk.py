"""Small talk, identity, moods, likes and names; jokes, riddles and fun facts; plain facts."""

from __future__ import annotations

from training.data.phrasing import wordings
from training.data.skills import lexicon
from training.data.skills.base import Draw, Exchange, entries, lines

FEEL = wordings(
    """
    I am {f}.
    I'm {f}.
    I feel {f}.
    I am so {f} today.
    I am very {f}.
    I feel so {f}.
    I'm feeling {f}.
    I am {f} right now.
    Today I am {f}.
    """,
    """
    I have been feeling {f} lately.
    """,
)
LIKE = wordings(
    """
    I like {x}.
    I love {x}.
    My hobby is {x}.
    I really like {x}.
    I enjoy {x}.
    {x} is my favorite thing.
    I am a fan of {x}.
    """,
    """
    I am very fond of {x}.
    """,
)
DO_YOU_LIKE = wordings(
    """
    Do you like {x}?
    What do you think about {x}?
    What do you think of {x}?
    """,
    """
    Are you a fan of {x}?
    """,
)
MY_NAME = wordings(
    """
    My name is {n}.
    I am {n}.
    I'm {n}.
    Hi, I am {n}!
    Call me {n}.
    Hello, my name is {n}.
    Hi, my name is {n}.
    Hello, I'm {n}.
    Please call me {n}.
    """,
    """
    People call me {n}.
    """,
)
WHO_AM_I = wordings(
    """
    What is my name?
    What's my name?
    Do you know my name?
    Who am I?
    Do you remember my name?
    Can you tell me my name?
    """,
    """
    Could you say my name?
    """,
)
JOKE = wordings(
    """
    Tell me a joke.
    Tell me a joke.
    Do you know a joke?
    Make me laugh.
    Another joke, please.
    Tell me another joke.
    Say something funny.
    Can you tell me a joke?
    Joke please
    Tell me a funny joke.
    Give me a joke.
    I want to hear a joke.
    Know any good jokes?
    Do you have a joke for me?
    Tell a joke
    One more joke
    """,
    """
    Could you tell me something funny?
    I would like to hear a good joke.
    """,
)
RIDDLE = wordings(
    """
    Tell me a riddle.
    Give me a riddle.
    Do you know a riddle?
    Ask me a riddle.
    Another riddle, please.
    I want a riddle.
    Can you tell me a riddle?
    """,
    """
    I would like to solve a riddle.
    """,
)
GIVE_UP = (
    "I don't know.",
    "What is the answer?",
    "I give up.",
    "Tell me the answer.",
    "No idea",
    "What is it?",
    "I don't know, tell me",
)
FUN_FACT = wordings(
    """
    Tell me a fun fact.
    Tell me something interesting.
    Do you know a fun fact?
    Fun fact please
    Surprise me.
    Tell me a secret.
    Give me a fun fact.
    Tell me something I don't know.
    Another fun fact, please.
    Teach me something.
    Tell me a random fact.
    Tell me something new.
    """,
    """
    Could you share an interesting fact?
    """,
)


def fact(draw: Draw) -> list[Exchange]:
    """A fact or an explanation from the tables."""
    table = entries("explain") if draw.chance(0.58) else entries("facts")
    entry = draw.pick(table)
    return [Exchange(draw.question(entry.questions), draw.pick(entry.answers), more=entry.more)]


def small_talk(draw: Draw) -> list[Exchange]:
    """Greetings, thanks and the like; greetings most often."""
    table = entries("smalltalk")
    entry = table[0] if draw.chance(0.1) else draw.pick(table)
    return [Exchange(draw.typed(draw.pick(entry.questions)), draw.pick(entry.answers))]


def identity(draw: Draw) -> list[Exchange]:
    """Who and what the model is."""
    entry = draw.pick(entries("identity"))
    return [Exchange(draw.typed(draw.pick(entry.questions)), draw.pick(entry.answers))]


def feeling(draw: Draw) -> list[Exchange]:
    """The user's mood and a fitting reply."""
    moods, answers = draw.pick(lexicon.FEELINGS)
    mood = draw.pick(moods)
    return [Exchange(draw.ask(FEEL, f=mood), draw.pick(answers).format(f=mood))]


def like(draw: Draw) -> list[Exchange]:
    """What the user likes, taken up in the reply."""
    answer, things = draw.pick(tuple(lexicon.LIKES.items()))
    thing = draw.pick(things)
    if draw.chance(0.3):
        say = f"I am a program, but many people like {thing}. Do you?"
        return [Exchange(draw.ask(DO_YOU_LIKE, x=thing), say)]
    return [Exchange(draw.ask(LIKE, x=thing), answer.format(x=thing[:1].upper() + thing[1:]))]


def name(draw: Draw) -> list[Exchange]:
    """The user's name, told and perhaps asked for later."""
    who = draw.pick(lexicon.NAMES)
    plain = Draw(draw.rng, draw.material, draw.held, plain=draw.chance(0.7))
    told = plain.ask(MY_NAME, n=who)
    greet = draw.pick((f"Nice to meet you, {who}! How can I help you?",))
    exchanges = [Exchange(told, greet)]
    roll = draw.rng.random()
    if roll < 0.25:
        exchanges += draw.pick((fact, small_talk, joke))(draw)
    if roll < 0.7:
        exchanges.append(Exchange(draw.ask(WHO_AM_I), f"Your name is {who}.", (who,)))
    elif roll > 0.9:
        unknown = "I don't know your name yet. What is it?"
        exchanges = [Exchange(draw.ask(WHO_AM_I), unknown), Exchange(told, greet)]
    return exchanges


def _fun(kind: str) -> list[str]:
    return [row[1] for row in lines("fun") if row[0] == kind]


def joke(draw: Draw) -> list[Exchange]:
    """A joke, or two different ones."""
    first, second = draw.rng.sample(_fun("joke"), 2)
    exchanges = [Exchange(draw.ask(JOKE), first)]
    if draw.chance(0.15):
        again = draw.typed(draw.pick(("Another one", "Another one, please.", "One more", "More")))
        exchanges.append(Exchange(again, second))
    return exchanges


def riddle(draw: Draw) -> list[Exchange]:
    """A riddle, and its answer when the user gives up."""
    asked, answer = draw.pick(_fun("riddle")).split(" # ")
    exchanges = [Exchange(draw.ask(RIDDLE), asked)]
    if draw.chance(0.6):
        exchanges.append(Exchange(draw.typed(draw.pick(GIVE_UP)), f"The answer is: {answer}"))
    return exchanges


def fun_fact(draw: Draw) -> list[Exchange]:
    """Something interesting."""
    return [Exchange(draw.ask(FUN_FACT), draw.pick(_fun("fact")))]


def support(draw: Draw) -> list[Exchange]:
    """A technical support exchange of the chatterbot corpus."""
    if not draw.material.support:
        return fact(draw)
    return [Exchange(*draw.pick(draw.material.support))]
