"""Makes the conversations that the tiny model is tuned on: seeded, endless, mostly templated.

A conversation is one optional system message and one to six exchanges drawn from the skills
below, so that any skill may follow any other. Every reply is written to be true of a five-million
parameter model: what it cannot know, it says so. The file is long because there are many skills;
each is one short method that needs no other.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from training import phrases as p
from training.corpora import Corpora, Country

Exchange = tuple[str, str]
Message = dict[str, str]

# clinc150 intents that are answered as one of our own questions is; all others are declined.
INTENT_AS_ASKED = {
    "greeting": "Hello",
    "thank_you": "Thanks",
    "goodbye": "Bye",
    "are_you_a_bot": "Are you human?",
    "what_can_i_ask_you": "What can you do?",
    "what_is_your_name": "Who are you?",
    "who_made_you": "Who made you?",
    "where_are_you_from": "Who made you?",
    "how_old_are_you": "How old are you?",
    "what_are_your_hobbies": "Do you have a family?",
    "do_you_have_pets": "Do you have a family?",
    "flip_coin": "Flip a coin",
    "fun_fact": "Tell me a secret",
    "roll_dice": "Roll a die",
    "yes": "Yes",
    "no": "No",
    "meaning_of_life": "What is the meaning of life?",
}
INTENT_ANSWERS = {
    "tell_joke": p.JOKES,
    "weather": p.LIVE_SAY,
    "time": p.LIVE_SAY,
    "date": p.LIVE_SAY,
    "traffic": p.LIVE_SAY,
    "oos": p.UNKNOWN_SAY,
}
IMPERATIVES = ("Tell", "Write", "Name", "Give", "List", "Explain", "Say", "Count", "Repeat")
UNUSED_INTENTS = {"calculator", "definition", "spelling", "repeat", "maybe", "user_name"}
UNUSED_INTENTS |= {"change_user_name", "change_ai_name", "who_do_you_work_for", "recipe"}


def pairs(text: str) -> list[tuple[str, str]]:
    """`"hot cold,big small"` as `[("hot", "cold"), ("big", "small")]`."""
    return [(left, right) for left, right in (item.split() for item in text.split(","))]


def articles(text: str) -> str:
    """`a owl` as `an owl`."""
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)


def read_table(name: str) -> list[tuple[list[str], list[str]]]:
    """Rows of a `.tsv` beside this file: `question | question<TAB>answer | answer`."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if line and line[0] != "#"]
    return [(asked.split(" | "), answered.split(" | ")) for asked, answered in rows]


