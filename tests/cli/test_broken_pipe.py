"""A reader that has enough, such as `head`, is no mistake of covey's."""

from __future__ import annotations

import os
import sys

import pytest
import typer

from covey.cli.errors import explained


def test_only_when_nobody_reads_stdout_a_broken_pipe_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(typer.Exit), explained("normal"):
            raise BrokenPipeError(32, "Broken pipe")  # of a connection
        assert "Broken pipe" in capsys.readouterr().err
        os.close(reader)
        with pytest.raises(BrokenPipeError), explained("normal"):  # typer ends quietly
            raise BrokenPipeError(32, "Broken pipe")
        assert not capsys.readouterr().err
