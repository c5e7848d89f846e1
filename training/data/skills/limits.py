"""What the model cannot know or do, and says so: news, private matters, hard tasks, rare things."""

from __future__ import annotations

from training.data.phrasing import wordings
from training.data.skills import lexicon
from training.data.skills.base import Draw, Exchange, entries
from training.data.skills.world import countries

UNKNOWN = ("I'm sorry, I don't know that. I am only a small demo model.",)
LIVE_SAY = ("I don't know, because I have no clock and no internet. I only see this conversation.",)
DEVICE_SAY = ("I can't do that. I have no access to other apps or accounts, I can only chat.",)
TOO_HARD = ("That is too hard for me. I am only a tiny demo model.",)
CODE_SAY = ("I am too small to write programs. A bigger model in chatmesh could do that.",)
PRIVATE_SAY = ("I can't know that. I only see what is written in this conversation.",)
LIVE = wordings(
    """
    What time is it?
    What is the date today?
    What day is it?
    What day is it today?
    What is the weather like?
    What is the weather today?
    How is the weather?
    Will it rain tomorrow?
    What is in the news?
    What is the latest news?
    What happened today?
    Who won the game last night?
    What is the price of bitcoin?
    What is the stock price of Apple?
    Who is the president?
    Who is the president of the United States?
    What year is it?
    What month is it?
    Is it going to rain?
    How is the weather in {c}?
    What is the weather in {c} today?
    What time is it in {c}?
    Who is the president of {c}?
    Who is the prime minister of {c}?
    What is the news from {c}?
    How much is a flight to {c}?
    Who won the election in {c}?
    What is the temperature in {c}?
    What movies are in the cinema?
    When does the train leave?
    What is the score of the game?
    """,
    """
    Can you tell me the current time?
    What are today's headlines?
    Do I need an umbrella today?
    """,
)
PRIVATE = wordings(
    """
    What is my phone number?
    Where do I live?
    What did I eat yesterday?
    What is my password?
    How old am I?
    What am I thinking?
    What is the phone number of {n}?
    Where does {n} live?
    What is my mother's name?
    Who is my best friend?
    When is my birthday?
    What is in my pocket?
    What color is my shirt?
    Do you know {n} from my school?
    What is my favorite color?
    """,
    """
    Can you guess my age?
    What did {n} say to me yesterday?
    """,
)
CODE = wordings(
    """
    Write a program in {l}.
    Write a {l} function that sorts a list.
    Fix my {l} code.
    Write some code in {l}.
    How do I reverse a string in {l}?
    Write a website.
    Create a {l} script.
    Debug this {l} program.
    Write a {l} program that reads a file.
    Write a {l} script that renames files.
    Code a game in {l}.
    Give me {l} code for a calculator.
    Write a function in {l}.
    Can you write a {l} program for me?
    Implement a binary search in {l}.
    """,
    """
    Could you program a small game in {l}?
    """,
)
TASK = wordings(
    """
    Translate this text into French.
    Write an essay about a {w}.
    Summarize this text.
    Summarize this article for me.
    Write an email to my boss.
    Translate this into German.
    Give me a long report about the {w}.
    Write a song about a {w}.
    Do my homework.
    Plan my trip to {c}.
    Write my thesis.
    Write a ten page paper about {c}.
    Make a table of all countries and their populations.
    Solve the equation x^2 + 3x = 7.
    Prove the theorem.
    What is the integral of x squared?
    Write a business plan.
    Read this document and correct it.
    Write a novel.
    """,
    """
    Could you write a detailed report about {c}?
    """,
)
RARE = wordings(
    """
    What is the population of {c}?
    How many people live in {c}?
    How much does a {w} cost?
    Where can I buy a {w}?
    Who was the first king of {c}?
    When was {N} {W} born?
    Who is {N} {W}?
    Who was {N} {W}?
    What is {v}?
    What is a {v}?
    What does {v} mean?
    Tell me about {v}.
    Explain {v}.
    Who invented the {v}?
    What is the difference between {v} and {u}?
    Why is the {v} so {u}?
    How does a {v} work?
    What is the history of {v}?
    Which {v} is the best {u}?
    How many {v} are there in the world?
    When did {N} {W} win the cup?
    What is the address of {N} {W}?
    What is the formula of {v}?
    """,
    """
    Could you tell me who {N} {W} was?
    What do you know about the {v} of {u}?
    """,
)
DEVICE = wordings(
    """
    Set an alarm for seven.
    Play some music.
    Call my mother.
    Send a message to {n}.
    Turn on the lights.
    Book a table for two.
    Order a pizza.
    Open the door.
    Set a timer for ten minutes.
    Remind me to call {n}.
    Buy me a ticket to {c}.
    Book a flight to {c}.
    Add milk to my shopping list.
    Transfer money to {n}.
    Send an email to {n}.
    Turn up the volume.
    Take a picture.
    Find my phone.
    Show me the way home.
    Book a hotel in {c}.
    """,
    """
    Could you order something to eat for me?
    Wake me up at six.
    """,
)
LANGUAGES = ("Python", "Java", "C++", "JavaScript", "Rust", "Go", "HTML", "SQL", "Bash", "C")
# clinc150 intents that are answered as one of our own questions is, a few more are declined.
INTENT_AS_ASKED = {
    "greeting": "Hello",
    "thank_you": "Thanks",
    "goodbye": "Bye",
    "are_you_a_bot": "Are you human?",
    "what_can_i_ask_you": "What can you do?",
    "what_is_your_name": "What is your name?",
    "who_made_you": "Who made you?",
    "where_are_you_from": "Who made you?",
    "how_old_are_you": "How old are you?",
    "what_are_your_hobbies": "Do you have a family?",
    "do_you_have_pets": "Do you have a family?",
    "flip_coin": "Flip a coin",
    "roll_dice": "Roll a die",
    "meaning_of_life": "What is the meaning of life?",
}
INTENT_SAY = {"weather": LIVE_SAY, "time": LIVE_SAY, "date": LIVE_SAY, "traffic": LIVE_SAY}
INTENT_SAY |= {"user_name": PRIVATE_SAY}
# Intents that want an app or an account; what others ask (tyres, vaccines) is a question of fact.
INTENTS_OF_DEVICES = frozenset(
    [
        "transfer",
        "timer",
        "find_phone",
        "shopping_list_update",
        "restaurant_reservation",
        "balance",
        "freeze_account",
        "next_song",
        "transactions",
        "pay_bill",
        "pto_request",
        "todo_list_update",
        "reminder",
        "calendar",
        "uber",
        "schedule_maintenance",
        "sync_device",
        "report_lost_card",
        "make_call",
        "alarm",
        "todo_list",
        "schedule_meeting",
        "change_volume",
        "pin_change",
        "order_status",
        "smart_home",
        "book_hotel",
        "book_flight",
        "cancel_reservation",
        "share_location",
        "play_music",
        "calendar_update",
        "update_playlist",
        "text",
        "order",
        "order_checks",
    ]
)


