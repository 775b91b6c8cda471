"""Functions stay short: at most 60 lines and 8 parameters, but for commands, whose parameters are options."""

import ast

from property_tests.support.layers import modules

MOST_LINES, MOST_PARAMETERS = 60, 8
ALLOWED = {
    "mirage_eg.api.superoptimize",  # the parameters of mirage-project/mirage
    "mirage_eg.frontend.custom_op.register_op",  # the parts of an op, by name
    "mirage_eg.frontend.onnx_resize._resize",
    "mirage_eg.frontend.onnx_windows._conv",  # the operands and attributes of an operator
    "mirage_eg.frontend.onnx_windows._conv_transpose",
}


def too_large(module: str, source: str) -> list[str]:
    found = []
    for item in ast.walk(ast.parse(source)):
        if isinstance(item, ast.FunctionDef):
            arguments = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]
            parameters = sum(argument.arg not in ("self", "cls") for argument in arguments)
            lines = (item.end_lineno or item.lineno) - item.lineno + 1
            if lines > MOST_LINES or parameters > MOST_PARAMETERS:
                found.append(f"{module}.{item.name}: {lines} lines, {parameters} parameters")
    return found


def test_functions_have_at_most_60_lines_and_8_parameters() -> None:
    found = [line for name, path in modules().items() for line in too_large(name, path.read_text(encoding="utf-8"))]
    assert not [line for line in found if ".cli." not in line and line.split(":")[0] not in ALLOWED]


def test_a_function_of_nine_parameters_is_found() -> None:
    assert too_large("m", "def f(a, b, c, d, e, f, g, h, i): pass") == ["m.f: 1 lines, 9 parameters"]
    assert not too_large("m", "def f(self, a, b, c, d, e, f, g, h): pass")
