"""The calls of an emitted program that torch runs: library kernels, and convolutions with what follows them in one kernel."""

from collections.abc import Sequence
from math import prod

from mirage_eg.backends.launches.aligned_rows import unaligned_products
from mirage_eg.backends.launches.convolution import FusedConvolution
from mirage_eg.backends.launches.image_layouts import filter_strides, is_channels_last_convolution, pools_row_major
from mirage_eg.backends.launches.launch_graph import LaunchKind
from mirage_eg.backends.launches.views import View, reshaped_strides, runs_in_memory
from mirage_eg.backends.triton.joint_concat import laid_channels_last, write_row_major
from mirage_eg.backends.triton.op_table import torch_attributes, torch_text
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.biased_product import BiasedProduct
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS, PACKAGED, to_a_type
from mirage_eg.ir.op.moves import RESHAPES, VIEWS, VIEWS_OF_A_PART
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import marked_weights
from mirage_eg.ir.windows import OF_IMAGES, channels_last, has_planes


def empty(file: ProgramFile, value: int, strides: Shape, first: str) -> str:
    """A call that allocates memory of the type of a value on the device of the value `first`."""
    type_ = file.types[value]
    call = (
        f"torch.empty({type_.shape}" if strides == row_major(type_.shape) else f"torch.empty_strided({type_.shape}, {strides}"
    )
    return f"{call}, dtype=torch.{type_.dtype}, device={first}.device)"


def write_library_call(file: ProgramFile, item: Node, value: int, merged: View | None = None) -> None:
    """Write the call that makes a value; a `merged` view is one of the memory that its operand shows."""
    types, is_prepared, images = file.graph.types, value in file.prepared, file.placement.images
    first = file.names[file.first_weight if is_prepared else next(iter(file.graph.input_values), 0)]
    operands = [file.names[i] for i in (item.operands if merged is None else (merged.base,))] or [first]
    if is_channels_last_convolution(file.graph, item):
        operands = [file.names[it] for it in channels_last_operands(file, item)]
    if item.operands and item.operands[0] in images and pools_row_major(file.graph, item):
        operands[0] = f"{operands[0]}.contiguous()"
    call = _torch_text(item, operands, file.graph, value) if merged is None else _strided(file, operands[0], value, merged)
    read_by_kernel = _is_read_by_generated_kernel(file, value)
    is_laid, has_gaps = value in images and has_planes(types[value].shape), value in file.placement.gaps
    product = unaligned_products(file.graph).get(value)
    if product is not None and product.is_padded:
        call = f"{PRODUCT}({', '.join(operands)})"
    is_result = any(value in it.operands for it in file.graph.outputs)
    if item.op in RESHAPES and (has_gaps or (is_laid and _shows(file, item.operands[0], value))):
        call = f"{operands[0]}.as_strided({types[value].shape}, {file.strides[value]})"  # strides of dims of extent 1 count
    elif has_gaps or (is_laid and not (is_prepared or read_by_kernel or is_result)):
        pass  # it is written so, or only the library reads it
    elif is_laid and file.strides[value] == channels_last(types[value].shape):
        call = laid_channels_last(f"({call})", types[value].shape)  # as the library gives it
    elif file.strides[value] != row_major(types[value].shape):
        call = f"{empty(file, value, file.strides[value], first)}.copy_({call})"
    elif not is_prepared and gives_channels_last(file.graph, item, value) and (read_by_kernel or is_result):
        write_row_major(file, value, call)
        file.calls_torch = True
        return
    elif is_prepared or read_by_kernel or (is_result and (images or item.op in OF_IMAGES)):
        call = f"({call}).contiguous()"  # a kernel or the caller reads it by fixed strides
    if (is_prepared or read_by_kernel) and _shows_a_part(file.graph, value):
        file.aligns, call = True, f"{ALIGNED}({call})"
    (file.preparation if is_prepared else file.body).append(f"    {file.names[value]} = {call}")
    file.calls_torch |= not is_prepared


def gives_channels_last(graph: Graph, item: Node, value: int) -> bool:
    """Whether a call gives an image of several channels and positions channels last."""
    if not is_channels_last_convolution(graph, item):
        return False
    _, channels, *plane = graph.types[value].shape
    return channels > 1 and prod(plane) > 1


