"""install.sh, which `make` runs first: which Python it takes, what it refuses before any download, what it leaves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

TOOLS = ("cat", "cksum", "mkdir", "mv", "rm", "sh", "uname")


@pytest.fixture
def machine(tmp_path: Path) -> "Machine":
    return Machine(tmp_path / "a machine with a long name and spaces in it")


class Machine:
    """A folder with the project's installer, an empty lock and a PATH of its own."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.project = folder / "project"
        self.programs.mkdir(parents=True)
        self.project.mkdir()
        shutil.copy(ROOT / "install.sh", self.project)
        self.lock = self.project / "requirements.lock"
        self.lock.write_text("# nothing\n")
        for tool in TOOLS:
            (self.programs / tool).symlink_to(str(shutil.which(tool)))

    def program(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def python(self, name: str = "python3.11", minor: int | None = None, lacks: str = "") -> Path:
        """The real Python under another name; it says to be another minor version, or lacks what `lacks` names."""
        version = f'case "$2" in *version_info*) echo {minor}; exit;; esac' if minor else ""
        hole = f'case "$2" in *{lacks}*) exit 1;; esac' if lacks else ""
        return self.program(name, f'{version}\n{hole}\nexec "{os.path.realpath(sys.executable)}" "$@"')

    def python_with_pip_of(self, other: "Machine") -> None:
        """The real Python, but what `venv` makes gets the pip of `other` as it is: ensurepip is most of its time."""
        python, cp = os.path.realpath(sys.executable), shutil.which("cp")
        packages = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        self.program(
            "python3.11",
            f'[ "$1 $2" = "-m venv" ] || exec "{python}" "$@"\n'
            f'"{python}" -m venv --without-pip "$3" && {cp} -a "{other.project}/.venv/{packages}" "$3/{packages}/.."',
        )

    def install(self, *wanted: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["/bin/sh", "./install.sh", ".venv", "requirements.lock", *wanted],
            cwd=self.project, env={"PATH": str(self.programs)} | environ, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def refuses(self, *wanted: str) -> str:
        """The one line it refuses with, before anything is downloaded or written."""
        done = self.install(*wanted)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert not list(self.project.glob(".venv*"))
        return done.stderr

    @property
    def stamp(self) -> Path:
        return self.project / ".venv" / "made-from"


def test_another_system_is_named(machine: Machine) -> None:
    (machine.programs / "uname").unlink()
    machine.program("uname", "echo Darwin arm64")
    assert "this runs on Linux (x86_64 or aarch64), not on Darwin arm64" in machine.refuses()


def test_without_any_python_it_says_which_are_wanted(machine: Machine) -> None:
    machine.python("python3", minor=9)
    assert "no Python from 3.11 to 3.14 on PATH" in machine.refuses()


def test_a_shim_that_does_not_run_is_passed_over(machine: Machine) -> None:
    machine.program("python3.13", "echo pyenv: python3.13: command not found >&2; exit 127")
    machine.python("python3.11", lacks="ensurepip")
    assert "python3.11 cannot make virtual environments" in machine.refuses()


def test_a_missing_venv_module_is_named_with_its_package(machine: Machine) -> None:
    machine.python("python3.12", minor=12, lacks="ensurepip")
    line = machine.refuses()
    assert "python3.12 cannot make virtual environments" in line
    assert "apt install python3-venv, or python3.12-venv" in line


def test_an_older_python_that_is_whole_is_taken_before_a_newer_one_that_is_not(machine: Machine) -> None:
    machine.python("python3.13", minor=13, lacks="ensurepip")
    machine.python("python3.11", lacks="libgomp")
    assert "libgomp" in machine.refuses()


def test_a_missing_openmp_library_is_named_with_its_package(machine: Machine) -> None:
    machine.python(lacks="libgomp")
    assert "libgomp.so.1 is missing: install it (Debian: apt install libgomp1)" in machine.refuses()


def test_a_named_python_is_the_one_that_is_used_or_refused(machine: Machine) -> None:
    machine.python()
    old = machine.python("old", minor=10)
    assert f"PYTHON={old} is older than Python 3.11" in machine.refuses(str(old))
    assert "PYTHON=/no/python does not run" in machine.refuses("/no/python")


@pytest.fixture(scope="module")
def once_installed(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("once") / "a machine")
    machine.python()
    assert machine.install().returncode == 0
    return machine


@pytest.fixture
def installed(machine: Machine, once_installed: Machine) -> Machine:
    """A machine of one's own with an environment already made."""
    machine.python_with_pip_of(once_installed)
    shutil.copytree(once_installed.project / ".venv", machine.project / ".venv", symlinks=True)
    return machine


def test_the_environment_is_whole_when_it_is_there_and_is_made_once(once_installed: Machine) -> None:
    assert [path.name for path in once_installed.project.glob(".venv*")] == [".venv"]
    # pip's own script was written for another folder: it runs in this one.
    script = once_installed.project / ".venv" / "bin" / "pip"
    assert ".venv.new" not in script.read_text()
    assert subprocess.run([script, "--version"], check=True, capture_output=True).stdout
    made = once_installed.stamp.stat()
    again = once_installed.install()
    assert (again.returncode, again.stderr) == (0, "")
    assert once_installed.stamp.stat().st_mtime_ns == made.st_mtime_ns


def test_another_lock_makes_it_again_and_a_failure_leaves_the_old_one(installed: Machine) -> None:
    before = installed.stamp.read_text()
    installed.lock.write_text("no-such-package==1 --hash=sha256:" + "0" * 64 + "\n")
    broken = installed.install(PIP_NO_INDEX="1")
    assert broken.returncode == 1
    assert broken.stderr.splitlines()[-1] == "error: the packages could not be installed; nothing was changed"
    assert installed.stamp.read_text() == before
    assert [path.name for path in installed.project.glob(".venv*")] == [".venv"]
    installed.lock.write_text("# nothing, otherwise\n")
    assert installed.install().returncode == 0
    assert installed.stamp.read_text() != before


def test_an_environment_whose_python_is_gone_is_made_again(installed: Machine) -> None:
    python = installed.project / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/python")
    assert installed.install().returncode == 0
    assert subprocess.run([python, "-c", ""], check=False).returncode == 0


def test_somebodys_own_environment_is_used_if_it_fits_and_never_replaced(installed: Machine) -> None:
    installed.stamp.unlink()
    assert installed.install().returncode == 0
    installed.lock.write_text("django==5.2.19 \\\n    --hash=sha256:0\n")
    line = installed.install()
    assert line.returncode == 1
    assert line.stderr.startswith("error: .venv was not made by this Makefile")
    assert (installed.project / ".venv").exists()
    assert not installed.stamp.exists()
