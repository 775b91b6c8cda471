"""A functional FX graph with some regions replaced by calls of `mirage_eg::segment`; shapes stay, and the strides of results.

Images that segments write channels last stay so up to the next segment: else Inductor would write row-major what it computes
of them, and copy that.
"""

import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce, wraps
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import attrgetter, getitem
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mirage_eg.frontend.fx_partition import writes_argument
from mirage_eg.frontend.fx_values import (
    Fx,
    HostValues,
    has_fixed_sizes,
    is_fixed,
    is_mutable,
    is_random,
    read_of,
    shares_memory,
)
from mirage_eg.frontend.imported import AddedInput, CausalMask, Constant
from mirage_eg.frontend.symbolic_sizes import NAMED, extent_of, is_row_major, is_size
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.node import Node
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import Dim
from mirage_eg.ir.written_inputs import written_inputs
from mirage_eg.torch_compile.fx_regions import FxRegion, is_host_number
from mirage_eg.torch_compile.image_strides import strides_of
from mirage_eg.torch_compile.operator import CALLED, is_writing, op_of
from mirage_eg.torch_compile.row_gaps import has_row_gaps, reads_memory

Fake = Any  # torch's FakeTensorMode


def region_module(module: Any, region: FxRegion, same: Mapping[Fx, Fx]) -> Any:
    """The nodes of a region as a graph module of its own; its inputs are those of the region that are nodes."""
    graph = torch.fx.Graph()
    copies: dict[Fx, Fx] = {}
    for given in region.inputs:
        if not isinstance(given, AddedInput):
            copies[given] = graph.placeholder(given.name)
            copies[given].meta["val"] = given.meta["val"]
    sizes, inside, values = _Sizes(graph, copies), set(region.nodes), dict[str, Any]()
    host = _host_values(module)

    def copy(each: Fx) -> Any:
        """The copy of a node, after those of its operands: sizes, and constants whose values the program has.

        Of nodes that are the same value, one that lays it out anew is kept: kernels of attention take a mask in rows alone.
        """
        if not _lays_out(each):
            each = same.get(each, each)
        if each not in copies and is_size(each.meta.get("val")):
            copies[each] = sizes.node(each.meta["val"].node.expr)
        elif each not in copies:
            for operand in each.all_input_nodes:
                operand_of(each, operand)
            copies[each] = graph.node_copy(each, copy)
            if str(each.target) in _VIEWS:
                copies[each].target = torch.ops.aten.reshape.default  # `same` leaves out clones that make views possible
        return copies[each]

    def operand_of(reader: Fx, operand: Fx) -> None:
        """The copy of an operand; a value, where the graph computes it once for all layers, as the mask of an attention."""
        source = same.get(operand, operand)
        if reader in inside and source not in copies and _is_computed_once(source, reader):
            values[name := f"_mirage_eg_fixed_{len(values)}"] = _laid_out(host[source], source.meta["val"])
            copies[source] = graph.get_attr(name)
        copy(operand)

    for each in region.nodes:
        copy(each)
    graph.output(tuple(copies[each] for each in region.outputs))
    given = [str(node.target) for node in graph.nodes if node.op == "get_attr" and node.target not in values]
    return torch.fx.GraphModule({name: attrgetter(name)(module) for name in given} | values, graph)


def _host_values(module: Any) -> HostValues:
    """The values of a graph module's nodes that read its attributes alone."""
    attributes = [node for node in module.graph.nodes if node.op == "get_attr"]
    return HostValues({node.name: attrgetter(node.target)(module) for node in attributes})


_VIEWS = ("aten.view.default", "aten._unsafe_view.default")  # of some orders alone: reshapes give the same values
_KEPT = 1 << 20  # bytes


def _is_kept(given: Fx) -> bool:
    """Whether no argument decides an input of a segment, which takes few bytes and is no result of the graph."""
    if given.op != "call_function" or not is_fixed(given) or any(user.op == "output" for user in given.users):
        return False
    value = given.meta["val"]
    return value.numel() * value.element_size() <= _KEPT and is_row_major(value)


def _is_computed_once(source: Fx, reader: Fx) -> bool:
    """Whether no argument decides a tensor, and an op reads it that Inductor fuses with nothing."""
    is_tensor = source.op == "call_function" and isinstance(source.meta.get("val"), torch.Tensor)
    return is_tensor and torch.Tag.pointwise not in getattr(reader.target, "tags", ()) and is_fixed(source)


