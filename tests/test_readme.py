"""What the README shows works as it stands."""

import re
import subprocess
import sys
from pathlib import Path

from shown_programs import output, programs

from demitasse_cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_program_runs(tmp_path):
    (program,) = programs(ROOT / "README.md")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert "(16, 1, 3, 3)" in output(program, tmp_path)
    assert (tmp_path / "out" / "digits_iter_100.demitasse").is_file()


def numberless(line):
    return re.sub(r"\d[\d.:]*", "0", line)


def test_the_demo_says_what_it_shows(tmp_path, monkeypatch, capsys):
    """Line by line, whatever the numbers are."""
    (shown,) = re.findall(r"```\n(machine  auto\n.*?)```", README, flags=re.DOTALL)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^\t\$\(BIN\)/demitasse (.*digits.*)$", makefile, flags=re.MULTILINE):
        fewer = ["--iterations", "100"] if command.startswith("train") else []
        assert main([*command.split(), *fewer]) == 0
    said = [numberless(line) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown.splitlines() if line != "..." and numberless(line) not in said] == []


def test_its_commands_exist():
    commands = set(re.findall(r"^demitasse (\w+)", README, flags=re.MULTILINE))
    commands |= {"plugins", "doctor", "convert"}
    run = subprocess.run(
        [sys.executable, "-m", "demitasse_cli", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for command in commands:
        assert re.search(rf"^ +{command} ", run.stdout, flags=re.MULTILINE), command
