"""Control tokens are made by the template alone; text that spells one stays text.

A conversation is rendered as one string, and in a string nobody can tell an `<|im_end|>` of the
template from one that a person typed. So the two are kept apart by names nobody can guess:

1. `guard` replaces every spelling of a special token in a content, and every piece of one at its
   edges (which could complete a spelling with the template's own text), by a marker with a secret;
2. the template renders; every special token that is now spelled out is the template's;
3. `seal` renames those to secret names, and puts the guarded text back;
4. a tokenizer that knows special tokens by their secret names only (`renamed`) encodes the result
   in one pass, with the normalizer and pre-tokenizer of the original.

Without special tokens in the contents the ids equal those of encoding the rendered string.
"""

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

# 38 decimal digits are 126 bits. Digits, because templates may trim, lower, upper or JSON-escape.
SECRET_DIGIT_COUNT = 38


class SpecialTokens:
    """The names of a tokenizer's special tokens, and their secret names in this process.

    Args:
        names: spellings such as "<|im_end|>"; empty ones are ignored.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = sorted({name for name in names if name}, key=lambda name: (-len(name), name))
        digits = "".join(secrets.choice("0123456789") for _ in range(SECRET_DIGIT_COUNT))
        self._secret = f";{digits}"
        self._secret_names = {n: f"{self._secret}!{i};" for i, n in enumerate(self._names)}
        spelled = "|".join(map(re.escape, self._names)) or r"(?!)"  # longest first; or nothing
        self._spelled = re.compile(spelled)
        self._spelled_run = re.compile(f"(?:{spelled})+")
        self._guarded = re.compile(re.escape(self._secret) + r":([\d.]+);")
        self._leads = tuple({name[:2] for name in self._names})
        self._length_max = max(map(len, self._names), default=0)
        self._joined = "\0".join(self._names)
        self._prefixes = {name[:k] for name in self._names for k in range(1, len(name))}
        self._first_characters = {name[0] for name in self._names}
        self._last_characters = {name[-1] for name in self._names}
        self._suffixes = {name[-k:] for name in self._names for k in range(1, len(name))}

    @property
    def mark(self) -> str:
        """A string that occurs in no content: begins the marks that a template emits."""
        return f"{self._secret}~"

    def guard(self, text: str) -> str:
        """`text` in which nothing spells a special token or can help to spell one."""
        if self._may_spell(text):
            text = self._spelled_run.sub(self._marker, text)
        body = text.strip()  # templates may trim: the edges that count are those of the body
        if not body:
            return text
        head, tail = self._edges(body)
        if not head and not tail:
            return text
        start = text.index(body)
        end = start + len(body)
        if head + tail >= len(body):
            return text[:start] + self._hidden(body) + text[end:]
        inner = text[start + head : end - tail]
        first, last = text[start : start + head], text[end - tail : end]
        return text[:start] + self._hidden(first) + inner + self._hidden(last) + text[end:]

    def seal(self, rendered: str) -> str:
        """Template output with the secret names of special tokens and the text of contents."""
        if self._may_spell(rendered):
            rendered = self._spelled.sub(lambda m: self._secret_names[m[0]], rendered)
        if self._secret not in rendered:
            return rendered
        return self._guarded.sub(_revealed, rendered)

    def renamed(self, tokenizer_json: str) -> str:
        """The tokenizer.json with every special token under its secret name; ids are unchanged.

        Raises:
            ValueError: the file is no JSON or has not the shape of a tokenizer.json.
        """
        try:
            document = json.loads(tokenizer_json)
            for token in document["added_tokens"]:
                token["content"] = self._secret_names.get(token["content"], token["content"])
            _rename_vocabulary(document["model"], self._secret_names)
        except (KeyError, TypeError) as error:
            raise ValueError(f"tokenizer.json has an unknown shape: {error!r}") from error
        document["post_processor"] = None  # it may name tokens, and templates bring their own
        return json.dumps(document, ensure_ascii=False)

    def _may_spell(self, text: str) -> bool:
        """Searching the first two characters is much faster than the expression is."""
        for lead in self._leads:  # noqa: SIM110  # a generator would cost more than the search
            if lead in text:
                return True
        return False

    def _edges(self, body: str) -> tuple[int, int]:
        """Characters at the start and at the end of `body` that are a piece of a special token."""
        if len(body) < self._length_max and "\0" not in body and body in self._joined:
            return len(body), 0
        window = min(self._length_max - 1, len(body))
        head = tail = 0
        if not self._last_characters.isdisjoint(body[:window]):
            head = next((k for k in range(window, 0, -1) if body[:k] in self._suffixes), 0)
        if not self._first_characters.isdisjoint(body[-window:]):
            tail = next((k for k in range(window, 0, -1) if body[-k:] in self._prefixes), 0)
        return head, tail

    def _marker(self, match: re.Match[str]) -> str:
        return self._hidden(match[0])

    def _hidden(self, text: str) -> str:
        if not text:
            return ""
        return f"{self._secret}:{'.'.join(str(ord(char)) for char in text)};"


def _revealed(match: re.Match[str]) -> str:
    return "".join(chr(int(code)) for code in match[1].split("."))


def _rename_vocabulary(model: dict[str, Any], names: dict[str, str]) -> None:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): i for token, i in vocabulary.items()}
    else:  # Unigram: pairs of token and score
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
