"""The op table of the emitter: each elementwise op in Triton and in PyTorch.

Its keys are exactly the elementwise rows of `ir.ops.OPS`; a property test holds them equal. Operands are
names, calls or subscripts, so that no operand needs parentheses. Nothing here is trusted: emitted kernels are checked against
float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from mirage_eg.backends.triton.library_calls import library_call
from mirage_eg.ir.custom_ops import OPERANDS, REGISTRY, OpSpec, OpTable
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node
from mirage_eg.ir.sizes import Ratio
from mirage_eg.ir.wide_factors import within_range

Attributes = Mapping[str, Any]
Write = Callable[[Sequence[str], Attributes], str]


@dataclass(frozen=True, slots=True)
class ElementwiseRow:
    """One op as source text, and its effect on the padding of a tile.

    `keeps_zero`: zero in gives zero out (of binary ops: zero in all operands). `bounded`: finite in gives finite out, overflow
    aside. `helper` names the functions that the Triton expression calls (`helper_source`); `noun` names the
    result in emitted kernels.
    """

    noun: str
    triton: Write
    torch: Write
    keeps_zero: Callable[[Attributes], bool]
    bounded: bool
    helper: str = ""

    @property
    def is_written_out(self) -> bool:
        """Whether the op has no Triton expression, and its definition takes its place."""
        return self.triton is _written_out


def number(value: Fraction | int) -> str:
    """An exact constant as a Python literal of type float; an int or an expression of sizes as it is."""
    if isinstance(value, Ratio):
        return value.text
    return repr(value) if isinstance(value, int) else repr(float(value))


def torch_attributes(item: Node, dtype: DType) -> Attributes:
    """The attributes of a node for `torch_call`: ints among integers, whose type torch would change for a float."""
    if not dtype.is_integer:
        return item.mapping
    return {key: int(value) if isinstance(value, Fraction) else value for key, value in item.attributes}


def _always(attributes: Attributes) -> bool:
    return True


def _never(attributes: Attributes) -> bool:
    return False


def _infix(sign: str) -> Write:
    return lambda x, attributes: f"{x[0]} {sign} {x[1]}"


def _compared(sign: str) -> Write:
    return lambda x, attributes: f"tl.where({x[0]} {sign} {x[1]}, 1.0, 0.0)"


def _torch_compared(sign: str) -> Write:
    return lambda x, attributes: f"({x[0]} {sign} {x[1]}).to({x[0]}.dtype)"


def triton_type(dtype: DType) -> str:
    """The name of an element type in Triton."""
    return "tl.int1" if dtype is DType.bool else f"tl.{dtype}"


def _function(name: str) -> Write:
    return lambda x, attributes: f"{name}({x[0]}, {x[1]})"


def _call(pattern: str) -> Write:
    return lambda x, attributes: pattern.format(
        **dict(zip(OPERANDS, x, strict=False)), **{name: number(value) for name, value in attributes.items()}
    )


def _scaled(x: Sequence[str], attributes: Attributes) -> str:
    factor = attributes["factor"]
    factors = [number(factor)] if isinstance(factor, int | Ratio) else map(repr, within_range(factor))
    return " * ".join([x[0], *factors])


NAN_MAX = "nan_max"  # the helper by which maxima are taken, reductions too
_LARGEST_PRODUCT = 8  # powers up to this exponent are written as products


def _triton_pow(x: Sequence[str], attributes: Attributes) -> str:
    exponent: Fraction = attributes["exponent"]
    size = abs(exponent)
    if exponent == 0:
        return f"tl.full({x[0]}.shape, 1.0, {x[0]}.dtype)"  # of not-a-number, too
    if size == Fraction(1, 2):
        return f"tl.sqrt({x[0]})" if exponent > 0 else f"tl.rsqrt({x[0]})"
    if size.denominator == 1 and size <= _LARGEST_PRODUCT:
        product = " * ".join([x[0]] * int(size))
        return product if exponent > 0 else f"1.0 / ({product})"
    magnitude = f"tl.exp2({number(exponent)} * tl.log2({{}}))"
    if size.denominator > 1:
        return magnitude.format(x[0])  # NaN for a negative base
    magnitude = magnitude.format(f"tl.abs({x[0]})")
    return f"tl.where({x[0]} < 0, -1.0, 1.0) * {magnitude}" if size % 2 else magnitude


_PACKAGED: Mapping[str, ElementwiseRow] = {
    "add": ElementwiseRow("total", _infix("+"), _infix("+"), _always, True),
    "sub": ElementwiseRow("difference", _infix("-"), _infix("-"), _always, True),
    "mul": ElementwiseRow("scaled", _infix("*"), _infix("*"), _always, True),
    "div": ElementwiseRow("quotient", _infix("/"), _infix("/"), _never, False),
    "maximum": ElementwiseRow("larger", _function(NAN_MAX), _function("torch.maximum"), _always, True, helper=NAN_MAX),
    "minimum": ElementwiseRow("smaller", _function("nan_min"), _function("torch.minimum"), _always, True, helper="nan_min"),
    "abs": ElementwiseRow("magnitude", _call("tl.abs({x})"), _call("torch.abs({x})"), _always, True),
    "less": ElementwiseRow("less", _compared("<"), _torch_compared("<"), _never, True),
    "less_equal": ElementwiseRow("less_equal", _compared("<="), _torch_compared("<="), _never, True),
    "equal": ElementwiseRow("equal", _compared("=="), _torch_compared("=="), _never, True),
    "where": ElementwiseRow(
        "chosen",
        lambda x, attributes: f"tl.where({x[0]} != 0, {x[1]}, {x[2]})",
        lambda x, attributes: f"torch.where({x[0]} != 0, {x[1]}, {x[2]})",
        _always,
        True,
    ),
    "cast": ElementwiseRow(
        "cast",
        lambda x, attributes: f"{x[0]}.to({triton_type(DType(attributes['dtype']))})",
        lambda x, attributes: f"{x[0]}.to(torch.{attributes['dtype']}, copy=True)",
        _always,
        False,  # a large number overflows float16
    ),
    "exp": ElementwiseRow("exponential", _call("tl.exp({x})"), _call("torch.exp({x})"), _never, False),
    "log": ElementwiseRow("logarithm", _call("tl.log({x})"), _call("torch.log({x})"), _never, False),
    "log2": ElementwiseRow("logarithm", _call("tl.log2({x})"), _call("torch.log2({x})"), _never, False),
    "log10": ElementwiseRow("logarithm", _call("tl.log2({x}) * 0.30102999566398120"), _call("torch.log10({x})"), _never, False),
    "log1p": ElementwiseRow("logarithm", _call("log1p({x})"), _call("torch.log1p({x})"), _always, False, helper="log1p"),
    "expm1": ElementwiseRow("exponential", _call("expm1({x})"), _call("torch.expm1({x})"), _always, False, helper="expm1"),
    "square": ElementwiseRow("square", _call("{x} * {x}"), _call("torch.square({x})"), _always, True),
    "sqrt": ElementwiseRow("root", _call("tl.sqrt({x})"), _call("torch.sqrt({x})"), _always, False),
    "rsqrt": ElementwiseRow("inverse_root", _call("tl.rsqrt({x})"), _call("torch.rsqrt({x})"), _never, False),
    "silu": ElementwiseRow("silu", _call("{x} * tl.sigmoid({x})"), _call("torch.nn.functional.silu({x})"), _always, True),
    "sigmoid": ElementwiseRow("sigmoid", _call("tl.sigmoid({x})"), _call("torch.sigmoid({x})"), _never, True),
    "gelu": ElementwiseRow(
        "gelu",
        _call("0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))"),
        _call("torch.nn.functional.gelu({x})"),
        _always,
        True,
    ),
    "relu": ElementwiseRow("relu", _call("nan_max({x}, 0.0)"), _call("torch.relu({x})"), _always, True, helper=NAN_MAX),
    "tanh": ElementwiseRow("tanh", _call("tanh({x})"), _call("torch.tanh({x})"), _always, True, helper="tanh"),
    "gelu_tanh": ElementwiseRow(
        "gelu",
        _call("{x} * tl.sigmoid({x} * (1.5957691216057308 + 0.07135481282668386 * {x} * {x}))"),
        _call('torch.nn.functional.gelu({x}, approximate="tanh")'),
        _always,
        True,
    ),
    "erf": ElementwiseRow("error_function", _call("tl.erf({x})"), _call("torch.erf({x})"), _always, True),
    "sin": ElementwiseRow("sine", _call("tl.sin({x})"), _call("torch.sin({x})"), _always, False),
    "cos": ElementwiseRow("cosine", _call("tl.cos({x})"), _call("torch.cos({x})"), _never, False),
    "softplus": ElementwiseRow(
        "softplus",
        _call("tl.maximum({x}, 0.0) + log1p(tl.exp(-tl.abs({x})))"),
        _call("torch.nn.functional.softplus({x})"),
        _never,
        True,
        helper="log1p",
    ),
    "mish": ElementwiseRow("mish", _call("mish({x})"), _call("torch.nn.functional.mish({x})"), _always, True, helper="mish"),
    "leaky_relu": ElementwiseRow(
        "leaky_relu",
        _call("tl.where({x} > 0, {x}, {slope} * {x})"),
        _call("torch.nn.functional.leaky_relu({x}, {slope})"),
        _always,
        True,
    ),
    "elu": ElementwiseRow(
        "elu",
        _call("tl.where({x} > 0, {x}, {alpha} * expm1({x}))"),
        _call("torch.nn.functional.elu({x}, {alpha})"),
        _always,
        True,
        helper="expm1",
    ),
    "pow": ElementwiseRow(
        "power", _triton_pow, _call("torch.pow({x}, {exponent})"), lambda attributes: bool(attributes["exponent"] > 0), False
    ),
    "clamp": ElementwiseRow(
        "clamped",
        _call("nan_clamp({x}, {low}, {high})"),
        _call("torch.clamp({x}, {low}, {high})"),
        lambda attributes: bool(attributes["low"] <= 0 <= attributes["high"]),
        True,
        helper="nan_clamp",
    ),
    "scale": ElementwiseRow("scaled", _scaled, _scaled, _always, True),
    "shift": ElementwiseRow(
        "shifted", _call("{x} + {offset}"), _call("{x} + {offset}"), lambda attributes: bool(attributes["offset"] == 0), True
    ),
    "fill": ElementwiseRow(
        "constant",
        _call("tl.full({x}.shape, {value}, {x}.dtype)"),
        _call("torch.full_like({x}, {value})"),
        lambda attributes: bool(attributes["value"] == 0),
        True,
    ),
}


def _custom(spec: OpSpec) -> ElementwiseRow:
    """An op without a Triton expression is written out before kernels are emitted; its torch expression is nested calls."""
    name, keeps_zero = spec.name, _always if spec.keeps_zero else _never
    if spec.definition is not None:
        keeps_zero = partial(_keeps_zero, name, spec.arity)
    torch = partial(_torch_by_definition, name) if spec.torch is None else _call(spec.torch)
    triton = _written_out if spec.triton is None else _call(spec.triton)
    return ElementwiseRow(name, triton, torch, keeps_zero, False, helper=f"{_CUSTOM}{name}" if spec.helpers else "")


def _keeps_zero(name: str, arity: int, attributes: Attributes) -> bool:
    import mpmath  # here: a result from the cache is printed without it

    from mirage_eg.backends.evaluator import mpmath_ops

    try:
        return bool(mpmath_ops.ELEMENTWISE[name](*[mpmath.mpf(0)] * arity, **attributes) == 0)
    except ZeroDivisionError:
        return False


def _written_out(x: Sequence[str], attributes: Attributes) -> str:
    raise AssertionError("an op without a Triton expression is replaced by its definition before kernels are emitted")


def _torch_by_definition(name: str, x: Sequence[str], attributes: Attributes) -> str:
    definition = definition_of(name, attributes)
    assert definition is not None
    return by_definition(definition, x, lambda op, *parts, **given: f"({ELEMENTWISE[op].torch(parts, given)})")


ELEMENTWISE = OpTable(_PACKAGED, _custom)

PACKAGED_HELPERS = {
    # One instruction each from sm_80 on; Triton's own max and min give the other operand.
    NAN_MAX: '''@triton.jit
def nan_max(x, y):
    """The larger, not-a-number if one is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
    "nan_min": '''@triton.jit
def nan_min(x, y):
    """The smaller, not-a-number if one is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
    "nan_clamp": '''@triton.jit
