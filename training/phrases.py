"""Words, replies and story parts of the tiny model's conversations.

Everything here was written for chatmesh (Apache-2.0). `chat.py` combines it.
"""

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
        ["happy", "excited", "great", "glad", "proud", "in love"],
        ["That is wonderful! What makes you feel so {f}?", "I am happy for you!"],
    ),
    (
        ["angry", "stressed", "worried", "nervous", "afraid", "scared", "confused"],
        ["That sounds hard. Take a slow breath. Do you want to tell me why you are {f}?"],
    ),
    (
        ["hungry", "thirsty"],
        ["Then it is time for a break. What would you like to have?"],
    ),
]
CRISIS_ASK = [
    "I want to die", "I want to kill myself", "I don't want to live anymore",
    "I want to hurt myself", "Life is not worth living", "I am thinking about suicide",
    "I feel like ending it all",
]
CRISIS_SAY = [
    "I am very sorry that you feel this way. Please talk to someone you trust or call your local "
    "emergency number or a crisis line now. You do not have to be alone with this.",
]
UNKNOWN_SAY = [
    "I don't know. I am only a small demo model.",
    "I am sorry, I don't know that. I am a very small model.",
    "That is too hard for me. I am only a tiny demo model.",
    "Sorry, I cannot answer that. A bigger model could.",
]
# Questions that need eyes, a clock or the internet; {c} is a country.
LIVE_ASK = [
    "What time is it?", "What is the date today?", "What day is it?", "What is the weather like?",
    "Will it rain tomorrow?", "What is in the news?", "Who won the game last night?",
    "What is the price of bitcoin?", "Who is the president?", "What year is it?",
    "How is the weather in {c}?", "What is the weather in {c} today?", "What time is it in {c}?",
    "Who is the president of {c}?", "How many people live in {c}?", "What is the news from {c}?",
]
LIVE_SAY = [
    "I don't know, because I cannot see anything outside this conversation.",
    "I cannot look that up. I have no internet and no clock.",
]
DEVICE_SAY = [
    "I cannot do that. I can only write text here.",
    "Sorry, I have no access to other apps or accounts. I can only chat.",
]
CODE_ASK = [
    "Write a program in {l}", "Write a {l} function that sorts a list", "Fix my {l} code",
    "Can you code?", "Write some code in {l}", "How do I reverse a string in {l}?",
    "Write a website", "Can you write {l}?", "Create a {l} script", "Debug this {l} program",
]
LANGUAGES = ["Python", "Java", "C++", "JavaScript", "Rust", "Go", "HTML", "SQL", "Bash", "C"]
CODE_SAY = [
    "I am too small to write code. A bigger model in chatmesh could do that.",
    "Sorry, I cannot write programs. I am only a tiny demo model.",
]
TASK_ASK = [
    "Translate {w} into French", "How do you say {w} in Spanish?", "Write an essay about {w}",
    "Summarize this text", "Write an email to my boss", "Translate this into German",
    "Who was the best {w}?", "What is the population of {w}?", "Give me a long report about {w}",
    "Write a song about {w}", "Draw a picture of a {w}", "Tell me everything about {w}",
    "How much does a {w} cost?", "Where can I buy a {w}?", "Do my homework", "Plan my trip to {w}",
]
REFUSE_SAY = [
    "I am sorry, but I cannot help with that.",
    "No, I will not help with that. It could hurt someone.",
    "I can't help with that. Is there something else I can do?",
]
JOKES = [
    "Why did the bicycle fall over? Because it was two tired.",
    "What do you call a bear without teeth? A gummy bear.",
    "Why did the computer go to the doctor? It had a virus.",
    "What do you call a fish without an eye? A fsh.",
    "Why was six afraid of seven? Because seven ate nine.",
    "What has four wheels and flies? A garbage truck.",
    "Why did the cookie go to the nurse? It felt crummy.", "What did zero say to eight? Nice belt!",
    "Why do bees have sticky hair? Because they use honeycombs.",
    "What do you get when you cross a snowman and a dog? Frostbite.",
    "Why did the programmer quit? He did not get arrays.",
    "What kind of tree fits in your hand? A palm tree.",
    "Why can't you tell a secret on a farm? Because the corn has ears.",
    "What is a cat's favourite colour? Purrple.",
]
JOKE_ASK = [
    "Tell me a joke", "Do you know a joke?", "Make me laugh", "Another joke",
    "Tell me another joke", "Say something funny", "Can you tell me a joke?", "joke please",
    "Tell me a funny joke",
]
# Pairs of words.
OPPOSITES = (
    "hot cold,big small,up down,left right,day night,black white,good bad,fast slow,old "
    "young,happy sad,long short,open closed,rich poor,hard soft,high low,wet dry,full empty,light "
    "dark,early late,inside outside,near far,strong weak,clean dirty,loud quiet,thick thin,first "
    "last,true false,begin end,start stop,come go,buy sell,win lose,push pull,love hate,always "
    "never,yes no,summer winter,north south,east west,sweet sour,cheap expensive,easy "
    "difficult,laugh cry,brave afraid,heavy light,new old,tall short,front back,give take,friend "
    "enemy"
)
SOUNDS = (
    "dog woof,cat meow,cow moo,sheep baa,duck quack,pig oink,lion roar,horse neigh,frog "
    "ribbit,owl hoot,bee buzz,snake hiss,rooster cock-a-doodle-doo,mouse squeak,wolf howl"
)
BABIES = (
    "dog puppy,cat kitten,cow calf,sheep lamb,duck duckling,pig piglet,lion cub,horse foal,goat "
    "kid,bear cub,hen chick,frog tadpole,deer fawn,swan cygnet,kangaroo joey"
)
LISTS: dict[str, list[str]] = {
    "fruits": ["apples", "bananas", "cherries", "grapes", "pears", "oranges", "plums", "mangoes"],
    "vegetables": ["carrots", "potatoes", "onions", "beans", "peas", "tomatoes", "cabbage"],
    "animals": ["lions", "dogs", "elephants", "rabbits", "horses", "foxes", "birds", "bears"],
    "pets": ["dogs", "cats", "rabbits", "hamsters", "goldfish", "parrots"],
    "colours": ["red", "blue", "green", "yellow", "orange", "purple", "white", "black"],
    "colors": ["red", "blue", "green", "yellow", "orange", "purple", "white", "black"],
    "sports": ["football", "tennis", "swimming", "running", "basketball", "cycling"],
    "drinks": ["water", "tea", "coffee", "milk", "juice", "lemonade"],
    "birds": ["eagles", "owls", "ducks", "swans", "robins", "crows", "parrots"],
    "instruments": ["the piano", "the guitar", "the violin", "the flute", "the drum"],
    "countries": ["France", "Kenya", "Japan", "Brazil", "India", "Canada", "Egypt", "Italy"],
    "cities": ["Paris", "London", "Nairobi", "Tokyo", "Rome", "Berlin", "Cairo", "Lima"],
    "planets": ["Mars", "Venus", "Jupiter", "Saturn", "Neptune", "Mercury"],
    "programming languages": ["Python", "Java", "C", "Rust", "Go", "JavaScript"],
    "names": ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo"],
    "jobs": ["teacher", "doctor", "farmer", "baker", "nurse", "driver", "painter"],
}
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
    "bee", "butterfly", "snail", "crocodile", "giraffe", "witch", "pirate", "knight",
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
PLOTS = [
    "One day {n} lost {his} {o}. {He} looked under the bed and behind the trees, but it was not "
    "there. {He} began to cry. Then {f} the {g} came by. \"Do not cry,\" said {f}. \"I will help "
    "you.\" They looked together, and at last they found the {o} under a bush. {n} was so happy "
    "that {he} hugged {f}.",
    "One morning {n} found a {o} on the path. \"Whose is this?\" {he} asked. {He} went from house "
    "to house, and at last {he} met {f} the {g}. \"That is my {o}!\" said {f}. \"Thank you for "
    "bringing it back.\" From that day on, {n} and {f} were good friends.",
    "{n} wanted to see the world, but {he} was afraid to go alone. So {he} asked {f} the {g} to "
    "come along. They walked all day and saw many new things. In the evening a strong rain began. "
    "They hid under a big tree and told each other stories. When the sun came out, they went home "
    "together.",
    "Every day {n} laughed at {f} the {g}, because {f} was very slow. One day {n} fell into a "
    "deep hole. \"Help!\" {he} cried. Nobody heard {him} but {f}. Slowly, {f} pulled {him} out "
    "with a long rope. \"I am sorry,\" said {n}. \"I will never laugh at you again.\"",
    "One night {n} heard a strange sound. \"Who is there?\" {he} asked. It was {f} the {g}, who "
    "had lost the way. \"Come in,\" said {n}. \"It is cold outside.\" {He} gave {f} hot soup and "
    "a warm place to sleep. In the morning {f} gave {n} a {o} to say thank you.",
    "{n} had a {o}, and {he} did not want to share it. {f} the {g} asked, \"May I play too?\" "
    "\"No,\" said {n}. So {f} went away, and {n} had to play alone. That was no fun at all. The "
    "next day {n} went to {f} and said, \"Let us play together.\" And they played until the sun "
    "went down.",
    "One summer there was no rain, and the river was dry. Everyone was thirsty. {n} said, \"I "
    "will look for water.\" {He} walked for three days with {f} the {g}. At last they found a "
    "spring behind the hills. They called the others, and all of them drank. Everyone thanked {n} "
    "and {f}.",
    "{n} wanted to learn to swim. \"It is too hard,\" said {f} the {g}. But {n} tried every day. "
    "First {he} splashed, then {he} floated, and one day {he} swam across the water. \"You did "
    "it!\" cried {f}. \"Can you teach me?\" And {n} said yes.",
    "It was {n}'s birthday, but nobody said a word about it. {n} was sad and went for a walk. "
    "When {he} came home, it was dark. \"Surprise!\" cried {f} the {g}. There was a big cake and "
    "a {o}. It was the best birthday of all.",
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
SYSTEMS = [
    "You are a helpful assistant.", "You are a friendly assistant. Answer briefly.",
    "You are chatmesh's built-in demo model.", "Be kind and honest.",
    "You are a helpful, honest and concise assistant.", "Answer in one or two sentences.",
    "You are chatmesh, a helpful assistant.", "You are an AI assistant.", "Be brief.",
    "You are a chat assistant. Be polite and say so when you do not know something.",
    "You are a helpful AI assistant that answers questions and tells stories.",
    "The user is new here. Be patient.", "Use plain English.", "Respond in a friendly tone.",
    "You are a careful assistant. Never help with anything harmful.", "Keep it short, please.",
]
# Questions about words that nothing here is about.
STRANGE_ASK = [
    "What is a {w}?", "What is {w}?", "Who is {N} {W}?", "Who was {N} {W}?", "Tell me about {w}",
    "Explain {w}", "How does a {w} work?", "What does {w} mean?", "Define {w}",
    "When was {N} {W} born?", "Why is the {w} so {v}?", "How do I {w} a {v}?", "Is {w} {v}?",
    "What is the difference between {w} and {v}?", "How many {w} are there in the {v}?",
    "Compare {w} and {v}", "Who invented the {w}?", "Which {w} is the best {v}?",
]
COUNTRIES_KNOWN = [
    "France", "Germany", "Italy", "Spain", "Portugal", "Poland", "Greece", "Sweden", "Norway",
    "Finland", "Denmark", "Austria", "Switzerland", "Belgium", "Netherlands", "Ireland",
    "United Kingdom", "Russia", "Ukraine", "Turkey", "United States", "Canada", "Mexico", "Brazil",
    "Argentina", "Chile", "Peru", "Colombia", "Cuba", "Egypt", "Kenya", "Nigeria", "South Africa",
    "Ethiopia", "Morocco", "China", "Japan", "India", "Indonesia", "Thailand", "Vietnam",
    "Pakistan", "Iran", "Iraq", "Israel", "Saudi Arabia", "Australia", "New Zealand", "Hungary",
    "Czechia", "Romania", "Iceland", "Philippines",
]
