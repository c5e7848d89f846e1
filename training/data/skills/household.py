"""Everyday help: advice, cooking, commands, lists of things."""

from __future__ import annotations

from functools import cache

from training.data.phrasing import HOW_TO, wordings
from training.data.skills.base import Draw, Exchange, entries, lines, listed

COOK = wordings(
    """
    How do I make {d}?
    How do I cook {d}?
    How can I make {d}?
    How do you make {d}?
    How to make {d}
    Give me a recipe for {d}.
    Recipe for {d}
    Recipe for {d}, please.
    Tell me how to make {d}.
    Can you give me a recipe for {d}?
    I want to make {d}.
    Do you have a recipe for {d}?
    I would like to cook {d}.
    Explain how to make {d}.
    How is {d} made?
    How would you make {d}?
    What is the recipe for {d}?
    I feel like eating {d}. How do I make it?
    Can you teach me to make {d}?
    Show me how to make {d}.
    What do I have to do to make {d}?
    How does one cook {d}?
    Any recipe for {d}?
    Please tell me how to make {d}.
    Help me cook {d}.
    How do you prepare {d} at home?
    """,
    """
    What is a simple recipe for {d}?
    Could you tell me how to prepare {d}?
    """,
)
INGREDIENTS = wordings(
    """
    What do I need for {d}?
    What are the ingredients for {d}?
    Which ingredients do I need for {d}?
    What is in {d}?
    What do I have to buy for {d}?
    Ingredients for {d}?
    What ingredients go into {d}?
    Which things do I need to make {d}?
    Tell me the ingredients for {d}.
    What do you put into {d}?
    What ingredients does {d} have?
    What is {d} made of?
    Shopping list for {d}?
    """,
    """
    Could you list the ingredients for {d}?
    """,
)
COMMAND = wordings(
    """
    How do I {x}?
    How do I {x} in Linux?
    How do I {x} on the command line?
    How can I {x}?
    How can I {x} in the terminal?
    Which command do I use to {x}?
    What is the command to {x}?
    What command can {x}?
    Command to {x}
    Linux command to {x}?
    How to {x} in bash?
    How to {x}
    Tell me the command to {x}.
    I want to {x} in the shell.
    Show me how to {x} in the terminal.
    What command should I use to {x}?
    How do I {x} in a terminal?
    How do I {x} with the shell?
    Is there a command to {x}?
    I need to {x} on Linux.
    Tell me how to {x} on the command line.
    Give me a command to {x}.
    On Linux, how can I {x}?
    What is the Linux command to {x}?
    In bash, how do I {x}?
    """,
    """
    Which Linux command lets me {x}?
    What should I type to {x}?
    """,
)
DOES = wordings(
    """
    What does the command {k} do?
    What does {k} do?
    Explain the command {k}.
    What is {k} in Linux?
    What is the command {k} for?
    What is {k} used for?
    What happens when I type {k}?
    Tell me what {k} does.
    What is the use of the command {k}?
    I saw the command {k}. What does it do?
    """,
    """
    Could you explain what the command {k} does?
    """,
)
NAME_SOME = wordings(
    """
    Name {n} {k}.
    Give me {n} {k}.
    List {n} {k}.
    Tell me {n} {k}.
    Can you name {n} {k}?
    Name {n} {k}, please.
    I need {n} {k}.
    What are {n} {k}?
    Give me a list of {n} {k}.
    Please name {n} {k}.
    Please give me {n} {k}.
    Can you list {n} {k}?
    Can you tell me {n} {k}?
    I want to hear {n} {k}.
    Which {k} do you know? Name {n}.
    Name me {n} {k} that you know.
    Give me the names of {n} {k}.
    Do you know {n} {k}?
    Think of {n} {k}.
    Name {n} {k} that people like.
    List {n} {k} for a game.
    """,
    """
    Could you list {n} {k} for me?
    Write down {n} {k}.
    """,
)
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}


def advice(draw: Draw) -> list[Exchange]:
    """An everyday question and its answer."""
    entry = draw.pick(entries("advice"))
    return [Exchange(draw.question(entry.questions), draw.pick(entry.answers), more=entry.more)]


def cooking(draw: Draw) -> list[Exchange]:
    """How a dish is made and what it needs; perhaps one after the other."""
    names, ingredients, steps = draw.pick(lines("cooking"))
    dish = draw.pick(names.split(" | "))
    needs = f"For {dish} you need {ingredients}."
    made = Exchange(draw.ask(COOK, d=dish), steps, more=needs)
    needed = Exchange(draw.ask(INGREDIENTS, d=dish), needs, (ingredients,))
    roll = draw.rng.random()
    if roll < 0.6:
        return [made]
    if roll < 0.85:
        return [needed]
    then = draw.typed(draw.pick(("How do I make it?", "And how do I make it?", "How is it made?")))
    return [needed, made._replace(ask=then)]


@cache
def programs() -> tuple[tuple[str, str], ...]:
    """Programs with one main use, and what it does: that of their first row."""
    found: dict[str, str] = {}
    for _, typed, effect in lines("commands"):
        found.setdefault(typed.split(" ")[0], effect)
    several = {"git", "docker", "make", "python", "kubectl", "pip"}
    return tuple((name, effect) for name, effect in found.items() if name not in several)


def command(draw: Draw) -> list[Exchange]:
    """A command for a task, or what a command does."""
    if draw.chance(0.2):
        program, effect = draw.pick(programs())
        return [Exchange(draw.ask(DOES, k=program), f"The command {program}: {effect}")]
    tasks, typed, effect = draw.pick(lines("commands"))
    task = draw.pick(tasks.split(" | "))
    wording = HOW_TO if draw.chance(0.2) and not draw.held else COMMAND
    say = f"Use `{typed}`. {effect}"
    return [Exchange(draw.ask(wording, x=task), say, (typed,))]


@cache
def kinds() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Kinds of things with their members, from `lists.tsv`."""
    return tuple((kind, tuple(items.split(", "))) for kind, items in lines("lists"))


def some_of(draw: Draw) -> list[Exchange]:
    """A few things of one kind."""
    names, items = draw.pick(kinds())
    number = draw.pick((2, 3, 3, 3, 4, 5))
    kind = draw.pick(names.split(" | "))
    # in the order of the table: a small model that says any one next says the same one again
    first = draw.rng.randrange(len(items))
    chosen = [items[(first + at) % len(items)] for at in range(min(number, len(items)))]
    shown = draw.pick((NUMBER_WORDS[len(chosen)], str(len(chosen))))
    if draw.chance(0.15):
        shown, chosen = "some", chosen[:3]
    say = f"{NUMBER_WORDS[len(chosen)].capitalize()} {kind} are {listed(chosen)}."
    return [Exchange(draw.ask(NAME_SOME, n=shown, k=kind), say, tuple(items))]