def nan_clamp(x, low, high):
    """x within the bounds, not-a-number if it is."""
    return tl.minimum(tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL), high, propagate_nan=tl.PropagateNan.ALL)
''',
    # Triton has no tanh on some targets. Near zero the quotient cancels, so a series replaces it.
    "tanh": '''@triton.jit
def tanh(x):
    """Hyperbolic tangent, to float32 precision over the whole line."""
    decay = tl.exp(-2.0 * tl.abs(x))
    far = tl.where(x < 0, -1.0, 1.0) * (1.0 - decay) / (1.0 + decay)
    y = x * x
    near = x * (1.0 + y * (-1.0 / 3.0 + y * (2.0 / 15.0 + y * (-17.0 / 315.0 + y * (62.0 / 2835.0)))))
    return tl.where(tl.abs(x) < 0.25, near, far)
''',
    # The logarithm of 1 + x and the exponential minus 1 cancel near zero: u = 1 + x or exp(x) is rounded, and the factor, whose
    # numerator and denominator are of the same u, makes up for it (Kahan; Higham, Accuracy and Stability, 1.14.1).
    "log1p": '''@triton.jit
def log1p(x):
    """log(1 + x)."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * tl.where(tl.abs(x) < 1.0, x / (u - 1.0), 1.0))
''',
    "expm1": '''@triton.jit
def expm1(x):
    """exp(x) − 1."""
    u = tl.exp(x)
    return tl.where(u == 1.0, x, (u - 1.0) * tl.where(tl.abs(x) < 1.0, x / tl.log(u), 1.0))
''',
    # n is below 1 on both sides, so that nothing overflows.
    "mish": '''@triton.jit
def mish(x):
    """x · tanh(log(1 + exp(x)))."""
    n = tl.exp(-tl.abs(x))
    positive = (1.0 + 2.0 * n) / (1.0 + 2.0 * n + 2.0 * n * n)
    negative = (n * n + 2.0 * n) / (n * n + 2.0 * n + 2.0)
    return x * tl.where(x > 0, positive, negative)
''',
}

_CUSTOM = "register_op "  # before the name of an op: the key of its helpers


def helper_source(key: str) -> str:
    """The functions that a row's `helper` names."""
    if key in PACKAGED_HELPERS:
        return PACKAGED_HELPERS[key]
    return "\n\n".join(f"{source}\n" for _, source in REGISTRY[key.removeprefix(_CUSTOM)].helpers)