def _laid_out(values: Any, like: Any) -> Any:
    """The values on the device and with the strides of another tensor, whose expanded dims are one element in memory."""
    expanded = [dim for dim, stride in enumerate(like.stride()) if stride == 0]
    for dim in expanded:
        values = values.narrow(dim, 0, 1)
    made = torch.empty_strided(values.shape, like.stride(), dtype=like.dtype, device=like.device)
    return made.copy_(values).expand(like.shape)


def _lays_out(each: Fx) -> bool:
    """Whether a node gives its operand other strides; a number, which vmap makes a tensor, has none."""
    names = ("aten.clone.default", "aten.contiguous.default", "aten._to_copy.default")
    if str(each.target) not in names or not isinstance(each.args[0], torch.fx.Node):
        return False
    own, before = (list(map(str, it.meta["val"].stride())) for it in (each, each.args[0]))  # a comparison would be a guard
    return own != before


def timed_module(module: Any, region: FxRegion, images_last: bool) -> Any:
    """The graph module of a region with copies of results into the inputs that it writes; it returns the other results.

    With `images_last`, a row-major image that a convolution reads is laid out channels last first, as Inductor does in a graph
    whose images it has so.
    """
    into = written_inputs(region.program)
    if not into and not images_last:
        return module
    graph = torch.fx.Graph()
    copies: dict[Fx, Fx] = {}
    results = graph.graph_copy(module.graph, copies)
    pairs = zip(region.inputs, region.program.inputs, strict=True)
    row_major = {given.name for given, item in pairs if not isinstance(given, AddedInput) and item.get("strides") is None}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default) if images_last else ():
        image = node.args[0]
        if image.op == "placeholder" and image.name in row_major and image.meta["val"].ndim == 4:
            with graph.inserting_before(node):
                laid_out = graph.call_function(torch.ops.aten.clone.default, (image,), {"memory_format": torch.channels_last})
            node.replace_input_with(image, laid_out)
    placeholders = {node.name: copies[node] for node in module.graph.nodes if node.op == "placeholder"}
    for place, given in into.items():
        graph.call_function(torch.ops.aten.copy_.default, (placeholders[region.inputs[given].name], results[place]))
    graph.output(tuple(result for place, result in enumerate(results) if place not in into))
    return torch.fx.GraphModule(module, graph)


class _Sizes:
    """Nodes of a graph for symbolic sizes, which are read off its placeholders."""

    def __init__(self, graph: Any, copies: Mapping[Fx, Fx]) -> None:
        self.graph = graph
        self.of_symbol: dict[Any, tuple[Fx, int]] = {}
        for copy in copies.values():
            for dim, extent in enumerate(copy.meta["val"].shape):
                if is_size(extent):
                    self.of_symbol.setdefault(extent.node.expr, (copy, dim))

    def node(self, expression: Any) -> Any:
        """A node, or a number, with the value of an expression of sizes.

        Raises UnsupportedError: no input of the region has one of the sizes.
        """
        if expression.is_Integer:
            return int(expression)
        if expression in self.of_symbol:
            return self.graph.call_function(torch.ops.aten.sym_size.int, self.of_symbol[expression])
        power = expression.is_Pow and expression.exp.is_Integer and expression.exp > 1
        if not (expression.is_Add or expression.is_Mul or power):
            raise UnsupportedError(f"no input of the segment has the extent {expression}")
        function = operator.add if expression.is_Add else operator.mul
        parts = [self.node(part) for part in ([expression.base] * int(expression.exp) if power else expression.args)]
        return reduce(lambda left, right: self.graph.call_function(function, (left, right)), parts)


@cache
def keep_images_last() -> None:
    """Let Inductor write images channels last between segments, where their strides are so, as it does between convolutions."""
    from torch._inductor.graph import GraphLowering

    begin = GraphLowering.__init__

    @wraps(begin)
    def begun(lowering: Any, *arguments: Any, **keywords: Any) -> None:
        begin(lowering, *arguments, **keywords)
        nodes = lowering.module.graph.nodes
        if any(node.target in CALLED for node in nodes):
            lowering.nodes_prefer_channels_last.update(node for node in nodes if strides_of(node) is not None)

    GraphLowering.__init__ = begun


