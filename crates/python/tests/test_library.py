"""Which library is taken: the package's own, or that of tokkata-cuda."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import tokkata
from tokkata import _tokkata

ASK = "import tokkata; from tokkata import _tokkata; print(_tokkata.__file__, len(tokkata.devices()))"


def ask(folder: Path) -> subprocess.CompletedProcess[str]:
    other = folder / "tokkata_cuda"
    other.joinpath("__init__.py").touch()
    env = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", ASK], env=env, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_other_package_s_library_is_taken(tmp_path: Path) -> None:
    other = tmp_path / "tokkata_cuda"
    other.mkdir()
    shutil.copy(str(_tokkata.__file__), other)
    said = ask(tmp_path)
    assert said.stdout.startswith(str(other)), said.stdout + said.stderr


def test_another_version_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "tokkata_cuda"
    other.mkdir()
    other.joinpath("_tokkata.py").write_text('__version__ = "0.0.1"\n')
    said = ask(tmp_path)
    assert said.returncode != 0
    assert f"tokkata is {tokkata.__version__} and tokkata-cuda 0.0.1" in said.stderr
