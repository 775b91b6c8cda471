"""The file of an emitted program while it is being written: names, buffers, kernels and their launches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_eg.backends.launches.launch_graph import LaunchGraph
from mirage_eg.backends.launches.placement import Placement
from mirage_eg.backends.triton.addressing import Pointer, Rows, highest_offset
from mirage_eg.backends.triton.arena import Arena, Buffer, plan_arena
from mirage_eg.backends.triton.block_kernel import BlockKernel, Part
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.split_reduction import RowMaximum
from mirage_eg.backends.triton.tiles import new_name
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import marked_weights
from mirage_eg.ir.written_inputs import written_inputs

TRITON_TYPES = {
    DType.float16: "fp16",
    DType.bfloat16: "bf16",
    DType.float32: "fp32",
    DType.float64: "fp64",
    DType.bool: "i1",
    DType.int8: "i8",
    DType.uint8: "u8",
    DType.int16: "i16",
    DType.int32: "i32",
    DType.int64: "i64",
    DType.float8_e4m3fn: "fp8e4nv",
    DType.float8_e5m2: "fp8e5",
    DType.float8_e8m0fnu: "u8",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block graph at a node of the kernel graph before it is written.

    `extras`: its exported maxima and scales. `bounds`: the bounds of its loop, if a constant mask limits it.
    """

    part: Part
    operands: tuple[int, ...]
    values: tuple[int, ...]
    extras: tuple[int, ...]
    warps: int
    bounds: tuple[int, ...] = ()


