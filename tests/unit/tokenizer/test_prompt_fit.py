"""What is dropped when a conversation does not fit, and what is counted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as token_models

from tests.unit.tokenizer import conftest as models
from tokenizer_svc.chat_template import TemplateError
from tokenizer_svc.context import affordable_turn_count, kept_indexes, smallest_drop, turns_of
from tokenizer_svc.model_folder import read_folder
from tokenizer_svc.prompt import BadTokenError, ChatTokenizer, ContextLengthError

ROLES = st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), min_size=1, max_size=12)


def say(role: str, words: int, tag: str = "") -> dict[str, str]:
    return {"role": role, "content": f"{tag} " + "hello there " * words}


@settings(deadline=None)
@given(ROLES)
def test_turns_start_at_user_messages_and_leave_out_system_ones(roles: list[str]) -> None:
    turns = turns_of(roles)
    indexes = [index for turn in turns for index in turn]
    assert indexes == [i for i, role in enumerate(roles) if role != "system"]
    assert all("user" not in [roles[i] for i in turn[1:]] for turn in turns)
    assert all(roles[turn[0]] == "user" for turn in turns[1:])


@settings(deadline=None)
@given(st.lists(st.integers(0, 20)), st.integers(-5, 60))
def test_affordable_turns_are_the_longest_run_that_fits(costs: list[int], room: int) -> None:
    count = affordable_turn_count(costs, room)
    assert sum(costs[:count]) <= room or count == 0
    assert count == len(costs) or sum(costs[: count + 1]) > room


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 40), st.data())
def test_smallest_drop_is_found_from_any_guess(
    drop_max: int, answer: int, data: st.DataObject
) -> None:
    asked: list[int] = []

    def fits(dropped: int) -> bool:
        asked.append(dropped)
        return dropped >= answer

    guess = data.draw(st.integers(0, drop_max))
    assert smallest_drop(fits, guess, drop_max) == (answer if answer <= drop_max else None)
    assert all(0 <= dropped <= drop_max for dropped in asked)
    if guess == answer:
        assert len(asked) <= 2


@settings(max_examples=60, deadline=None)
@given(
    roles=ROLES.filter(lambda roles: "user" in roles),
    words=st.lists(st.integers(0, 60), min_size=12, max_size=12),
    max_tokens=st.integers(0, 600),
)
def test_fit_keeps_system_and_the_newest_turns_that_fit(
    chat: ChatTokenizer, roles: list[str], words: list[int], max_tokens: int
) -> None:
    messages = [say(role, words[i], str(i)) for i, role in enumerate(roles)]
    turns = turns_of(roles)
    room = models.CONTEXT - max(1, max_tokens)
    wanted = None
    for dropped in range(max(1, len(turns))):
        kept = kept_indexes(len(messages), turns, dropped)
        token_ids = chat.prompt([messages[i] for i in kept]).token_ids
        if len(token_ids) <= room:
            wanted = (dropped, token_ids)
            break
    if wanted is None:
        with pytest.raises(ContextLengthError) as caught:
            chat.fit(messages, max_tokens)
        assert caught.value.limit == models.CONTEXT
        assert caught.value.count == len(token_ids) + max(1, max_tokens)
        return
    prompt = chat.fit(messages, max_tokens)
    assert prompt.token_ids == wanted[1]
    assert prompt.dropped_message_count == sum(map(len, turns[: wanted[0]]))
    assert len(prompt.message_token_counts) == len(messages) - prompt.dropped_message_count


def test_forbidden_truncation_refuses_and_counts_everything(chat: ChatTokenizer) -> None:
    messages = [say("user", 150, "a"), say("assistant", 150, "b"), say("user", 1, "c")]
    assert chat.fit(messages, 10).dropped_message_count == 2
    with pytest.raises(ContextLengthError) as caught:
        chat.fit(messages, 10, forbid_truncation=True)
    assert caught.value.prompt_count == len(chat.prompt(messages).token_ids)


def test_the_newest_turn_is_never_dropped(chat: ChatTokenizer) -> None:
    with pytest.raises(ContextLengthError):
        chat.fit([say("user", 1), say("assistant", 1), say("user", 1000)], 1)
    with pytest.raises(ContextLengthError):
        chat.fit([say("system", 1000), say("user", 1)], 1)


def test_counts_are_those_of_the_message_alone_wherever_it_stands(chat: ChatTokenizer) -> None:
    messages = [say("system", 2), say("user", 3), say("assistant", 4), say("user", 5)]
    prompt = chat.prompt(messages)
    alone = [chat.prompt([message]).message_token_counts[0] for message in messages]
    assert prompt.message_token_counts == alone
    generation_prompt = len(prompt.token_ids) - sum(alone)
    assert generation_prompt == len(chat.prompt(messages[:1]).token_ids) - alone[0] > 0


@pytest.mark.parametrize("name", ["fancy", "split_out", "plain"])
def test_counts_cover_each_message_in_every_kind_of_template(
    tmp_path: Path, tokenizer_object: Tokenizer, name: str
) -> None:
    folder = models.write_model(tmp_path / name, tokenizer_object, models.TEMPLATES[name])
    chat = ChatTokenizer(read_folder(folder), 1 << 16)
    messages = [say("system", 10), say("user", 20), say("assistant", 30), say("user", 5)]
    counts = chat.prompt(messages).message_token_counts
    for message, count in zip(messages, counts, strict=True):
        assert 0 <= count - chat.count([message["content"]])[0] <= 25
    fitted = chat.fit([*messages, say("assistant", 40), say("user", 40)], 100)
    assert fitted.dropped_message_count == 2


def test_a_template_that_refuses(tmp_path: Path, tokenizer_object: Tokenizer) -> None:
    folder = models.write_model(tmp_path / "m", tokenizer_object, models.SPLIT_OUT)
    chat = ChatTokenizer(read_folder(folder), 1 << 16)
    with pytest.raises(TemplateError, match="Roles must alternate"):
        chat.prompt([{"role": "assistant", "content": "x"}])


def test_the_sandbox_keeps_templates_from_python(
    tmp_path: Path, tokenizer_object: Tokenizer
) -> None:
    evil = "{% for m in messages %}{{ ''.__class__.__mro__[1].__subclasses__() }}{% endfor %}"
    folder = models.write_model(tmp_path / "m", tokenizer_object, evil)
    chat = ChatTokenizer(read_folder(folder), 1 << 16)
    with pytest.raises(TemplateError):
        chat.prompt([{"role": "user", "content": "x"}])


def test_a_tokenizer_that_is_not_byte_level_is_encoded_whole(tmp_path: Path) -> None:
    bare = Tokenizer(token_models.BPE(unk_token="<unk>"))
    bare.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    bare.decoder = decoders.Metaspace(prepend_scheme="first")
    special = ["<unk>", *models.SPECIAL]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    bare.train_from_iterator(models.CORPUS, trainer)
    chat = ChatTokenizer(
        read_folder(models.write_model(tmp_path / "m", bare, models.CHATML)), 1 << 16
    )
    messages = [say("user", 3), say("assistant", 2), say("user", 1)]
    text = (
        "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        + "<|im_start|>assistant\n"
    )
    assert chat.prompt(messages).token_ids == bare.encode(text, add_special_tokens=False).ids


def test_decode_is_the_inverse_and_refuses_unknown_ids(chat: ChatTokenizer) -> None:
    text = "Grüße 🙂\n東京\x00 end"
    token_ids = chat.prompt([{"role": "user", "content": text}]).token_ids
    assert text in chat.decode(token_ids, skip_special_tokens=True)
    assert "<|im_start|>" in chat.decode(token_ids, skip_special_tokens=False)
    assert "<|im_start|>" not in chat.decode(token_ids, skip_special_tokens=True)
    with pytest.raises(BadTokenError) as caught:
        chat.decode([1, chat.vocabulary_size, 10**9], skip_special_tokens=False)
    assert caught.value.token_id == chat.vocabulary_size


def test_broken_utf8_becomes_the_replacement_character(
    chat: ChatTokenizer, tokenizer_object: Tokenizer
) -> None:
    first_byte = tokenizer_object.token_to_id("ð")  # 0xF0, the start of an emoji
    assert chat.decode([first_byte], skip_special_tokens=True) == "�"
    assert chat.decode([], skip_special_tokens=True) == ""


def test_counts_of_texts(chat: ChatTokenizer, tokenizer_object: Tokenizer) -> None:
    texts = ["", "hello there", "<|im_end|>"]
    counts = chat.count(texts)
    assert counts[0] == 0
    assert counts[1] == len(tokenizer_object.encode("hello there").ids)
    assert counts[2] > 1  # text, not one control token


def test_what_is_dropped_is_not_encoded(model_folder: Path) -> None:
    chat = ChatTokenizer(read_folder(model_folder), 1 << 20)
    messages = [say("user" if i % 2 == 0 else "assistant", 9, str(i)) for i in range(1001)]
    prompt = chat.fit(messages, 1)
    assert prompt.dropped_message_count > 900
    encoded = chat._cache.byte_count
    assert encoded < 50 * 1000  # some fifteen messages, of a thousand
    assert chat.fit(messages, 1) == prompt
    assert chat._cache.byte_count == encoded


def test_threads_share_a_tokenizer(chat: ChatTokenizer) -> None:
    conversations = [[say("user", n % 7, "<|im_end|>"), say("user", n % 5)] for n in range(40)]
    alone = [chat.prompt(messages) for messages in conversations]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(chat.prompt, conversations)) == alone
