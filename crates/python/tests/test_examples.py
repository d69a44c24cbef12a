"""Every example runs, and the lines of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]


def run(name: str, *args: str, text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / "examples" / name), *args], input=text, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat(path: str) -> None:
    assert len(run("chat.py", path, text="Hello\nWhat can you do?\n").splitlines()) >= 2


def test_structured(path: str) -> None:
    pytest.importorskip("pydantic")
    assert run("structured.py", path, "Anna is 7 years old.").startswith("name=")


def test_search(path: str, words_path: str, tmp_path: Path) -> None:
    for name, text in (("cat.txt", "the cat sat on the mat"), ("dog.txt", "the dog ran")):
        (tmp_path / name).write_text(text)
    said = run("search.py", words_path, words_path, "who sat?", *map(str, sorted(tmp_path.iterdir())))
    assert sorted(line.split("/")[-1] for line in said.splitlines()) == ["cat.txt", "dog.txt"]


def test_score(path: str) -> None:
    said = run("score.py", path, text="Once upon a time there was a cat.\nxq zzkj wvv qqq\n").splitlines()
    assert float(said[0].split()[0]) > float(said[1].split()[0])


def test_benchmark(path: str) -> None:
    said = run("benchmark.py", path, "2", "8")
    assert len(re.findall(r"first token [0-9.]+ ms, [0-9.]+ tokens/s", said)) == 5


def test_the_readmes_lines(path: str, tmp_path: Path) -> None:
    os.symlink(path, tmp_path / "model.gguf")
    lines = (HERE / "README.md").read_text().split("```python\n")[1].split("```")[0]
    said = subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert said.returncode == 0 and len(said.stdout) > 20, said.stderr