def replace_regions(module: Any, regions: Sequence[tuple[FxRegion, str]], fake: Fake) -> None:
    """Replace regions, each with the key of its kernels, in the graph of `module`."""
    writer = _Writer(module, {each for region, _ in regions for each in {*region.nodes} - {*region.views}}, fake)
    writer.separate_shapes()
    for region, key in regions:
        writer.replace(region, key)
    _sort(module.graph)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


class _Writer:
    """Appends calls to a graph, before its output."""

    def __init__(self, module: Any, inside: Container[Fx], fake: Fake) -> None:
        self.module, self.fake = module, fake
        self.others = [node for node in module.graph.nodes if node.op in ("call_function", "output") and node not in inside]
        self.device: Any = None  # of the region that is being replaced
        self.graph = module.graph
        self.replaced: dict[Fx, Fx] = {}
        self.as_written: dict[Fx, Fx] = {}  # results of kernels in their layout, where torch has other strides
        self.torchs: dict[Fx, Any] = {}  # the values of nodes outside regions that follow such layouts, as torch has them
        self.constants: dict[tuple[str, Shape, str, Any], Fx] = {}  # equal ones are named alike
        self.fixed: dict[tuple[Fx, Any], Fx] = {}  # values that no argument decides, as buffers of a device
        self.masks: dict[tuple[CausalMask, Any], Fx] = {}
        self.moved: dict[tuple[Fx, Any], Fx] = {}  # numbers on the CPU, as tensors of a device
        [self.output] = [node for node in self.graph.nodes if node.op == "output"]
        self.host = _host_values(module)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Fx:
        """A node with the fake value of its result."""
        with self.graph.inserting_before(self.output):
            node = self.graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), lambda it: it.meta["val"])
        with self.fake:
            node.meta["val"] = target(*values[0], **values[1])
        return node

    def separate_shapes(self) -> None:
        """Constants that have the shape of a value read an empty one: a region may compute the value and read the constant."""
        calls = [it for it in self.graph.nodes if it.op == "call_function" and has_fixed_sizes(it) and not is_mutable(it)]
        for node in [it for it in calls if not it.is_impure()]:  # a token of an effect is empty, and orders it
            read = read_of(node)
            for source in [it for it in node.all_input_nodes if it.op == "call_function" and it not in read]:
                value = source.meta["val"]
                like = {"dtype": value.dtype, "device": value.device}
                empty = self.call(torch.ops.aten.empty_strided.default, [*value.shape], [*value.stride()], **like)
                node.replace_input_with(source, empty)

    def replace(self, region: FxRegion, key: str) -> None:
        self.device = region.outputs[0].meta["val"].device
        inputs = [self._input(given, item) for given, item in zip(region.inputs, region.program.inputs, strict=True)]
        into = written_inputs(region.program)
        if into:
            others = [it for place, it in enumerate(inputs) if place not in into.values()]
            written = [inputs[place] for place in sorted(into.values())]
            results = self.call(op_of(region.program), others, written, key)
        else:
            results = self.call(op_of(region.program), inputs, key)
        inside = set(region.nodes) - set(region.views)
        for copy in region.writes:
            self.graph.erase_node(copy)
        for place, given in into.items():
            old = region.outputs[place]
            self.replaced[old] = inputs[given]  # `_sort` puts its readers after the call
            old.replace_all_uses_with(inputs[given], delete_user_cb=lambda user: user not in inside)
        returned = [old for place, old in enumerate(region.outputs) if place not in into]
        for place, old in enumerate(returned):
            single = bool(into) and len(returned) == 1
            written = results if single else self.call(getitem, results, place)
            torchs, same_type = old.meta["val"], written.meta["val"].dtype == old.meta["val"].dtype
            stays = same_type and is_row_major(torchs) and strides_of(written) is not None
            new = written if stays else self._like(written, torchs)
            if same_type:
                self.as_written[old] = written
            new.meta |= {name: value for name, value in old.meta.items() if name != "val"}
            self.replaced[old] = new
            old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
            if stays:
                self._pass_on(new, torchs)

    def _pass_on(self, new: Fx, value: Any) -> None:
        """Let the nodes outside regions follow a value with other strides than `value`; results of the graph keep their own."""
        self.torchs[new], changed = value, {new}
        for node in self.others:
            operands = [it for it in node.all_input_nodes if it in changed]
            if operands and (found := self._computed(node)) is not None:
                self.torchs.setdefault(node, node.meta["val"])
                node.meta["val"] = found
                changed |= {node, self._in_order_of(operands, node)}
            else:
                for operand in operands:
                    node.replace_input_with(operand, self._like(operand, self.torchs[operand]))

    def _computed(self, node: Fx) -> Any:
        """The fake value of a node for its operands as they are now; None of one that takes the strides of torch alone."""
        if not _takes_any_order(node):
            return None
        if str(node.target) in _VIEWS:
            node.target = torch.ops.aten.reshape.default
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda it: it.meta["val"])
        with self.fake, suppress(RuntimeError):  # of an op that asks for rows, as a view with another type
            return node.target(*args, **kwargs)
        return None

    def _in_order_of(self, operands: Iterable[Fx], node: Fx) -> Fx:
        """The result of a node channels last if it is an image of the channels of one of the operands: of indices torch's fake
        tensors have it row-major."""
        value = node.meta["val"]
        is_image = isinstance(value, torch.Tensor) and value.dim() == 4 and has_fixed_sizes(node) and is_row_major(value)
        images = (it.meta["val"] for it in operands if strides_of(it) is not None)
        if node in self.replaced or not is_image or all(it.shape[:2] != value.shape[:2] for it in images):
            return node
        laid_out = self.call(torch.ops.aten.clone.default, node, memory_format=torch.channels_last)
        node.replace_all_uses_with(laid_out, delete_user_cb=lambda user: user is not laid_out)
        self.replaced[node], self.torchs[laid_out] = laid_out, self.torchs[node]
        return laid_out

    def _input(self, given: Fx | AddedInput, item: Node) -> Fx:
        """The value of an input of a program, in the layout that it reads."""
        if isinstance(given, CausalMask):
            return self._causal_mask(given)
        if isinstance(given, Constant):
            return self._constant(given, item)
        if _is_kept(given):
            return self._fixed(given)
        node: Fx = self.replaced.get(given, given)
        if is_host_number(node.meta["val"], self.device):
            return self._moved(node)
        if NAMED in node.meta:
            return node  # at sizes chosen later the call copies what it must
        for found in (self.as_written.get(given, node), node):  # first without copies to torch's strides and back
            if _has_strides(found, item.get("strides")):
                return found
        order = torch.contiguous_format if item.get("strides") is None else torch.channels_last
        return self.call(torch.ops.aten.clone.default, node, memory_format=order)

    def _constant(self, given: Constant, item: Node) -> Fx:
        """The constant as a buffer of the module, which all layers of a model share."""
        key = given.name, item["shape"], item["dtype"], self.device
        if key not in self.constants:
            with _disable_current_modes():  # a tensor with values
                values = torch.from_numpy(given.array().copy()).to(self.device, getattr(torch, item["dtype"]))
            self.constants[key] = self._buffer(values)
        return self.constants[key]

    def _fixed(self, given: Fx) -> Fx:
        """A value that no argument decides as a buffer of the module: each would be a kernel in each call."""
        if (given, self.device) not in self.fixed:
            with _disable_current_modes():
                values = self.host[given].to(self.device)
            self.fixed[given, self.device] = self._buffer(values)
        return self.fixed[given, self.device]

    def _buffer(self, values: Any) -> Fx:
        """The node of a new buffer of the module."""
        name = f"_mirage_eg_constant_{len(self.constants) + len(self.fixed)}"
        self.module.register_buffer(name, values)
        with self.graph.inserting_before(self.output):
            node = self.graph.get_attr(name)
        node.meta["val"] = self.fake.from_tensor(values, static_shapes=True)
        return node

    def _moved(self, node: Fx) -> Fx:
        """A number on the CPU as a tensor of the device, by a product with 1: a copy would wait for the device."""
        if (node, self.device) not in self.moved:
            one = self.call(torch.ops.aten.ones.default, [], dtype=node.meta["val"].dtype, device=self.device)
            self.moved[node, self.device] = self.call(torch.ops.aten.mul.Tensor, one, node)
        return self.moved[node, self.device]

    def _causal_mask(self, given: CausalMask) -> Fx:
        """The mask that torch computes at the sizes of a call, once for all regions of a device."""
        if (given, self.device) not in self.masks:
            shape = [self._size(extent) for extent in given.shape]
            ones = self.call(torch.ops.aten.ones.default, shape, dtype=torch.bool, device=self.device)
            self.masks[given, self.device] = self.call(torch.ops.aten.tril.default, ones)
        return self.masks[given, self.device]

    def _size(self, extent: int) -> Fx | int:
        """The node of a named dim's size, which a placeholder has; or a number."""
        if not isinstance(extent, Dim):
            return extent
        named = [(node, node.meta[NAMED]) for node in self.graph.nodes if node.op == "placeholder" and NAMED in node.meta]
        for node, size in named:
            if is_size(node.meta["val"]) and size is extent:
                return node
        node, shape = next((node, shape) for node, shape in named if any(it is extent for it in shape))
        return self.call(torch.ops.aten.sym_size.int, node, next(dim for dim, it in enumerate(shape) if it is extent))

    def _like(self, new: Fx, value: Any) -> Fx:
        """The value with torch's type, dense in the order of torch's strides: it has the views that it has there. Rows may have
        gaps where the region's program says so (`row_gaps`)."""
        aten = torch.ops.aten
        if new.meta["val"].dtype != value.dtype:  # an indicator
            new = self.call(aten._to_copy.default, new, dtype=value.dtype)
        strides = [int(extent_of(stride)) for stride in value.stride()]
        if not (row_major := is_row_major(new.meta["val"])) and _has_strides(new, strides):  # of fixed sizes
            return new
        if not row_major and is_row_major(value) and has_row_gaps(new.meta["val"]):
            return new
        order = sorted(range(value.dim()), key=lambda dim: (-strides[dim], dim))
        whole = [dim for dim in order if strides[dim]]
        if is_row_major(value) or whole == sorted(whole):  # row-major, but for gaps and expanded dims
            return new if row_major else self.call(aten.clone.default, new, memory_format=torch.contiguous_format)
        back = sorted(range(value.dim()), key=lambda place: order[place])
        dense = self.call(
            aten.clone.default, self.call(aten.permute.default, new, order), memory_format=torch.contiguous_format
        )
        return self.call(aten.permute.default, dense, back)