def helper_names() -> frozenset[str]:
    """The names of all functions that Triton expressions may call."""
    return frozenset(PACKAGED_HELPERS).union(name for spec in REGISTRY.values() for name, _ in spec.helpers)


_NOUNS = {name: row.noun for name, row in _PACKAGED.items()} | {
    "matmul": "product",
    "sum": "sum",
    "mean": "mean",
    "max": "peak",
    "reshape": "view",
    "transpose": "transposed",
    "concat": "joined",
    "slice": "part",
    "broadcast": "wide",
    "repeat": "repeated",
    "accum_sum": "acc",
    "accum_mean": "acc_mean",
    "accum_max": "acc_max",
    "accum_strided_sum": "acc_columns",
    "gather": "rows",
    "take_along_dim": "picked",
    "index_write": "written",
    "scatter": "written",
    "patch": "patched",
    "cumsum": "running_sum",
    "argsort": "order",
    "iota": "places",
    "full": "constant",
    "eye": "identity",
    "pad": "padded",
    "flip": "reversed",
    "conv2d": "images",
    "max_pool2d": "largest",
    "avg_pool2d": "averaged",
    "batch_norm": "normalized",
    "enlarge": "enlarged",
    "take": "picked",
    "softmax": "softmax",
    "rms_norm": "normalized",
    "layer_norm": "normalized",
}
NOUNS = OpTable(_NOUNS, lambda spec: spec.name)


