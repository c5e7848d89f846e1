"""How users put a question: many wordings for each intent, and the noise of quick typing.

Every intent has wordings for training and others that only the evaluation uses: facts are shared,
phrasings are held out.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple


class Wordings(NamedTuple):
    """Templates with named slots; `held` is never drawn for training."""

    train: tuple[str, ...]
    held: tuple[str, ...]


def wordings(train: str, held: str) -> Wordings:
    """From two texts with one template a line."""
    first, second = (tuple(filter(None, map(str.strip, t.split("\n")))) for t in (train, held))
    return Wordings(first, second)


WHAT_IS = wordings(
    """
    What is {t}?
    What is {t}?
    What is {t}?
    What's {t}?
    Explain {t}.
    Explain {t} to me.
    Can you explain {t}?
    Please explain {t}.
    Tell me about {t}.
    Can you tell me about {t}?
    Tell me what {t} is.
    Can you tell me what {t} is?
    Do you know what {t} is?
    What does {t} mean?
    What exactly is {t}?
    What do you know about {t}?
    I want to know what {t} is.
    Explain {t} in simple words.
    Explain {t} like I am five.
    Give me a short explanation of {t}.
    Define {t}.
    Describe {t}.
    {t}?
    I don't understand {t}.
    So what is {t}?
    What is meant by {t}?
    What is {t}, in one sentence?
    What is {t} exactly?
    What is {t} in simple words?
    Explain {t} to a child.
    Can you explain {t} to a kid?
    Explain {t} to a beginner.
    Explain to me what {t} is.
    Could you explain what {t} is?
    Please tell me what {t} is.
    Give me a definition of {t}.
    I have heard about {t}. What is it?
    I keep hearing about {t}. What is that?
    What is this {t} thing?
    {t}: what is it?
    Teach me about {t}.
    Can you describe {t}?
    What should I know about {t}?
    Do you know anything about {t}?
    I need to explain {t} to my son.
    Tell me in short what {t} is.
    Who can tell me what {t} is?
    """,
    """
    In simple terms, what is {t}?
    Could you briefly explain {t}?
    Help me understand {t}.
    I would like to know more about {t}.
    """,
)
WHAT_ARE = wordings(
    """
    What are {t}?
    What are {t}?
    What are {t}?
    Explain {t}.
    Can you explain {t}?
    Tell me about {t}.
    Tell me what {t} are.
    Can you tell me what {t} are?
    Do you know what {t} are?
    What exactly are {t}?
    What do you know about {t}?
    Explain {t} in simple words.
    Describe {t}.
    {t}?
    What is meant by {t}?
    Explain {t} to a child.
    Explain to me what {t} are.
    Could you explain what {t} are?
    I have heard about {t}. What are they?
    Teach me about {t}.
    What should I know about {t}?
    What are {t} in simple words?
    {t}: what are they?
    """,
    """
    In simple terms, what are {t}?
    Could you briefly explain {t}?
    I would like to know more about {t}.
    """,
)
HOW_TO = wordings(
    """
    How do I {x}?
    How do I {x}?
    How can I {x}?
    How can I {x}?
    How to {x}?
    how to {x}
    How do you {x}?
    What is the best way to {x}?
    What's a good way to {x}?
    Can you tell me how to {x}?
    Tell me how to {x}.
    Please tell me how to {x}.
    Do you know how to {x}?
    Give me some tips on how to {x}.
    Any tips on how to {x}?
    I want to {x}. How do I do that?
    I want to {x}.
    I need to {x}.
    Can you help me {x}?
    Help me {x}.
    How should I {x}?
    I don't know how to {x}.
    What should I do to {x}?
    Any advice on how to {x}?
    Any ideas how to {x}?
    I have to {x}. Any tips?
    I am trying to {x}.
    I would love to {x}. Where do I start?
    Is there a good way to {x}?
    Is there an easy way to {x}?
    What are good ways to {x}?
    What can I do to {x}?
    What do I need to know to {x}?
    Could you help me to {x}?
    Could you tell me how to {x}?
    Would you tell me how to {x}?
    How would you {x}?
    How does one {x}?
    How do people {x}?
    My friend wants to {x}. What should he do?
    I have never managed to {x}. What helps?
    Teach me to {x}.
    Show me how to {x}.
    What's the trick to {x}?
    What is the right way to {x}?
    Please explain how I can {x}.
    What are the steps to {x}?
    """,
    """
    Could you give me some advice on how to {x}?
    What do you suggest to {x}?
    I would like to {x}, any ideas?
    Explain how to {x}.
    """,
)
WHY = wordings(
    """
    Do you know why {s}?
    Can you explain why {s}?
    Can you tell me why {s}?
    Explain why {s}.
    Tell me why {s}.
    I want to know why {s}.
    How come {s}?
    Why is it that {s}?
    My daughter asks why {s}.
    Could you explain why {s}?
    Please explain why {s}.
    What is the cause that {s}?
    I have always asked myself why {s}.
    """,
    """
    I wonder why {s}.
    What is the reason that {s}?
    """,
)
WHO = wordings(
    """
    Tell me about {t}.
    Who is {t}?
    Do you know {t}?
    Can you tell me who {t} was?
    Do you know who {t} was?
    What do you know about {t}?
    {t}?
    Who was {t}, in short?
    Why is {t} famous?
    Why do people know {t}?
    What did {t} do?
    What is {t} famous for?
    What was {t} known for?
    Give me a few words about {t}.
    Please tell me who {t} was.
    I have to talk about {t} in school. Who was that?
    """,
    """
    I would like to know who {t} was.
    Could you tell me something about {t}?
    """,
)
EMBEDDED = wordings(  # a question that keeps its order: how many ..., who invented ...
    """
    Can you tell me {q}?
    Do you know {q}?
    Tell me {q}.
    I want to know {q}.
    Please tell me {q}.
    Can you say {q}?
    I have to know {q}.
    I forgot {q}.
    Remind me {q}.
    """,
    """
    Could you tell me {q}?
    I would like to know {q}.
    """,
)
ANY = wordings(  # any question at all
    """
    {Q}
    {Q}
    {Q}
    {Q}
    {Q}
    {Q}
    {Q}
    Tell me, {q}
    Quick question: {q}
    I have a question: {q}
    One more question: {q}
    Please tell me: {q}
    {Q}
    {Q}
    {Q}
    {Q}
    Next question: {q}
    My question is: {q}
    Could you help me? {Q}
    Please help me. {Q}
    {Q} Please help me.
    {Q} I really need to know.
    {Q} Please answer in detail.
    {Q} Explain it simply.
    {Q} It is for school.
    {Q} It is for a story.
    {Q} My friend asked me.
    {Q} I am curious.
    As an expert, answer this: {q}
    I have always wanted to ask: {q}
    For a quiz: {q}
    """,
    """
    I was wondering, {q}
    Here is a question for you: {q}
    """,
)

PROPER = re.compile(
    r"^(I|I'm|I've|[A-Z]{2,}\w*|[A-Z]\w*[A-Z]\w*|Alice|Albert|Isaac|Marie|Mount|Python|Java|Paris)\b"
)


def lowered(text: str) -> str:
    """The text with a small first letter, unless it begins with a name or an acronym."""
    return text if PROPER.match(text) else text[:1].lower() + text[1:]


def variants(question: str) -> list[tuple[Wordings, dict[str, str]]]:
    """Wordings that ask the same as `question`, with their slots; always at least `ANY`."""
    bare = question.rstrip("?.")
    slots = {"Q": question, "q": lowered(question)}
    found: list[tuple[Wordings, dict[str, str]]] = [(ANY, slots)]
    if match := re.fullmatch(r"What is (?!the (?:capital|best)\b)(.{2,32})", bare):
        if " " not in match[1] or len(match[1].split()) <= 3:
            found += [(WHAT_IS, {"t": match[1]})] * 2
    elif match := re.fullmatch(r"What are (.{2,28})", bare):
        found += [(WHAT_ARE, {"t": match[1]})] * 2
    elif match := re.fullmatch(r"How (?:do|can) I (.+)", bare):
        found += [(HOW_TO, {"x": match[1]})] * 3
    elif match := re.fullmatch(r"Why (?:do|does) (.+)", bare):
        found += [(WHY, {"s": match[1]})] * (bare.startswith("Why do "))
    elif match := re.fullmatch(r"Why (is|are) (.+) (\w+)", bare):
        found += [(WHY, {"s": f"{match[2]} {match[1]} {match[3]}"})]
    elif match := re.fullmatch(r"Who was ([A-Z].+)", bare):
        found += [(WHO, {"t": match[1]})]
    elif re.match(r"(How many|Who|Which) (?!is|are|was|were|do|does)", bare) and " do " not in bare:
        found += [(EMBEDDED, {"q": lowered(bare)})]
    return found


SYMBOLIC = re.compile(r"[\d+*/=`$]")


def typed(rng: random.Random, text: str) -> str:
    """The text as people type it: without capitals or stops, politely, in haste."""
    roll = rng.random()
    if roll < 0.28:
        text = text.lower()
    elif roll < 0.30:
        text = text.upper()
    if rng.random() < 0.30:
        text = text.rstrip(".?!")
    if rng.random() < 0.04:
        text = text + rng.choice([" please", " pls", ", please", " thanks"])
    elif rng.random() < 0.06:
        text = rng.choice(["Hi, ", "Hello, ", "Hey, ", "ok ", "Ok, ", "and ", "So "]) + lowered(
            text
        )
    if rng.random() < 0.05:
        text = text.replace("What is", "Whats").replace("what is", "whats").replace("'", "")
    if rng.random() < 0.05 and not SYMBOLIC.search(text):
        text = misspelt(rng, text)
    return text


def misspelt(rng: random.Random, text: str) -> str:
    """One longer word with two letters exchanged, one left out or one doubled."""
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 4 and word.isalpha()]
    if not long:
        return text
    chosen = rng.choice(long)
    word, at = words[chosen], rng.randrange(1, len(words[chosen]) - 2)
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    words[chosen] = rng.choice(
        [swapped, word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:]]
    )
    return " ".join(words)
