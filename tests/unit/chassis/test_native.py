"""Libraries that are compiled once, and not at all without a compiler."""

import ctypes
from pathlib import Path

import pytest

from mesh.chassis import native_build
from mesh.chassis.native import NativeLibrary
from mesh.chassis.native_build import build_if_possible, compile_object, find_compiler

FAILS = "#!/bin/sh\necho 'any compiler 1.0'\n[ \"$1\" = --version ]\n"
SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativeLibrary:
    """A library of one source, kept in a folder of the test."""
    sources = tmp_path / "cpp"
    sources.mkdir()
    (sources / "answer.cpp").write_text(SOURCE)
    folder = tmp_path / "build"
    monkeypatch.setattr(
        NativeLibrary, "folder", lambda self: folder / f"{self.name}-{self.source_digest()}"
    )
    return NativeLibrary("answer", sources)


def build(library: NativeLibrary, compiler: str) -> Path:
    source = library.sources / "answer.cpp"
    return native_build.build(
        library, compiler, lambda into: [compile_object(compiler, source, [], into / "answer.o")]
    )


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
def test_a_library_is_compiled_once_for_its_sources(
    made: NativeLibrary, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = find_compiler()
    assert compiler is not None
    path = build(made, compiler)
    assert path == made.path()
    assert ctypes.CDLL(str(path)).answer() == 42
    assert "compiling libanswer.so" in capsys.readouterr().out
    assert build(made, compiler) == path
    assert not capsys.readouterr().out
    (made.sources / "answer.cpp").write_text(SOURCE.replace("42", "43"))
    assert made.path() != path
    assert not made.path().exists()


def test_without_a_compiler_it_is_said_and_no_error(
    made: NativeLibrary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native_build, "find_compiler", lambda: None)
    assert build_if_possible(lambda compiler: build(made, compiler), "something slower") == 0
    assert "something slower will be used" in capsys.readouterr().out
    assert not made.path().exists()


def test_a_failing_compiler_is_said_and_stops_nothing(
    made: NativeLibrary,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    compiler = tmp_path / "failing"
    compiler.write_text(FAILS)
    compiler.chmod(0o755)
    monkeypatch.setattr(native_build, "find_compiler", lambda: str(compiler))
    assert build_if_possible(lambda path: build(made, path), "something slower") == 0
    assert "failed with status 1" in capsys.readouterr().out
    assert not made.path().exists()


def test_the_compiler_named_by_cxx_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")  # any program that exists
    assert find_compiler() == "sh"
    monkeypatch.setenv("PATH", "")
    assert find_compiler() is None