def _takes_any_order(node: Fx) -> bool:
    """Whether a node, or the choice of one result, gives the same values for operands with other strides, and no view of one as
    a result of the graph."""
    if node.target is getitem:
        return True
    is_left = reads_memory(node) or is_mutable(node) or is_random(node) or (shares_memory(node) and _is_returned(node))
    return node.op == "call_function" and not is_left


def _is_returned(node: Fx) -> bool:
    """Whether a value or a view of it is a result of the graph."""
    return any(
        user.op == "output" or ((user.target is getitem or shares_memory(user)) and _is_returned(user)) for user in node.users
    )


def _has_strides(node: Fx, strides: Sequence[int] | None) -> bool:
    """Whether a value has these strides, row-major without; at dims of extent 1 it may have any."""
    value = node.meta["val"]
    if strides is None:
        return is_row_major(value)
    return all(extent == 1 or have == want for extent, have, want in zip(value.shape, value.stride(), strides, strict=True))


def _sort(graph: Any) -> None:
    """Order the nodes by their operands and else as they are; random calls stay in order, writes to arguments come last.

    What reads an argument that a segment writes follows the segment: only the segment reads the old value.
    """
    nodes = list(graph.nodes)
    place = {node: (writes_argument(node), number) for number, node in enumerate(nodes)}
    by_place = {place[node]: node for node in nodes}
    before = {node: set(node.all_input_nodes) for node in nodes}
    after = {node: set(node.users) for node in nodes}
    for node in [it for it in nodes if is_writing(it.target)]:
        for reader in {user for written in node.args[1] for user in written.users} - {node}:
            before[reader].add(node)
            after[node].add(reader)
    for node, following in pairwise(filter(is_random, nodes)):
        before[following].add(node)
        after[node].add(following)
    missing = {node: len(operands) for node, operands in before.items()}
    ready = [place[node] for node in nodes if not missing[node] and node.op != "output"]
    heapify(ready)
    ordered = []
    while ready:
        node = by_place[heappop(ready)]
        ordered.append(node)
        for user in after[node]:
            missing[user] -= 1
            if not missing[user] and user.op != "output":
                heappush(ready, place[user])
    [output] = [node for node in nodes if node.op == "output"]
    assert len(ordered) == len(nodes) - 1, "the segments of a graph depend on each other in a circle"
    for node in ordered:
        output.prepend(node)