def _strided(file: ProgramFile, base: str, value: int, view: View) -> str:
    """The call of a view by its strides; its memory may itself begin in that of another tensor."""
    offset = f", {base}.storage_offset() + {view.offset}" if view.offset else ""
    return f"{base}.as_strided({file.types[value].shape}, {view.strides}{offset})"


def _shows_a_part(graph: Graph, value: int) -> bool:
    """Whether the library may give a value in memory of another one, from an element of it on that is not the first."""
    item = graph.node_of[value]
    while item.op in VIEWS or item.op in CASTS:
        if item.op in VIEWS_OF_A_PART:
            return True
        item = graph.node_of[item.operands[0]]
    return False


ALIGNED = "aligned"
ALIGNED_SOURCE = f'''def {ALIGNED}(x):
    """The tensor, or a copy: kernels are compiled for memory that begins at a multiple of {ALIGNMENT} bytes."""
    return x.clone() if x.data_ptr() % {ALIGNMENT} else x


'''


def _shows(file: ProgramFile, source: int, value: int) -> bool:
    """Whether a reshape is stored in the memory of its source, with the strides that it should have."""
    shape = file.types[value].shape
    strides = reshaped_strides(file.types[source].shape, file.strides[source], shape)
    return strides is not None and runs_in_memory(shape, strides) == runs_in_memory(shape, file.strides[value])


_GENERATED = frozenset(LaunchKind) - {
    LaunchKind.ATTENTION,
    LaunchKind.CONVOLUTION,
    LaunchKind.LIBRARY,
    LaunchKind.PREPARED,
    LaunchKind.PRODUCT,
    LaunchKind.VIEW,
}


def _is_read_by_generated_kernel(file: ProgramFile, value: int) -> bool:
    """Whether a generated kernel reads a value or a view of it."""
    family = (value, *(view for view, it in file.placement.views.items() if value in it.read))
    readers = (file.launches.at.get(reader) for member in family for reader in file.graph.readers[member])
    return any(it is not None and it.kind in _GENERATED for it in readers)


def write_fused_convolution(file: ProgramFile, fused: FusedConvolution, value: int) -> None:
    """Write the call of a convolution with its bias, its residual and its relu."""
    item = fused.convolution
    image, weight = (file.names[it] for it in channels_last_operands(file, item))
    bias = "None" if fused.bias is None else f"{file.names[fused.bias]}.reshape(-1)"
    added = "None" if fused.added is None else file.names[fused.added]
    windows = f"{tuple(item['strides'])}, {tuple(item['pads'][:2])}, {tuple(item['dilations'])}"
    name = file.name_result(value)
    call = f"{FUSED}({image}, {weight}, {bias}, {added}, {windows})"
    file.calls_torch = True
    if value in file.placement.images:
        file.body.append(f"    {name} = {laid_channels_last(call, file.types[value].shape)}")
    elif gives_channels_last(file.graph, item, value) and file.strides[value] == row_major(file.types[value].shape):
        write_row_major(file, value, call)
    else:
        file.body.append(f"    {name} = {call}.contiguous()")


def write_biased_product(file: ProgramFile, biased: BiasedProduct) -> None:
    """Write the call of a product with its bias."""
    [*_, value] = biased.values
    bias, left, right = (file.names[operand] for operand in (biased.bias, *biased.product.operands))
    bias = bias if len(file.types[biased.bias].shape) == 1 else f"{bias}.reshape(-1)"
    product = unaligned_products(file.graph).get(biased.values[0])
    is_padded = product is not None and product.is_padded
    name = file.name_result(value)
    shape = "" if len(file.types[value].shape) == 2 else f".reshape({file.types[value].shape})"
    shape += ".contiguous()" if is_padded and value not in file.placement.gaps else ""
    call = f"{PRODUCT}({left}, {right}, {bias})" if is_padded else f"torch.addmm({bias}, {left}, {right})"
    if biased.activation:
        call = f"{ACTIVATED}({left}, {right}, {bias}, {PACKAGED[biased.activation].use_gelu})"
    file.body.append(f"    {name} = {call}{shape}")
    file.calls_torch = True