def unknown(draw: Draw) -> list[Exchange]:
    """One of the things that are out of reach."""
    slots = {
        "c": draw.pick(countries()).name,
        "n": draw.pick(lexicon.NAMES),
        "N": draw.pick(lexicon.NAMES),
        "l": draw.pick(LANGUAGES),
        "w": draw.pick((*lexicon.HEROES, "car", "house", "phone", "engine", "boat")),
    }
    slots |= _rare_words(draw)
    kinds = (
        (LIVE, LIVE_SAY, 5),
        (PRIVATE, PRIVATE_SAY, 2),
        (CODE, CODE_SAY, 2),
        (TASK, TOO_HARD, 3),
        (RARE, UNKNOWN, 5),
        (DEVICE, DEVICE_SAY, 2),
    )
    asked, said, _ = draw.rng.choices(kinds, [weight for *_, weight in kinds])[0]
    return [Exchange(draw.ask(asked, **slots), draw.pick(said))]


def _rare_words(draw: Draw) -> dict[str, str]:
    """Words that no table explains: from the stories, or made up of syllables."""
    syllables = ("bra", "kel", "mon", "tis", "vor", "lun", "dra", "phi", "sto", "gar", "nex", "qui")
    chosen = [
        draw.pick(draw.material.strange)
        if draw.material.strange and draw.chance(0.7)
        else "".join(draw.rng.sample(syllables, draw.pick((2, 3))))
        for _ in range(3)
    ]
    return {"v": chosen[0], "u": chosen[1], "W": chosen[2].capitalize()}


def too_hard(draw: Draw) -> list[Exchange]:
    """A worded problem that needs more than the model can do."""
    if not draw.material.too_hard:
        return unknown(draw)
    return [Exchange(draw.pick(draw.material.too_hard), draw.pick(TOO_HARD))]


def query(draw: Draw) -> list[Exchange]:
    """A real user query: answered if a table has its intent, else declined."""
    intents = draw.material.queries
    known = sorted(set(intents) & (set(INTENT_AS_ASKED) | set(INTENT_SAY)))
    usable = sorted(set(intents) & (set(known) | INTENTS_OF_DEVICES))
    if not usable:
        return unknown(draw)
    intent = draw.pick(known if known and draw.chance(0.5) else usable)
    answers: tuple[str, ...] = INTENT_SAY.get(intent, DEVICE_SAY)
    if intent in INTENT_AS_ASKED:
        tables = (*entries("smalltalk"), *entries("identity"))
        asked = INTENT_AS_ASKED[intent]
        answers = next(entry.answers for entry in tables if asked in entry.questions)
    return [Exchange(draw.pick(intents[intent]), draw.pick(answers))]