def torch_call(name: str, x: Sequence[str], attributes: Attributes, shapes: Sequence[tuple[int, ...]]) -> str:
    """The PyTorch expression of any op of the kernel level except `block`; `shapes` are those of the operands."""
    match name:
        case "matmul":
            return f"torch.matmul({x[0]}, {x[1]})"
        case "sum":
            return f"torch.sum({x[0]}, dim={attributes['dim']}, keepdim=True)"
        case "mean":
            return f"torch.mean({x[0]}, dim={attributes['dim']}, keepdim=True)"
        case "max":
            return f"torch.amax({x[0]}, dim={attributes['dim']}, keepdim=True)"
        case "reshape":
            return f"{x[0]}.reshape({tuple(attributes['shape'])})"
        case "transpose":
            return f"{x[0]}.permute({tuple(attributes['permutation'])})"
        case "concat":
            return f"torch.cat([{', '.join(x)}], dim={attributes['dim']})"
        case "slice":
            taken = f"{attributes['start']}:{attributes['stop']}"
            step = f":{attributes['step']}" if attributes["step"] > 1 else ""
            return f"{x[0]}[{':, ' * attributes['dim']}{taken}{step}]"
        case "split":
            size = shapes[0][attributes["dim"]] // attributes["parts"]
            return f"{x[0]}.narrow({attributes['dim']}, {size * attributes['index']}, {size})"
        case "broadcast":
            return f"{x[0]}.expand({tuple(attributes['shape'])})"
        case "repeat":
            return f"torch.repeat_interleave({x[0]}, {attributes['times']}, dim={attributes['dim']})"
        case "softmax":
            scores = x[0] if len(x) == 1 else f"{x[0]}.masked_fill({x[1]} == 0, -float('inf'))"
            return f"torch.softmax({scores}, dim={attributes['dim']})"
        case "rms_norm" | "layer_norm":
            normalized = tuple(shapes[0][len(shapes[0]) - attributes["dims"] :])
            affine = "".join(f", {role}={operand}" for role, operand in zip(("weight", "bias"), x[1:], strict=False))
            eps = number(attributes.get("eps") or Fraction(0))
            return f"torch.nn.functional.{name}({x[0]}, {normalized}{affine}, eps={eps})"
        case _ if name in ELEMENTWISE:
            return ELEMENTWISE[name].torch(x, attributes)
        case _:
            return library_call(name, x, attributes, shapes)
