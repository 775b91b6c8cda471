"""An option is stated once, as a field: the command line has it, and gives the record its value."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mirage_eg.cli.arguments import with_options
from mirage_eg.cli.main import app
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.option_fields import Option, check_fields, option_fields
from mirage_eg.pipeline.run.options import Options

PYTHON_ALONE = {"griddims", "blockdims", "imaps", "omaps", "fmaps", "franges"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A record with every kind of option."""

    count: Annotated[int, Option("Count.", least=1)] = 3
    most: Annotated[int | None, Option("Most.", least=0)] = None
    seconds: Annotated[float, Option("Seconds.", least=0, above=True)] = 1.5
    kind: Annotated[str, Option("Kind.", choices=("a", "b"))] = "a"
    paths: Annotated[tuple[str, ...], Option("Paths.")] = ()
    fast: Annotated[bool, Option("Fast.")] = False
    keep: Annotated[bool, Option("Keep nothing.", flag="--no-keep")] = True
    hidden: int = 7

    def __post_init__(self) -> None:
        check_fields(self)


def parsed(*arguments: str) -> Any:
    """The record that a command gets for these arguments."""
    command = typer.Typer()
    given: list[Any] = []

    @command.command()
    @with_options(Sample)
    def _run(options: Sample, after: str = "x") -> None:  # type: ignore[misc]
        given.append(options)

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return given[0]


def test_every_annotated_field_of_options_is_an_option_of_optimize_in_order() -> None:
    command = typer.main.get_command(app).commands["optimize"]  # type: ignore[attr-defined]
    names = [field.name for field in option_fields(Options)]
    assert [it.name for it in command.params if it.name in names] == names
    assert {field.name for field in fields(Options)} == {*names, *PYTHON_ALONE}


def test_without_arguments_the_defaults_of_the_record_count() -> None:
    assert parsed() == Sample()


@given(
    count=st.integers(1, 99),
    most=st.none() | st.integers(0, 99),
    kind=st.sampled_from("ab"),
    paths=st.lists(st.sampled_from(["p", "q"]), max_size=3),
    fast=st.booleans(),
    keep=st.booleans(),
)
def test_what_is_given_is_what_the_record_has(
    count: int, most: int | None, kind: str, paths: list[str], fast: bool, keep: bool
) -> None:
    arguments = [
        "--count",
        str(count),
        "--kind",
        kind,
        "--seconds",
        "2",
        *(word for path in paths for word in ("--paths", path)),
    ]
    arguments += [] if most is None else ["--most", str(most)]
    arguments += ["--fast"] * fast + ["--no-keep"] * (not keep)
    wanted = Sample(count=count, most=most, kind=kind, seconds=2.0, paths=tuple(paths), fast=fast, keep=keep)
    assert parsed(*arguments) == wanted


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "count: got 0, wanted an int of at least 1"),
        ({"count": True}, "count: got True, wanted an int of at least 1"),
        ({"count": None}, "count: got None, wanted an int"),
        ({"most": -1}, "most: got -1, wanted an int of at least 0"),
        ({"seconds": 0}, "seconds: got 0, wanted a number above 0"),
        ({"seconds": float("inf")}, "seconds: got inf, wanted a number above 0"),
        ({"seconds": 1e308}, r"seconds: got 1e\+308, wanted a number above 0, and at most 1,000,000,000"),
        ({"seconds": True}, "seconds: got True, wanted a number above 0"),
        ({"kind": "c"}, "kind: got 'c', wanted one of a, b"),
        ({"fast": 1}, "fast: got 1, wanted True or False"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Sample(**values)
