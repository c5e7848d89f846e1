"""Small sums, products, comparisons and number lists; what is too large is declined."""

from __future__ import annotations

from training.data.phrasing import wordings
from training.data.skills.base import Draw, Exchange, listed

WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]

SUM = wordings(
    """
    {a} {s} {b}
    {a}{s}{b}
    {a} {s} {b} =
    {a}{s}{b}=?
    {a} {s} {b} = ?
    What is {a} {s} {b}?
    What is {a}{s}{b}?
    What is {a} {w} {b}?
    What is {a} {w} {b}?
    What's {a} {w} {b}?
    What's {a} {s} {b}?
    How much is {a} {w} {b}?
    How much is {a} {s} {b}?
    Calculate {a} {s} {b}.
    Can you calculate {a} {s} {b}?
    Compute {a} {w} {b}.
    {a} {w} {b}?
    Solve {a} {s} {b}.
    Please calculate {a} {s} {b}.
    Tell me what {a} {w} {b} is.
    Can you tell me {a} {w} {b}?
    Could you tell me what {a} {w} {b} is?
    What is the result of {a} {s} {b}?
    How much do I get for {a} {w} {b}?
    Work out {a} {s} {b}.
    I need {a} {w} {b}.
    {a} {w} {b} is what?
    {a} {w} {b} makes how much?
    """,
    """
    Could you work out {a} {w} {b}?
    What do you get for {a} {s} {b}?
    {a} {w} {b} is how much?
    """,
)
LARGER = wordings(
    """
    Which is larger, {a} or {b}?
    Which number is bigger, {a} or {b}?
    What is more, {a} or {b}?
    Is {a} or {b} larger?
    Which is greater: {a} or {b}?
    Compare {a} and {b}.
    Which one is bigger: {a} or {b}?
    Which of {a} and {b} is larger?
    What is the larger number, {a} or {b}?
    Tell me which is larger, {a} or {b}.
    Out of {a} and {b}, what is the bigger number?
    Is {a} larger than {b}?
    Is {a} more than {b}?
    Between {a} and {b}, which is greater?
    """,
    """
    Of {a} and {b}, which is larger?
    """,
)
NEXT_NUMBER = wordings(
    """
    What number comes after {a}?
    What comes after {a}?
    Which number follows {a}?
    What is the next number after {a}?
    Tell me the next number after {a}.
    What is the number after {a}?
    I am at {a}. What number is next?
    Which number is right after {a}?
    Name the number that follows {a}.
    """,
    """
    Tell me the number that comes right after {a}.
    """,
)
BEFORE = wordings(
    """
    What number comes before {a}?
    What comes before {a}?
    Which number is before {a}?
    What is the number before {a}?
    Tell me which number is before {a}.
    Which number stands in front of {a}?
    Name the number before {a}.
    """,
    """
    Tell me the number right before {a}.
    """,
)
EVEN = wordings(
    """
    Is {a} even or odd?
    Is {a} odd or even?
    Is the number {a} even?
    Is {a} an even number?
    Is {a} an odd number?
    Tell me if {a} is even or odd.
    Even or odd: {a}?
    {a}, is that even or odd?
    Do you know if {a} is odd or even?
    """,
    """
    Tell me whether {a} is even or odd.
    """,
)
DOUBLE = wordings(
    """
    What is twice {a}?
    What is double {a}?
    Double {a}.
    What is {a} doubled?
    How much is twice {a}?
    How much is double {a}?
    What is the double of {a}?
    What is two times {a}?
    Tell me twice {a}.
    Can you double {a}?
    """,
    """
    How much is two times {a}, its double?
    """,
)
HALF = wordings(
    """
    What is half of {a}?
    What's half of {a}?
    Half of {a}?
    How much is half of {a}?
    What is the half of {a}?
    What is {a} cut in half?
    Can you halve {a}?
    Give me half of {a}.
    What do I get for half of {a}?
    """,
    """
    Tell me half of {a}.
    """,
)
COUNT = wordings(
    """
    Count to {a}.
    Can you count to {a}?
    Count from 1 to {a}.
    Please count to {a}.
    Count for me to {a}.
    Count from one to {a}.
    Show me the numbers up to {a}.
    """,
    """
    Could you count up to {a} for me?
    """,
)
COUNT_DOWN = wordings(
    """
    Count down from {a}.
    Count backwards from {a}.
    Can you count down from {a}?
    Please count down from {a}.
    Could you count backwards from {a}?
    Count down for me from {a}.
    Count from {a} down to 1.
    """,
    """
    Could you count down from {a} for me?
    """,
)
SORT = wordings(
    """
    Sort these numbers: {l}
    Sort {l}
    Put these numbers in order: {l}
    Order the numbers {l}
    Sort these numbers from small to large: {l}
    Arrange the numbers {l}
    Please sort these numbers: {l}
    Arrange by size: {l}
    Put {l} in the right order.
    Bring these numbers into order: {l}
    """,
    """
    Arrange these numbers from smallest to largest: {l}
    """,
)
LARGEST = wordings(
    """
    What is the largest of {l}?
    Which of these numbers is the largest: {l}?
    What is the biggest number in {l}?
    Which is the largest number: {l}?
    Tell me the largest number: {l}
    Choose the biggest number: {l}
    Find the largest of {l}.
    Which number is the biggest: {l}?
    What is the maximum of {l}?
    """,
    """
    Pick the largest number: {l}
    """,
)
SIGNS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
TOO_LARGE = ("These numbers are too big for me. Please use a calculator.",)


