"""The cost of an e-node as a kernel, or as a part of a fused kernel: a roofline with the device's calibrated launches.

A kernel costs its launch, the slower of its products and of the bytes that these read, and the bytes that its elementwise
ops read and write. A value that two ops of one kernel read counts twice, so that costs add up over e-nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.library_products import convolution_steps, library_slowdown
from mirage_eg.graph_optimizer.eclasses import Types
from mirage_eg.graph_optimizer.program_terms import NumberedENode
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import VIEWS_IN_ORDER
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED

_OP_US = 1e-3  # the instructions of an elementwise op; the rest of its arithmetic is hidden behind memory


class FusionRole(StrEnum):
    """What an e-node may be in a fused kernel."""

    INPUT = "input"
    VIEW = "view"  # no kernel
    ELEMENTWISE = "elementwise"  # computed again in each kernel that reads it, or a kernel
    PRODUCT = "product"  # reads whole tensors; elementwise ops of its result may follow in its kernel
    REDUCTION = "reduction"  # likewise, and elementwise ops may precede
    LIBRARY = "library"  # a kernel of its own


_ROLES = {
    **dict.fromkeys(("Unary", "Binary", "Choice", "Scale", "Shift", "Pow", "Transpose"), FusionRole.ELEMENTWISE),
    **dict.fromkeys(("Slice", "Reshape", "Result", "NoOp"), FusionRole.VIEW),
    **dict.fromkeys(("Matmul", "Linear", "Conv", "BiasedConv", "Filtered"), FusionRole.PRODUCT),
    **dict.fromkeys(("Sum", "Mean"), FusionRole.REDUCTION),
    "Concat": FusionRole.LIBRARY,
    "In": FusionRole.INPUT,
}
_OF_KIND = {
    Kind.ELEMENTWISE: FusionRole.ELEMENTWISE,
    Kind.MATMUL: FusionRole.PRODUCT,
    **dict.fromkeys((Kind.REDUCTION, Kind.DERIVED), FusionRole.REDUCTION),
}


def role_of(enode: NumberedENode, names: Mapping[str, Node]) -> FusionRole:
    """The role of an e-node."""
    if enode.constructor in _ROLES:
        return _ROLES[enode.constructor]
    op = names[enode.constants[0]].op
    return FusionRole.VIEW if op in VIEWS_IN_ORDER else _OF_KIND.get(OPS[op].kind, FusionRole.LIBRARY)


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Costs in microseconds on one device.

    `least`: lower bounds of what any kernel takes, for kernels that are searched when the cheapest program has them.
    `free_views`: every rearrangement is a view, as where block graphs read operands of products in another order.
    """

    device: Device
    least: bool = False
    free_views: bool = False

    def role(self, enode: NumberedENode, names: Mapping[str, Node]) -> FusionRole:
        """The role of an e-node at these costs."""
        if self.free_views and (
            enode.constructor == "Transpose"
            or (enode.constructor not in _ROLES and OPS[names[enode.constants[0]].op].kind is Kind.REARRANGEMENT)
        ):
            return FusionRole.VIEW
        return role_of(enode, names)

    def moved(self, kinds: Types) -> float:
        """Reading or writing these tensors once."""
        return sum(kind.nbytes for kind in kinds) / self.device.memory_bandwidth * 1e6

    @property
    def computed(self) -> float:
        """An elementwise op in a kernel: of two kernels that read the same, the one with fewer ops is faster."""
        return 0.0 if self.least else _OP_US

    def launch(self, role: FusionRole, op: str) -> float:
        """The launch of a kernel whose main op has this role."""
        device = self.device
        if self.least:
            return device.launch_us
        if role is FusionRole.PRODUCT:
            return device.launch_us * device.library_product
        reduces = role is FusionRole.REDUCTION or (role is FusionRole.LIBRARY and op != "Concat")
        return device.launch_us * (device.library_reduction if reduces else device.library_elementwise)

    def products(self, enode: NumberedENode, operands: list[Types], result: Types) -> float:
        """The products of a matmul or convolution, and its operands read, whichever takes longer; of lower bounds only the
        second is: others are read once by the whole program."""
        reads = self.moved(tuple(kind for kinds in operands[self.least : 2] for kind in kinds))
        [left], [right], [out] = operands[0], operands[1], result
        is_convolution = enode.constructor not in ("Matmul", "Linear")
        terms = prod(right.shape[1:]) if is_convolution else left.shape[-1]
        is_transposed = enode.constructor == "Filtered" and enode.constants[1] == 1
        flops = 2 * prod((left if is_transposed else out).shape) * terms
        waits = convolution_steps(right.shape) * self.device.iteration_us if is_convolution and not self.least else 0.0
        biases = 0.0 if self.least else self.moved(tuple(kind for kinds in operands[2:] for kind in kinds))
        op = TRANSPOSED[0] if is_transposed else CONVOLUTIONS[0] if is_convolution else "matmul"
        return max(reads, waits, flops / self.device.matrix_rate * library_slowdown(left.dtype, op) * 1e6) + biases