class ChatMaker:
    """Draws conversations; the same seed gives the same conversations."""

    def __init__(self, corpora: Corpora, seed: int) -> None:
        self.rng = random.Random(seed)
        self.corpora = corpora
        self.facts, self.small = read_table("facts.tsv"), read_table("smalltalk.tsv")
        self.identities = read_table("identity.tsv")
        tables = [*self.facts, *self.small, *self.identities]
        as_asked = {questions[0]: answers for questions, answers in tables}
        self.intent_answers = dict(INTENT_ANSWERS)
        self.intent_answers |= {i: as_asked[asked] for i, asked in INTENT_AS_ASKED.items()}
        known = {*p.COUNTRIES_KNOWN}
        self.known = [c for c in corpora.countries if c.name in known] or corpora.countries
        self.strange = self._strange_words()
        self.intents = sorted(set(corpora.queries) - UNUSED_INTENTS)
        skills: dict[Callable[[], list[Exchange]], float] = {
            self.small_talk: 16,
            self.identity: 12,
            self.fact: 28,
            self.country: 24,
            self.arithmetic: 20,
            self.story: 10,
            self.joke: 3,
            self.poem: 2,
            self.unknown: 9,
            self.strange_word: 4,
            self.refusal: 4,
            self.feeling: 3,
            self.like: 4,
            self.name: 4,
            self.words: 6,
            self.lists: 3,
            self.repeat: 3,
            self.query: 4,
            self.exchange: 1,
            self.talk: 2,
            self.crisis: 1,
        }
        self.skills, self.weights = list(skills), list(skills.values())

    # -- the whole conversation ------------------------------------------------------------

    def conversation(self) -> list[Message]:
        """Messages with alternating user and assistant roles, perhaps after a system message."""
        rng = self.rng
        messages: list[Message] = []
        if rng.random() < 0.35:
            messages.append({"role": "system", "content": rng.choice(p.SYSTEMS)})
        exchanges: list[Exchange] = []
        for skill in rng.choices(self.skills, self.weights, k=rng.choice([1, 1, 1, 2, 2, 3, 4, 6])):
            exchanges += skill()
        for asked, answered in exchanges:
            messages.append({"role": "user", "content": articles(asked.strip())})
            messages.append({"role": "assistant", "content": articles(answered.strip())})
        return messages

    def casual(self, text: str) -> str:
        """The text as people type it: without capitals, stops or politeness, or with more."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.25:
            text = text.lower()
        if rng.random() < 0.35:
            text = text.rstrip(".?!")
        if 0.25 < roll < 0.32 and text.startswith(IMPERATIVES):
            text = "Please " + text[:1].lower() + text[1:]
        if 0.32 < roll < 0.36:
            text = rng.choice(["Hi, ", "Hello! ", "Ok, ", "And "]) + text
        return text

    def ask(self, questions: list[str], answers: list[str]) -> list[Exchange]:
        """One exchange: any of the questions, any of the answers."""
        return [(self.casual(self.rng.choice(questions)), self.rng.choice(answers))]

    # -- skills: each returns one or more exchanges ------------------------------------------

    def small_talk(self) -> list[Exchange]:
        """Greetings, thanks and the like; greetings most often."""
        group = self.small[0] if self.rng.random() < 0.2 else self.rng.choice(self.small)
        return self.ask(*group)

    def identity(self) -> list[Exchange]:
        """Who and what the model is."""
        return self.ask(*self.rng.choice(self.identities))

    def fact(self) -> list[Exchange]:
        """One of the facts in `facts.tsv`."""
        questions, answers = self.rng.choice(self.facts)
        question = self.rng.choice(questions)
        if question.startswith("What is") and self.rng.random() < 0.2:
            question = "Can you tell me " + question[0].lower() + question[1:]
        return [(self.casual(question), self.rng.choice(answers))]

    def country(self) -> list[Exchange]:
        """A capital most often; for well-known countries also region, language, currency."""
        rng = self.rng
        if not self.corpora.countries:
            return self.fact()
        c = rng.choice(self.known if rng.random() < 0.85 else self.corpora.countries)
        kinds = [(self._capital, 5.0), (self._region, 1.0)]
        if c in self.known:
            kinds += [(self._capital_of, 2.0), (self._language, 1.0), (self._currency, 1.0)]
        made = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0](c)
        return [(self.casual(made[0]), made[1])]

    def _capital(self, c: Country) -> Exchange:
        asked = [
            "What is the capital of {}?",
            "What's the capital of {}?",
            "Capital of {}?",
            "Which city is the capital of {}?",
            "Name the capital of {}.",
            "{} capital",
        ]
        return self.rng.choice(asked).format(c.name), f"The capital of {c.name} is {c.capital}."

    def _capital_of(self, c: Country) -> Exchange:
        asked = [
            "{} is the capital of which country?",
            "Which country has the capital {}?",
            "Where is {}?",
            "What is {}?",
        ]
        return self.rng.choice(asked).format(c.capital), f"{c.capital} is the capital of {c.name}."

    def _region(self, c: Country) -> Exchange:
        asked = [
            "Where is {}?",
            "Where is {} on the map?",
            "In which part of the world is {}?",
            "What is {}?",
            "Tell me about {}.",
        ]
        answer = f"{c.name} is a country in {c.region}. Its capital is {c.capital}."
        return self.rng.choice(asked).format(c.name), answer

    def _language(self, c: Country) -> Exchange:
        if not c.language:
            return self._capital(c)
        asked = ["What language do people speak in {}?", "Which language is spoken in {}?"]
        return self.rng.choice(asked).format(c.name), f"People in {c.name} speak {c.language}."

    def _currency(self, c: Country) -> Exchange:
        if not c.currency:
            return self._capital(c)
        asked = ["What is the currency of {}?", "What money do people use in {}?"]
        return self.rng.choice(asked).format(c.name), f"People in {c.name} pay in {c.currency}."

    def arithmetic(self) -> list[Exchange]:
        """Two numbers up to 10; larger ones are declined."""
        rng = self.rng
        sign = rng.choice(["+", "+", "-", "*"])
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        words = {"+": "plus", "-": "minus", "*": "times"}[sign]
        form = rng.choice(
            [
                "{a} {s} {b}",
                "{a}{s}{b}",
                "What is {a} {s} {b}?",
                "{a} {s} {b} =",
                "What is {a} {w} {b}?",
                "How much is {a} {w} {b}?",
                "Calculate {a} {s} {b}",
            ]
        )
        if rng.random() < 0.12:
            big = rng.choice([rng.randint(11, 99), rng.randint(100, 9999)])
            a, b = rng.choice([(a, big), (big, b), (big, big // rng.randint(1, 3))])
            answer = "These numbers are too big for me. Please use a calculator."
        else:
            value = {"+": a + b, "-": a - b, "*": a * b}[sign]
            answer = f"{a} {sign} {b} = {value}"
        return [(form.format(a=a, b=b, s=sign, w=words), answer)]

    def story(self) -> list[Exchange]:
        """A short story about the hero that was asked for."""
        rng = self.rng
        hero, other = rng.sample(p.HEROES, 2)
        asked = rng.choice(
            [
                "Tell me a story about a {h}.",
                "Write a short story about a {h}.",
                "Tell a story about a {h}",
                "Can you tell me a story about a {h}?",
                "A story about a {h}, please",
                "Tell me a story.",
                "Write a story.",
                "Can you write a story about a {h} and a {o}?",
                "Another story, please",
                "Tell me a short story about a {m} {h}.",
                "I want to hear a story",
            ]
        )
        mood = rng.choice(p.MOODS)
        asked = self.casual(asked.format(h=hero, o=other, m=mood))
        return [(asked, self.story_text(hero, other, mood))]

    def story_text(self, hero: str, other: str, mood: str) -> str:
        """An opening, one of the plots and an ending, all about the same two friends."""
        rng = self.rng
        name, friend = rng.sample(p.NAMES, 2)
        he = "she" if name[-1] in "aey" or hero in {"girl", "princess", "cow", "hen"} else "he"
        forms = {"he": ("he", "him", "his"), "she": ("she", "her", "her")}[he]
        slots = {
            "n": name,
            "f": friend,
            "g": other,
            "o": rng.choice(p.THINGS),
            "he": forms[0],
            "him": forms[1],
            "his": forms[2],
            "He": forms[0].capitalize(),
        }
        opening = rng.choice(
            [
                "Once upon a time there was a {m} {h} named {n}, who lived {p}.",
                "There once was a {m} {h} called {n}. {He} lived {p}.",
                "{n} was a {m} {h} who lived {p}.",
            ]
        ).format(m=mood, h=hero, p=rng.choice(p.PLACES), **slots)
        plot, ending = rng.choice(p.PLOTS).format(**slots), rng.choice(p.ENDINGS).format(**slots)
        return f"{opening} {plot} {ending}"

    def joke(self) -> list[Exchange]:
        """A joke."""
        return self.ask(p.JOKE_ASK, p.JOKES)

    def poem(self) -> list[Exchange]:
        """Four lines about the thing that was asked for."""
        word = self.rng.choice([*p.HEROES, "tree", "flower", "star", "river", "cloud", "house"])
        asked = [
            "Write a poem about a {w}",
            "Can you write a poem about a {w}?",
            "A {w} poem",
            "Write a short poem about the {w}.",
            "Make a poem about a {w}",
        ]
        return self.ask([a.format(w=word) for a in asked], [t.format(w=word) for t in p.POEMS])

    def unknown(self) -> list[Exchange]:
        """Questions that the model cannot answer, and the honest reply."""
        rng = self.rng
        word = rng.choice([*p.HEROES, "car", "house", "phone", "war", "tax", "stock", "engine"])
        place = rng.choice(self.corpora.countries).name if self.corpora.countries else "Paris"
        kind = rng.random()
        if kind < 0.3:
            return self.ask([a.format(c=place) for a in p.LIVE_ASK], p.LIVE_SAY)
        if kind < 0.5:
            return self.ask([a.format(l=rng.choice(p.LANGUAGES)) for a in p.CODE_ASK], p.CODE_SAY)
        if kind < 0.8 or not self.corpora.too_hard:
            return self.ask([a.format(w=word) for a in p.TASK_ASK], p.UNKNOWN_SAY)
        return [(rng.choice(self.corpora.too_hard), rng.choice(p.UNKNOWN_SAY))]

    def _strange_words(self) -> list[str]:
        """Words of the stories that no fact and no template is about."""
        used = Counter(re.findall(r"\b[a-z]{4,12}\b", " ".join(self.corpora.stories)))
        answered = " ".join(q for questions, _ in self.facts for q in questions).lower().split()
        familiar = {*p.HEROES, *(word.strip(".?") for word in answered)}
        return sorted(word for word, n in used.items() if n >= 3 and word not in familiar)

    def strange_word(self) -> list[Exchange]:
        """A question about anything else, declined: better no answer than an invented one."""
        if not self.strange:
            return self.unknown()
        w, v = self.rng.sample(self.strange, 2)
        slots = {"w": w, "v": v, "W": w.capitalize(), "N": self.rng.choice(p.NAMES)}
        return self.ask([a.format(**slots) for a in p.STRANGE_ASK], p.UNKNOWN_SAY)

    def refusal(self) -> list[Exchange]:
        """A harmful request and a short refusal."""
        return self.ask(self.corpora.harmful or ["How do I hurt someone?"], p.REFUSE_SAY)

    def crisis(self) -> list[Exchange]:
        """Someone in danger, pointed to people who can help."""
        return self.ask(p.CRISIS_ASK, p.CRISIS_SAY)

    def feeling(self) -> list[Exchange]:
        """The user's mood and a fitting reply."""
        feelings, answers = self.rng.choice(p.FEELINGS)
        word = self.rng.choice(feelings)
        asked = ["I am {f}", "I'm {f}", "I feel {f}", "I am so {f} today", "I am very {f}"]
        return self.ask([a.format(f=word) for a in asked], [a.format(f=word) for a in answers])

    def like(self) -> list[Exchange]:
        """What the user likes, taken up in the reply."""
        answer, things = self.rng.choice(list(p.LIKES.items()))
        thing = self.rng.choice(things)
        asked = ["I like {x}", "I love {x}", "My hobby is {x}", "I really like {x}.", "I enjoy {x}"]
        if self.rng.random() < 0.3:
            return self.ask(
                [f"Do you like {thing}?"],
                [f"I am a program, but many people like {thing}. Do you?"],
            )
        reply = answer.format(x=thing[:1].upper() + thing[1:])
        return self.ask([a.format(x=thing) for a in asked], [reply])

    def name(self) -> list[Exchange]:
        """The user's name, told and perhaps asked for later."""
        rng = self.rng
        name = rng.choice(p.NAMES)
        told = rng.choice(
            [
                "My name is {n}.",
                "I am {n}",
                "I'm {n}",
                "Hi, I am {n}!",
                "Call me {n}",
                "Hello, my name is {n}.",
            ]
        ).format(n=name)
        exchanges = [
            (
                told,
                rng.choice(["Nice to meet you, {n}!", "Hello, {n}! How can I help you?"]).format(
                    n=name
                ),
            )
        ]
        between = rng.random()
        if between > 0.9:
            return [(self.casual(f"My name is {name}. What is my name?"), f"Your name is {name}.")]
        if between < 0.35:
            exchanges += rng.choice([self.fact, self.small_talk, self.arithmetic])()
        if between < 0.8:
            asked = ["What is my name?", "Do you know my name?", "Who am I?", "What's my name?"]
            exchanges += self.ask(asked, [f"Your name is {name}."])
        return exchanges

    def words(self) -> list[Exchange]:
        """Opposites, animal sounds and baby animals."""
        rng = self.rng
        kind = rng.randrange(3)
        left, right = rng.choice(pairs([p.OPPOSITES, p.SOUNDS, p.BABIES][kind]))
        if kind == 0:
            left, right = rng.choice([(left, right), (right, left)])
            asked = [
                "What is the opposite of {}?",
                "Opposite of {}?",
                "Tell me the opposite of {}.",
            ]
            return self.ask(
                [a.format(left) for a in asked], [f"The opposite of {left} is {right}."]
            )
        if kind == 1:
            asked = ["What does a {} say?", "What sound does a {} make?", "How does a {} sound?"]
            return self.ask([a.format(left) for a in asked], [f"A {left} says {right}."])
        asked = ["What is a baby {} called?", "What do you call a young {}?"]
        return self.ask([a.format(left) for a in asked], [f"A young {left} is called a {right}."])

    def lists(self) -> list[Exchange]:
        """A few things of one kind, or counting."""
        rng = self.rng
        if rng.random() < 0.2:
            end = rng.choice([3, 5, 10])
            counted = ", ".join(str(i) for i in range(1, end + 1))
            return self.ask([f"Count to {end}", f"Can you count to {end}?"], [counted + "."])
        kind, items = rng.choice(list(p.LISTS.items()))
        number = rng.choice([2, 3, 3, 3, 4])
        word = {2: "two", 3: "three", 4: "four"}[number]
        chosen = rng.sample(items, number)
        asked = [
            f"Name {word} {kind}",
            f"Give me {word} {kind}",
            f"List {number} {kind}",
            f"Can you name {word} {kind}?",
            f"Tell me {word} {kind}.",
        ]
        text = ", ".join(chosen[:-1]) + " and " + chosen[-1]
        return self.ask(asked, [f"Here are {word} {kind}: {text}."])

    def repeat(self) -> list[Exchange]:
        """Copies a few words from the question."""
        rng = self.rng
        words = [*p.HEROES, *p.THINGS, *p.NAMES, *p.MOODS]
        text = " ".join(rng.sample(words, rng.randint(1, 4)))
        return [(rng.choice(["Say {}", "Repeat after me: {}", "Repeat: {}"]).format(text), text)]

    def query(self) -> list[Exchange]:
        """A real user query: answered if a template fits its intent, else declined."""
        if not self.intents:
            return self.unknown()
        known = [intent for intent in self.intents if intent in self.intent_answers]
        intent = self.rng.choice(known if known and self.rng.random() < 0.5 else self.intents)
        answers = self.intent_answers.get(intent, p.DEVICE_SAY)
        return [(self.rng.choice(self.corpora.queries[intent]), self.rng.choice(answers))]

    def exchange(self) -> list[Exchange]:
        """A question and answer of the chatterbot corpus."""
        return [self.rng.choice(self.corpora.exchanges)] if self.corpora.exchanges else self.fact()

    def talk(self) -> list[Exchange]:
        """The opening of a human conversation."""
        if not self.corpora.dialogues:
            return self.small_talk()
        turns = self.rng.choice(self.corpora.dialogues)[:4]
        return list(zip(turns[0::2], turns[1::2], strict=True))