def arithmetic(draw: Draw) -> list[Exchange]:
    """A sum, difference, product or quotient of small numbers."""
    rng = draw.rng
    sign = rng.choices("+-*/", (5, 4, 4, 1))[0]
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    if sign == "-":
        a = rng.randint(b, 20)
    if sign == "*":
        a, b = rng.randint(0, 10), rng.randint(0, 10)
    if sign == "/":
        b = rng.randint(1, 10)
        a = b * rng.randint(0, 10)
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]
    spoken = SIGNS[sign]
    shown: tuple[object, object] = (a, b)
    if rng.random() < 0.12 and max(a, b) <= 20:
        shown, sign_shown = (WORDS[a], WORDS[b]), spoken
    else:
        sign_shown = rng.choice({"*": "**x"}.get(sign, sign)) if sign == "*" else sign
    asked = draw.ask(SUM, a=shown[0], b=shown[1], s=sign_shown, w=spoken)
    return [Exchange(asked, f"{a} {sign} {b} = {value}", (f"= {value}", f"is {value}"))]


def tens(draw: Draw) -> list[Exchange]:
    """Sums of two-digit numbers, in steps."""
    rng = draw.rng
    a, b = rng.sample((rng.randint(21, 89), rng.randint(11, 89)), 2)
    if rng.random() < 0.35:
        a, b = a // 10 * 10, b // 10 * 10
    if a % 10 == b % 10 == 0:
        say = f"{a} + {b} = {a + b}"
    else:
        high, low = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
        say = (
            f"{a // 10 * 10} + {b // 10 * 10} = {high} and {a % 10} + {b % 10} = {low}, "
            f"so {a} + {b} = {a + b}"
        )
    return [Exchange(draw.ask(SUM, a=a, b=b, s="+", w="plus"), say, (f"= {a + b}",))]


def too_large(draw: Draw) -> list[Exchange]:
    """Numbers that the model cannot handle."""
    rng = draw.rng
    sign = rng.choice("+-*/")
    a, b = rng.randint(100, 99999), rng.randint(12, 99999)
    asked = draw.ask(SUM, a=a, b=b, s=sign, w=SIGNS[sign])
    return [Exchange(asked, draw.pick(TOO_LARGE))]


def number_sense(draw: Draw) -> list[Exchange]:
    """Comparing, counting, neighbours, even and odd."""
    rng = draw.rng
    made = rng.choice((_larger, _next, _before, _even, _double, _half, _count, _sort, _largest))
    return [made(draw)]


def _larger(draw: Draw) -> Exchange:
    a, b = draw.rng.sample(range(100), 2)
    big, small = max(a, b), min(a, b)
    return Exchange(draw.ask(LARGER, a=a, b=b), f"{big} is larger than {small}.", (f"{big} is",))


def _next(draw: Draw) -> Exchange:
    a = draw.rng.randint(0, 110)
    say = f"After {a} comes {a + 1}."
    return Exchange(draw.ask(NEXT_NUMBER, a=a), say, (str(a + 1),))


def _before(draw: Draw) -> Exchange:
    a = draw.rng.randint(1, 110)
    return Exchange(draw.ask(BEFORE, a=a), f"Before {a} comes {a - 1}.", (str(a - 1),))


def _even(draw: Draw) -> Exchange:
    a = draw.rng.randint(0, 100)
    kind = "odd" if a % 2 else "even"
    return Exchange(draw.ask(EVEN, a=a), f"{a} is {kind}.", (kind,))


def _double(draw: Draw) -> Exchange:
    a = draw.rng.randint(1, 50)
    return Exchange(draw.ask(DOUBLE, a=a), f"Twice {a} is {2 * a}.", (str(2 * a),))


def _half(draw: Draw) -> Exchange:
    a = draw.rng.randint(1, 50) * 2
    return Exchange(draw.ask(HALF, a=a), f"Half of {a} is {a // 2}.", (str(a // 2),))


def _count(draw: Draw) -> Exchange:
    end = draw.pick((3, 4, 5, 6, 7, 8, 10, 10, 12, 15, 20))
    if draw.chance(0.3):
        down = ", ".join(str(i) for i in range(end, 0, -1))
        return Exchange(draw.ask(COUNT_DOWN, a=end), f"{down}.", (down,))
    up = ", ".join(str(i) for i in range(1, end + 1))
    return Exchange(draw.ask(COUNT, a=end), f"{up}.", (up,))


def _sort(draw: Draw) -> Exchange:
    numbers = draw.rng.sample(range(1, 21), draw.pick((3, 3, 4)))
    shown = ", ".join(map(str, numbers))
    result = ", ".join(map(str, sorted(numbers)))
    return Exchange(draw.ask(SORT, l=shown), f"In order: {result}.", (result,))


def _largest(draw: Draw) -> Exchange:
    numbers = draw.rng.sample(range(1, 100), 3)
    asked = draw.ask(LARGEST, l=listed([str(n) for n in numbers]))
    return Exchange(asked, f"The largest number is {max(numbers)}.", (str(max(numbers)),))
