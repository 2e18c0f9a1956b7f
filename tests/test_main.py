"""The command line: each command reaches its module, an unknown one says which there are."""

import importlib

import pytest

from g2c_serving.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_main(command):
    assert callable(importlib.import_module(COMMANDS[command][0]).main)


def test_an_unknown_command_lists_the_known_ones(capsys):
    assert main(["serve"]) == 2
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)


def test_help_is_no_error():
    assert main(["--help"]) == 0
