"""Words and parts from which replies are made. Written for chatmesh (Apache-2.0)."""

from __future__ import annotations

# Word lists read better as paragraphs than one word a line.
# fmt: off

# Moods and replies; {f} is the mood.
FEELINGS: list[tuple[list[str], list[str]]] = [
    (
        ["sad", "unhappy", "down", "lonely", "heartbroken", "not well", "depressed"],
        [
            "I am sorry to hear that. Talking to a friend can help. Do you want to tell me more?",
            "I am sorry that you feel {f}. Would a short story cheer you up?",
        ],
    ),
    (
        ["tired", "exhausted", "sleepy", "sick", "ill"],
        ["Then please get some rest. I hope you feel better soon."],
    ),
    (
        ["happy", "excited", "great", "glad", "proud"],
        ["That is wonderful! What makes you feel so {f}?", "I am happy for you!"],
    ),
    (
        ["angry", "stressed", "worried", "nervous", "afraid", "scared"],
        ["That sounds hard. Take a slow breath. Do you want to tell me why you are {f}?"],
    ),
]
# Replies to things that the user likes; {x} is the thing.
LIKES: dict[str, list[str]] = {
    "{x} sounds tasty! Do you make it yourself?": [
        "pizza", "pasta", "soup", "rice", "chocolate", "ice cream", "cake", "bread", "salad",
        "cheese", "sushi", "curry", "pancakes", "fish", "fruit",
    ],
    "{x} are lovely. Do you have one at home?": [
        "dogs", "cats", "rabbits", "horses", "birds", "hamsters", "parrots", "ponies",
    ],
    "{x} is great fun. How often do you do it?": [
        "football", "tennis", "swimming", "running", "basketball", "chess", "cycling", "dancing",
        "yoga", "hiking", "cooking", "painting", "reading", "singing", "gardening", "fishing",
    ],
    "{x} is nice to listen to. Who is your favourite artist?": [
        "music", "jazz", "rock", "pop", "rap", "classical music", "country music",
    ],
    "{x} is a good time of the year. What do you do then?": [
        "summer", "winter", "spring", "autumn",
    ],
    "{x} is interesting. What do you like most about it?": [
        "science", "history", "math", "art", "space", "nature", "programming", "travel", "Python",
    ],
}
NAMES = [
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack", "Kate", "Leo",
    "Maria", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tom", "Uma", "Vera", "Will", "Zoe", "Amina",
    "Carlos", "Yuki", "Omar", "Lena", "Max", "Nina", "Peter", "Sara", "John", "Mary", "Alice",
    "Bob", "Charlie", "Eve", "Frank", "Julia", "Mike", "Lisa", "Daniel", "Sophie", "Ali", "Fatima",
    "Ivan", "Chen", "Priya", "Raj",
]
# Parts of stories: {n} is the hero, {f} the friend, {g} what the friend is, {o} a thing.
HEROES = [
    "dog", "cat", "rabbit", "fox", "bear", "mouse", "lion", "elephant", "bird", "frog", "horse",
    "duck", "turtle", "monkey", "robot", "dragon", "girl", "boy", "king", "princess", "farmer",
    "pig", "cow", "hen", "goat", "owl", "fish", "whale", "penguin", "tiger", "wolf", "squirrel",
    "bee", "butterfly", "snail", "crocodile", "giraffe", "witch", "pirate", "knight", "teacher",
    "baker", "astronaut", "fisherman", "queen", "grandmother", "grandfather", "child", "cloud",
    "star", "dinosaur", "unicorn", "mermaid", "wizard", "hamster", "parrot", "camel", "zebra",
    "dolphin", "hedgehog", "kitten", "puppy", "sailor", "doctor", "train", "snowman", "ghost",
]
PLACES = [
    "in a green forest", "by a wide river", "in a small village", "on a high hill", "near the sea",
    "on a quiet farm", "in a big city", "at the edge of a lake", "in a warm valley",
    "on a little island",
]
THINGS = [
    "red ball", "golden key", "blue hat", "shiny stone", "small boat", "old book", "silver bell",
    "yellow kite", "magic seed", "little lamp", "warm coat", "wooden box",
]
MOODS = [
    "kind", "brave", "curious", "shy", "clever", "cheerful", "lazy", "proud", "gentle", "hungry",
]
ENDINGS = [
    "And they lived happily ever after.", "The end.", "And that is the end of the story.",
    "{n} slept very well that night.", "So {n} learned that a friend is worth more than gold.",
    "And if you go there today, you may still see {n} and {f}.",
]
POEMS = [
    "The {w} wakes up in the morning light,\nThe {w} goes to sleep at night.\nThe {w} is happy, "
    "the {w} is free,\nThe {w} is a good friend to me.",
    "Oh little {w}, so fine to see,\nCome and sit down next to me.\nWe will sing until the day is "
    "done,\nYou and I beneath the sun.",
    "I saw a {w} upon a hill,\nThe sky was blue, the wind was still.\nI said hello, it looked at "
    "me,\nAnd then we shared a cup of tea.",
]
OPENINGS = [
    "Once upon a time there was a {m} {h} named {n}, who lived {p}.",
    "There once was a {m} {h} called {n}. {He} lived {p}.",
    "{n} was a {m} {h} who lived {p}.",
]
ENDINGS_MORE = ["That is the whole story. Would you like another one?"]
SHE_NAMES = ["Anna", "Clara", "Emma", "Ida", "Maria", "Rosa", "Zoe", "Nina", "Lily", "Luna"]
HE_NAMES = ["Ben", "Felix", "Hugo", "Jack", "Leo", "Sam", "Tom", "Omar", "Max", "Milo"]
STORY_NAMES = [*SHE_NAMES, *HE_NAMES]
