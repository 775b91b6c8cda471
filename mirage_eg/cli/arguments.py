"""Arguments that several commands have, and options that are the fields of a record (`pipeline.run.option_fields`)."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce, wraps
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_origin

import typer

from mirage_eg.cli.terminal import Job
from mirage_eg.frontend.load import BUILT_IN, ModelPart, load_parts, load_program, load_with_weights
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.option_fields import OptionField, option_fields
from mirage_eg.pipeline.run.output_files import check_writable

_PROGRAM_HELP = (
    "A workload, a graph in JSON, a Python file that defines program(), or a .onnx or .pt2 model. "
    f"A Python or .pt2 file may run any code: trust it. Workloads: {', '.join(BUILT_IN)}."
)
ProgramArgument = Annotated[str, typer.Argument(metavar="PROGRAM", help=_PROGRAM_HELP, show_default=False)]
ProgramsArgument = Annotated[list[str] | None, typer.Argument(metavar="PROGRAM…", help=_PROGRAM_HELP, show_default=False)]
GraphArgument = Annotated[Path, typer.Argument(metavar="GRAPH.json", help="A kernel graph in JSON.", show_default=False)]

RESULTS = Path("mirage_out")
OutOption = Annotated[
    Path, typer.Option(metavar="DIR|FILE.onnx", help=f"Folder for results; or a file for the result in ONNX, and {RESULTS}/.")
]

Command = Callable[..., Job]


def load(argument: str, batch: int) -> tuple[str, Graph]:
    """The program; what a Python file prints goes to stderr, so that stdout holds our result alone."""
    with contextlib.redirect_stdout(sys.stderr):
        return load_program(argument, batch)


def load_model(argument: str, batch: int) -> tuple[str, Graph, Mapping[str, Any]]:
    """`load`, and the arrays of weights and constants of a model."""
    with contextlib.redirect_stdout(sys.stderr):
        return load_with_weights(argument, batch)


def load_model_parts(argument: str, batch: int) -> tuple[str, tuple[ModelPart, ...]]:
    """The programs of a model, with their weights and constants; of any other program itself."""
    with contextlib.redirect_stdout(sys.stderr):
        return load_parts(argument, batch)


def results_folder(out: Path) -> tuple[Path, Path | None]:
    """The folder for results and the ONNX file that --out asks for; before the work.

    Raises OptionError: onnx is not installed, or no file can be written there.
    """
    if out.suffix != ".onnx":
        return out, None
    if out.is_dir():
        raise OptionError(f"--out: got the folder {str(out)!r}, wanted a file, or a folder with another name")
    if find_spec("onnx") is None:
        raise OptionError(f"--out: got {str(out)!r}, but onnx is not installed; try: pip install 'mirage-eg[onnx]'")
    check_writable(out.parent)
    return RESULTS, out


def load_programs(arguments: Sequence[str] | None, default: Sequence[str], batch: int = 1) -> dict[str, Graph]:
    """The programs by name, in the order given; `default`: the workloads where none is given."""
    programs: dict[str, Graph] = {}
    for argument in dict.fromkeys(arguments or default):
        name, program = load(argument, batch)
        if name in programs:
            raise OptionError(f"PROGRAM: got two programs named {name}, wanted different names; rename one of the files")
        programs[name] = program
    return programs


def with_options(record: type[Any], *names: str) -> Callable[[Command], Command]:
    """Give a command the options of a record's fields in place of its parameter `options`, which gets the record.

    `names`: these fields alone.
    """
    chosen = [field for field in option_fields(record) if not names or field.name in names]

    def decorate(command: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            parameters += map(_parameter, chosen) if parameter.name == "options" else [parameter]

        @wraps(command)
        def run(**values: Any) -> Job:
            return command(options=record(**{field.name: _value(field, values.pop(field.name)) for field in chosen}), **values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameter(field: OptionField) -> inspect.Parameter:
    kind, default, option = _type(field), field.default, field.option
    switch = (option.flag,) if option.flag else (f"--{field.name.replace('_', '-')}",) if kind is bool else ()
    if option.flag:
        default = not default
    elif get_origin(field.types[0]) is tuple:
        default = None
    annotation = Annotated[kind, typer.Option(*switch, help=option.help, metavar=option.metavar)]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _type(field: OptionField) -> Any:
    """The type of the option on the command line, which has texts for objects and lists for tuples."""
    if get_origin(field.types[0]) is tuple:
        return list[str] | None
    return reduce(or_, (kind for kind in field.types if kind in (bool, int, float, str, NoneType)))


def _value(field: OptionField, given: Any) -> Any:
    """The value of the field for what was given."""
    if field.option.flag:
        return not given
    return tuple(given or ()) if get_origin(field.types[0]) is tuple else given
