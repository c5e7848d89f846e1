"""Files are replaced whole, and followed: the last good content stays in force."""

import stat

import pytest

from mesh.chassis import followed_file
from mesh.chassis.files import write_private, write_public
from mesh.chassis.followed_file import FollowedFile


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_its_owners_whatever_was_there_before(tmp_path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    write_private(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    write_public(path, "öffentlich")
    assert path.read_text(encoding="utf-8") == "öffentlich"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content_and_no_litter(tmp_path):
    path = tmp_path / "secret"
    path.mkdir()  # a file cannot take its place
    with pytest.raises(OSError, match="secret"):
        write_private(path, "new")
    assert list(tmp_path.iterdir()) == [path]


class Numbers:
    """A followed file that holds a number, and what became of each content."""

    def __init__(self, path):
        self.path, self.refused, self.taken = path, [], []
        self.file = FollowedFile(path, parse=int, refused=self.refused.append)

    def look(self):
        return self.file.refresh(self.taken.append)


def test_content_is_taken_once_and_refused_once(tmp_path):
    numbers = Numbers(tmp_path / "number")
    assert not numbers.look()
    assert not numbers.look()
    assert [type(error) for error in numbers.refused] == [FileNotFoundError]
    numbers.path.write_text("1")
    assert numbers.look()
    assert not numbers.look()
    numbers.path.write_text("x")
    assert not numbers.look()
    assert not numbers.look()
    assert (numbers.file.current, numbers.taken, len(numbers.refused)) == (1, [1], 2)
    numbers.path.write_text("2")
    assert numbers.look()
    assert numbers.file.current == 2


def test_what_comes_back_is_looked_at_again(tmp_path):
    numbers = Numbers(tmp_path / "number")
    for _ in range(2):
        numbers.path.write_text("1")
        assert numbers.look()
        numbers.path.unlink()
        assert not numbers.look()
        assert not numbers.look()
    assert (numbers.file.current, len(numbers.refused)) == (1, 2)


def test_whoever_takes_the_content_may_refuse_it(tmp_path):
    numbers = Numbers(tmp_path / "number")
    numbers.path.write_text("1")
    assert numbers.file.load() == 1

    def refuse(number):
        raise ValueError(f"not {number}")

    numbers.path.write_text("2")
    assert not numbers.file.refresh(refuse)
    assert (numbers.file.current, str(numbers.refused[0])) == (1, "not 2")


def test_bytes_that_are_no_text_and_too_many_of_them_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(followed_file, "BYTE_COUNT_MAX", 3)
    numbers = Numbers(tmp_path / "number")
    for content in (b"\xff", b"1234"):
        numbers.path.write_bytes(content)
        assert not numbers.look()
    assert [type(error) for error in numbers.refused] == [UnicodeDecodeError, ValueError]
    with pytest.raises(ValueError, match="number is larger than 3 bytes"):
        numbers.file.load()


def test_files_that_belong_together_are_read_together(tmp_path):
    pair = tmp_path / "a", tmp_path / "b"
    for path, text in zip(pair, "xy", strict=True):
        path.write_text(text)
    file = FollowedFile(*pair, parse=lambda a, b: a + b, refused=print)
    assert file.load() == "xy"
    pair[1].write_text("z")
    assert file.refresh()
    assert file.current == "xz"
