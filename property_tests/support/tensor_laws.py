"""TASO's axioms and lemmas (SOSP'19), from knowledge, at stride 1 and centred windows; and equations that are no laws.

`Conv2d f` stands for no activation and for relu, `a` for the axes 0 and 1.
"""

from mirage_eg.egraph.tensor.term import Equation
from mirage_eg.egraph.tensor.written import read_term

_AXIOMS = """
(Add x (Add y z)) = (Add (Add x y) z)
(Add x y) = (Add y x)
(Mul x (Mul y z)) = (Mul (Mul x y) z)
(Mul x y) = (Mul y x)
(Mul (Add x y) z) = (Add (Mul x z) (Mul y z))
(Smul (Smul x y) z) = (Smul (Smul x z) y)
(Smul (Add x y) z) = (Add (Smul x z) (Smul y z))
(Smul (Mul x y) z) = (Mul x (Smul y z))
(Transpose (Transpose x)) = x
(Transpose (Add x y)) = (Add (Transpose x) (Transpose y))
(Transpose (Mul x y)) = (Mul (Transpose x) (Transpose y))
(Smul (Transpose x) y) = (Transpose (Smul x y))
(Relu (Transpose x)) = (Transpose (Relu x))
(Relu (Relu x)) = (Relu x)
(Matmul x (Matmul y z)) = (Matmul (Matmul x y) z)
(Smul (Matmul x y) z) = (Matmul x (Smul y z))
(Smul (Matmul x y) z) = (Matmul (Smul x z) y)
(Matmul x (Add y z)) = (Add (Matmul x y) (Matmul x z))
(Matmul (Add x y) z) = (Add (Matmul x z) (Matmul y z))
(Transpose (Matmul x y)) = (Matmul (Transpose y) (Transpose x))
(Smul (Conv2d none x y) z) = (Conv2d none x (Smul y z))
(Conv2d f x (Smul y z)) = (Conv2d f (Smul x z) y)
(Conv2d none x (Add y z)) = (Add (Conv2d none x y) (Conv2d none x z))
(Conv2d none (Add x y) z) = (Add (Conv2d none x z) (Conv2d none y z))
(Conv2d f x (Enlarge y)) = (Conv2d f x y)
(Conv2d relu x y) = (Relu (Conv2d none x y))
(AvgPool x) = (Conv2d none x (Cpool))
(Conv2d none x (Iconv)) = x
(Conv2d relu x (Iconv)) = (Relu x)
(Matmul x (Imatmul)) = x
(Matmul (Imatmul) x) = x
(Mul x (One)) = x
(Split0 a (Concat a x y)) = x
(Split1 a (Concat a x y)) = y
(Concat 0 (Concat 1 x y) (Concat 1 z w)) = (Concat 1 (Concat 0 x z) (Concat 0 y w))
(Concat a (Smul x y) (Smul z y)) = (Smul (Concat a x z) y)
(Concat a (Add x y) (Add z w)) = (Add (Concat a x z) (Concat a y w))
(Concat a (Mul x y) (Mul z w)) = (Mul (Concat a x z) (Concat a y w))
(Concat a (Relu x) (Relu y)) = (Relu (Concat a x y))
(Concat 0 (Transpose x) (Transpose y)) = (Transpose (Concat 1 x y))
(Concat 1 (Transpose x) (Transpose y)) = (Transpose (Concat 0 x y))
(Concat 1 (Matmul x y) (Matmul x z)) = (Matmul x (Concat 1 y z))
(Concat 0 (Matmul x y) (Matmul z y)) = (Matmul (Concat 0 x z) y)
(Matmul (Concat 1 x y) (Concat 0 z w)) = (Add (Matmul x z) (Matmul y w))
(Concat 0 (Conv2d f x y) (Conv2d f z y)) = (Conv2d f (Concat 0 x z) y)
(Concat 1 (Conv2d f x y) (Conv2d f x z)) = (Conv2d f x (Concat 0 y z))
(Conv2d none (Concat 1 x y) (Concat 1 z w)) = (Add (Conv2d none x z) (Conv2d none y w))
(Concat a (AvgPool x) (AvgPool y)) = (AvgPool (Concat a x y))
(Concat a (MaxPool x) (MaxPool y)) = (MaxPool (Concat a x y))
(Add (Enlarge x) (Enlarge y)) = (Enlarge (Add x y))
(Enlarge (Smul x y)) = (Smul (Enlarge x) y)
"""

_FALSE = """
(Relu (Smul x y)) = (Smul (Relu x) y)
(MaxPool (Smul x y)) = (Smul (MaxPool x) y)
(MaxPool (Add x y)) = (Add (MaxPool x) (MaxPool y))
(Relu (Add x y)) = (Add (Relu x) (Relu y))
(Conv2d relu x (Add y z)) = (Add (Conv2d relu x y) (Conv2d relu x z))
(MaxPool (MaxPool x)) = (MaxPool x)
(AvgPool (AvgPool x)) = (AvgPool x)
(AvgPool (MaxPool x)) = (MaxPool (AvgPool x))
(Conv2d none (Conv2d none x y) z) = (Conv2d none (Conv2d none x z) y)
(Conv2d none (AvgPool x) y) = (AvgPool (Conv2d none x y))
(Matmul x y) = (Matmul y x)
(Mul (Transpose x) y) = (Mul x y)
(Concat 1 x y) = (Concat 1 y x)
(Matmul (Concat 0 x y) z) = (Matmul (Concat 0 y x) z)
(Relu (Mul x y)) = (Mul (Relu x) (Relu y))
(Enlarge (Mul x (One))) = (Enlarge (Add x (One)))
(Conv2d none (One) x) = (Conv2d none (AvgPool (One)) x)
"""


def _equations(lines: str) -> tuple[Equation, ...]:
    instances = []
    for line in lines.strip().splitlines():
        for activation in ("none", "relu") if "Conv2d f" in line else ("",):
            for axis in "01" if " a " in line else " ":
                left, right = line.replace("Conv2d f", f"Conv2d {activation}").replace(" a ", f" {axis} ").split(" = ")
                instances.append((read_term(left), read_term(right)))
    return tuple(instances)


AXIOMS = _equations(_AXIOMS)
FALSE_EQUATIONS = _equations(_FALSE)
