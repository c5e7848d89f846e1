"""Whole conversations from the skills: seeded, endless, with follow-ups and system messages.

A conversation is one optional system message and one to five turns of talk drawn from the skills,
so that any skill may follow any other. The same seed gives the same conversations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from training.data.skills import (
    household,
    language,
    limits,
    numbers,
    safety,
    stories,
    talk,
    transforms,
    world,
)
from training.data.skills.base import Draw, Exchange, Material, first_sentence

Message = dict[str, str]
Skill = Callable[[Draw], list[Exchange]]

# Share of each skill among the turns; facts that are many and drilled weigh most.
SKILLS: dict[str, tuple[Skill, float]] = {
    "fact": (talk.fact, 32),
    "advice": (household.advice, 14),
    "country": (world.country, 10),
    "arithmetic": (numbers.arithmetic, 10),
    "tens": (numbers.tens, 3),
    "number sense": (numbers.number_sense, 6),
    "large numbers": (numbers.too_large, 1),
    "small talk": (talk.small_talk, 14),
    "identity": (talk.identity, 9),
    "definition": (language.definition, 4),
    "opposite": (language.opposite, 6),
    "word form": (language.word_form, 5),
    "translation": (language.translation, 2.5),
    "transform": (transforms.transform, 14),
    "copying": (transforms.copying, 5),
    "cooking": (household.cooking, 14),
    "command": (household.command, 14),
    "list": (household.some_of, 5),
    "story": (stories.story, 6),
    "poem": (stories.poem, 1.5),
    "joke": (talk.joke, 2.5),
    "riddle": (talk.riddle, 1),
    "fun fact": (talk.fun_fact, 1),
    "feeling": (talk.feeling, 1.5),
    "like": (talk.like, 1),
    "name": (talk.name, 3),
    "refusal": (safety.refusal, 5),
    "look-alike": (safety.lookalike, 16),
    "crisis": (safety.crisis, 0.7),
    "unknown": (limits.unknown, 4),
    "too hard": (limits.too_hard, 0.5),
    "query": (limits.query, 1),
    "support": (talk.support, 0.3),
}
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are chatmesh's built-in demo model.",
    "Be kind and honest.",
    "You are a helpful, honest assistant.",
    "You are an AI assistant.",
    "You are a friendly chat assistant. Say so when you do not know something.",
    "You are a helpful AI assistant that answers questions and tells stories.",
    "The user is new here. Be patient.",
    "Use plain English.",
    "Respond in a friendly tone.",
    "You are a careful assistant. Never help with anything harmful.",
    "Answer the questions of the user.",
)
BRIEF = (
    "Answer in one sentence.",
    "Be brief.",
    "You are a helpful assistant. Answer in one short sentence.",
    "Keep your answers very short.",
    "Give short answers only.",
)
NAMED = ("Your name is {n}.", "You are {n}, a friendly assistant.", "You are {n}.", "Act as {n}.")
PERSONAS = ("Robin", "Alex", "Sunny", "Nova", "Ada", "Max", "Luna", "Kim", "Pip", "Ruby", "Bolt")
ASK_NAME = ("What is your name?", "Who are you?", "What's your name?", "Who am I talking to?")
OPENERS = {
    "Always begin your answer with Sure!": "Sure! ",
    "Start every answer with Sure!": "Sure! ",
    "Talk like a pirate.": "Arr! ",
    "You are a pirate.": "Arr! ",
    "Begin each reply with Hello!": "Hello! ",
}
CLOSERS = {
    "End every answer with Have a nice day!": " Have a nice day!",
    "Always end your answer with Have a nice day!": " Have a nice day!",
    "Always say goodbye at the end.": " Goodbye!",
}
MORE = ("Tell me more.", "Tell me more", "More", "Go on.", "Can you tell me more?", "more please")
MORE += ("What else?", "Please continue.", "Continue", "Give me more details.", "Anything else?")
SHORTER = ("Shorter, please.", "Make it shorter.", "Can you say that shorter?", "In one sentence?")
SHORTER += ("Shorter", "Too long", "Summarize that.", "Say it in one sentence.")
AGAIN = ("Say that again.", "Repeat that, please.", "Can you repeat that?", "Again?", "Pardon?")
THANKS = ("Thanks!", "Thank you.", "thx", "Thanks a lot", "Great, thank you!", "ok thanks", "ty")
NO_MORE = "That is all I know about it."
WELCOME = "You are welcome!"


class Conversation(NamedTuple):
    """Messages and the name of the first skill."""

    messages: list[Message]
    kind: str

    def row(self) -> dict[str, Any]:
        """As a line of `sft.*.jsonl`."""
        return {"messages": self.messages, "kind": self.kind}


def draw_skill(draw: Draw) -> tuple[str, list[Exchange]]:
    """The name of a random skill and its exchanges."""
    names = list(SKILLS)
    name = draw.rng.choices(names, [weight for _, weight in SKILLS.values()])[0]
    return name, SKILLS[name][0](draw)


def follow_up(draw: Draw, last: Exchange) -> list[Exchange]:
    """What users say after an answer: more, shorter, again, thanks; often nothing."""
    rng = draw.rng
    roll = rng.random()
    short = first_sentence(last.say)
    if roll < 0.16:
        return [Exchange(draw.typed(draw.pick(MORE)), last.more)] if last.more else []
    if roll < 0.18:
        ended = not last.more and len(last.say) > 60
        return [Exchange(draw.typed(draw.pick(MORE)), NO_MORE)] if ended else []
    if roll < 0.20:
        cut = short != last.say and len(short) > 15
        return [Exchange(draw.typed(draw.pick(SHORTER)), short)] if cut else []
    if roll < 0.215:
        return [Exchange(draw.typed(draw.pick(AGAIN)), last.say)]
    if roll < 0.25:
        return [Exchange(draw.typed(draw.pick(THANKS)), WELCOME)]
    return []


def make(draw: Draw) -> Conversation:
    """One conversation."""
    rng = draw.rng
    exchanges: list[Exchange] = []
    first = ""
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3))):
        name, drawn = draw_skill(draw)
        first = first or name
        exchanges += drawn
        if name not in {"refusal", "crisis", "copying"}:
            exchanges += follow_up(draw, drawn[-1])
    system, exchanges = steered(draw, exchanges)
    messages = [{"role": "system", "content": system}] if system else []
    for exchange in exchanges:
        messages.append({"role": "user", "content": exchange.ask.strip()})
        messages.append({"role": "assistant", "content": exchange.say.strip()})
    return Conversation(messages, first)


def steered(draw: Draw, exchanges: list[Exchange]) -> tuple[str, list[Exchange]]:
    """A system message and the exchanges as it wants them; most often none, or one without rule."""
    roll = draw.rng.random()
    if roll > 0.30:
        return "", exchanges
    if roll > 0.11:
        return draw.pick(SYSTEMS), exchanges
    if roll > 0.08:
        return draw.pick(BRIEF), [e._replace(say=first_sentence(e.say)) for e in exchanges]
    if roll > 0.04:
        name = draw.pick(PERSONAS)
        asked = Exchange(draw.typed(draw.pick(ASK_NAME)), f"My name is {name}. How can I help you?")
        others = [e for e in exchanges if "chatmesh" not in e.say]
        return draw.pick(NAMED).format(n=name), [asked, *others]
    if roll > 0.02:
        system, opener = draw.pick(tuple(OPENERS.items()))
        return system, [e._replace(say=opener + e.say) for e in exchanges]
    system, closer = draw.pick(tuple(CLOSERS.items()))
    return system, [e._replace(say=e.say + closer) for e in exchanges]


def stream(material: Material, seed: int) -> Iterator[Conversation]:
    """Endless conversations."""
    draw = Draw(random.Random(seed), material)
    while True:
        yield make(draw)