@dataclass(slots=True)
class ProgramFile:
    """The file while it is being written: `types` and `strides` of all values, with those that kernels add.

    `schedules`: of each block graph of the kernel graph `graph`, by its node. `prepared`: values of weights alone, which are
    computed once. `sizes`: names of the sizes that are chosen when the program runs. `share`: whether equal block graphs are
    one kernel.
    """

    graph: Graph
    launches: LaunchGraph
    placement: Placement
    schedules: Mapping[int, Schedule]
    prepared: frozenset[int]
    sizes: tuple[str, ...]
    share: bool
    names: dict[int, str]
    wanted: Mapping[int, str]  # names of the outputs
    taken: set[str]
    types: list[TensorType]
    strides: list[Shape]
    row_maxima: dict[int, list[RowMaximum]] = field(default_factory=dict)  # of values that are shifted by maxima or scaled
    calls_torch: bool = False
    aligns: bool = False  # whether it copies views of the library that may begin at any element
    filters: dict[int, int] = field(default_factory=dict)  # of weights, what `prepare` makes of them: channels last
    converted: dict[int, int] = field(default_factory=dict)  # of inputs, the copies channels last that a kernel makes
    kernels: list[BlockKernel] = field(default_factory=list)  # those of block graphs first, in their order
    block_kernels: int = 0  # how many of these are of block graphs
    signatures: list[tuple[str, ...]] = field(default_factory=list)
    options: list[dict[str, int]] = field(default_factory=list)  # of each kernel, for the compiler
    shared: dict[Graph, list[tuple[Part, BlockKernel, dict[str, int]]]] = field(default_factory=dict)  # kernels with options
    buffers: list[int] = field(default_factory=list)  # values that kernels write
    step: int = 0  # the place in the order of launches of the node that is being written
    lives: dict[int, tuple[int, int]] = field(default_factory=dict)  # of these, the first and last step that uses it
    shown: dict[int, frozenset[int]] = field(default_factory=dict)  # of every value, the buffers whose memory it may alias
    escaping: set[int] = field(default_factory=set)  # buffers that the caller receives
    body: list[str] = field(default_factory=list)
    preparation: list[str] = field(default_factory=list)  # the lines that compute prepared values
    loop_bounds: dict[str, int] = field(default_factory=dict)  # values that `prepare` computes too, by the text of their call
    masks: set[str] = field(default_factory=set)  # the names of what these bounds are computed of

    @property
    def prepares(self) -> bool:
        """Whether the file has a part that computes functions of weights."""
        return bool(self.prepared or self.loop_bounds or self.filters)

    def add_value(self, kind: TensorType, name: str) -> int:
        """One more value, after those of the graph."""
        self.types.append(kind)
        self.strides.append(row_major(kind.shape))
        value = len(self.types) - 1
        self.names[value] = self.new_name(name)
        return value

    @property
    def launches_dependently(self) -> bool:
        """Whether the next kernel is a dependent launch: if those of all block graphs are, and it is not the first one."""
        schedules = self.schedules.values()
        return bool(self.kernels and schedules) and all(schedule.dependent_launch for schedule in schedules)

    @property
    def first_weight(self) -> int:
        """The first input that is a weight."""
        return min(marked_weights(self.graph))

    @property
    def arena(self) -> Arena:
        """The offsets of the buffers that no caller sees in their common memory, for the largest sizes."""
        inner = [value for value in self.buffers if value not in self.escaping]
        sizes = [(1 + highest_offset(self.pointer(value))) * self.types[value].dtype.itemsize for value in inner]
        return plan_arena(
            [Buffer(self.names[value], size, *self.lives[value]) for value, size in zip(inner, sizes, strict=True)]
        )

    def add_kernel(self, kernel: BlockKernel, signature: tuple[str, ...], options: dict[str, int], of_block: bool) -> None:
        """Add a kernel with the types that it takes and its options for the compiler."""
        place = self.block_kernels if of_block else len(self.kernels)
        self.kernels.insert(place, kernel)
        self.signatures.insert(place, signature)
        self.options.insert(place, options)
        self.block_kernels += of_block

    def use(self, value: int) -> None:
        """Record that the node at this step uses the buffers that a value may alias."""
        for buffer in self.shown.get(value, ()):
            self.lives[buffer] = self.lives[buffer][0], self.step

    def name_result(self, value: int) -> str:
        """Name a value that a call of the library gives."""
        name = self.names[value] = self.wanted.get(value) or self.new_name(f"t{value}")
        return name

    def name_alias(self, value: int, base: int) -> None:
        """Name a value that is stored in the memory of another one."""
        self.names[value] = self.names[base]
        self.shown[value] = frozenset[int]().union(
            *(self.shown.get(each, frozenset()) for each in (base, *self.indices(value)))
        )

    def argument(self, value: int) -> str:
        """A value as an argument of a kernel: Triton has no numbers that are exponents alone, of which it gets the bytes."""
        if self.types[value].dtype is not DType.float8_e8m0fnu:
            return self.names[value]
        self.calls_torch = True
        return f"{self.names[value]}.view(torch.uint8)"

    def name_written(self, value: int) -> None:
        """Name a value that a kernel writes, and the buffer that holds it."""
        buffer = self.buffer_of(value)
        if buffer not in self.names:
            self.names[buffer] = self.wanted.get(buffer) or self.new_name(f"t{buffer}")
        self.names[value] = self.names[buffer]

    def pointer(self, value: int) -> Pointer:
        """The argument of a kernel that reads or writes a value."""
        name, kind, placement = self.names[value], self.types[value], self.placement
        rows = None
        if value in placement.gathered:
            chosen = placement.views[value].rows
            assert chosen is not None
            index = replace(self.pointer(chosen.index), shape=kind.shape, strides=chosen.strides, offset=chosen.offset)
            rows = Rows(index, chosen.step, chosen.extent)
        has_gap = value in placement.gaps and len(kind.shape) > 1  # the rest of a single row is not written
        gap = self.strides[value][-2] - kind.shape[-1] if has_gap else 0
        offset = placement.offsets.get(value, 0)
        return Pointer(f"{name}_ptr", name, kind.shape, kind.dtype, self.strides[value], offset, rows, gap)

    def indices(self, value: int) -> tuple[int, ...]:
        """The value with the indices of a gathered one's rows."""
        view = self.placement.views.get(value)
        return () if view is None else view.read[1:]

    def buffer_of(self, value: int) -> int:
        """The value in whose memory a kernel writes a value: a concatenation, or the value itself."""
        joined = self.placement.joined
        return joined[value].base if value in joined else value

    def write(self, value: int) -> int:
        """Record that the kernel at this step writes a value; gives the buffer that holds it."""
        buffer = self.buffer_of(value)
        self.lives[buffer] = self.lives.get(buffer, (self.step,))[0], self.step
        self.shown[value] = self.shown[buffer] = frozenset({buffer})
        return buffer

    def ready(self, values: Sequence[int]) -> frozenset[int]:
        """The positions of the values that no kernel of the program writes: inputs, prepared values, and views of these."""
        written = {self.graph.input_values[place] for place in written_inputs(self.graph).values()}
        given = [value for value in self.graph.input_values if value not in written]
        names = {self.names[value] for value in (*given, *self.prepared) if value in self.names}
        read = [(value, *self.indices(value)) for value in values]
        return frozenset(position for position, each in enumerate(read) if names.issuperset(self.names[it] for it in each))

    def new_name(self, wanted: str) -> str:
        return new_name(self.taken, wanted)