PRODUCT = "aligned_product"
PRODUCT_SOURCE = f'''def {PRODUCT}(x, w, bias=None):
    """x w + bias with zeros behind rows that fill no multiples of {ALIGNMENT} bytes: cuBLAS is several times faster so."""
    import torch

    def pad(x, more, wider):  # torch's fills all of it before it copies
        rows, columns = x.shape
        padded = x.new_empty((rows + more, columns + wider))
        padded[:rows, :columns] = x
        padded[rows:] = 0
        padded[:, columns:] = 0
        return padded

    step = {ALIGNMENT} // x.element_size()
    terms, columns = w.shape
    zeros, gap = -terms % step, -columns % step
    x = pad(x, 0, zeros) if zeros else x
    w = pad(w, zeros, gap) if w.stride(1) == 1 else pad(w.mT, gap, zeros).mT
    result = x @ w if bias is None else torch.addmm(torch.nn.functional.pad(bias, (0, gap)), x, w)
    return result[:, :columns]

'''


ACTIVATED = "activated_product"
ACTIVATED_SOURCE = f'''def {ACTIVATED}(x, w, bias, is_gelu):
    """relu(x w + bias), or gelu(x w + bias) by tanh: one kernel of cuBLAS."""
    import torch

    if x.is_cuda and torch.version.hip is None:
        return torch._addmm_activation(bias, x, w, use_gelu=is_gelu)
    total = torch.addmm(bias, x, w)
    return torch.nn.functional.gelu(total, approximate="tanh") if is_gelu else torch.relu(total)

'''


FUSED = "convolution_relu"
FUSED_SOURCE = f'''def {FUSED}(x, weight, bias, added, stride, padding, dilation):
    """relu(convolution + bias + added): one kernel of cuDNN on its GPUs, if it has one for these sizes."""
    import torch

    if x.is_cuda and torch.version.hip is None and torch.backends.cudnn.is_available():
        try:
            if added is None:
                return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
            return torch.cudnn_convolution_add_relu(x, weight, added, 1.0, bias, stride, padding, dilation, 1)
        except RuntimeError:  # no engine
            pass
    total = torch.nn.functional.conv2d(x, weight, bias, stride, padding, dilation)
    return torch.relu(total if added is None else total + added)

'''


def channels_last_operands(file: ProgramFile, item: Node) -> tuple[int, int]:
    """The image and the filter of a convolution: copies channels last, where there are any."""
    image, weight = item.operands
    for value in item.operands:
        if value in file.converted:
            file.use(file.converted[value])
    return file.converted.get(image, image), laid_filter(file, weight, filter_strides(file.graph, item))


def laid_filter(file: ProgramFile, value: int, strides: Shape) -> int:
    """A filter with these strides: what `prepare` makes of a weight; of another input the copy channels last, or itself."""
    kind = file.types[value]
    if value in file.converted:
        return file.converted[value]
    if file.sizes or value not in marked_weights(file.graph) | file.prepared or prod(kind.shape[2:]) == 1:
        return value
    if value not in file.filters:
        laid = file.filters[value] = file.add_value(kind, f"{file.names[value]}_channels_last")
        file.strides[laid] = strides
        name, is_last = file.names[value], strides == channels_last(kind.shape)
        copy = f"{empty(file, value, strides, name)}.copy_({name})"
        call = laid_channels_last(name, kind.shape) if is_last else copy
        file.preparation.append(f"    {file.names[laid]} = {call}")
    return file.filters[value]


def _torch_text(item: Node, names: Sequence[str], graph: Graph, value: int) -> str:
    types, row = graph.types, OPS[item.op]
    operands = [
        name
        if types[i].dtype is types[value].dtype or place < row.conditions or to_a_type(item.op) or row.kind is Kind.LIBRARY
        else f"{name}.to(torch.{types[value].dtype})"
        for place, (name, i) in enumerate(zip(names, item.operands, strict=False))
    ] or names
    dtype = types[value].dtype
    return torch_text(item, operands, dtype, torch_attributes(item, dtype), [types[i].shape for i in item.operands])
