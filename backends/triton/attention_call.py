"""The call of the library that computes an attention, in an emitted program."""

from mirage_eg.backends.launches.attention import ROWS_OF_FLASH, LibraryAttention
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.op.moves import JOINS

MOST_MASKS = 256  # constant masks whose form is kept
ROWS_OF_CUDNN, SAFE_CUDNN = 128, 91501  # an older cuDNN takes whole tiles of so many rows alone (PyTorch's issue 169849)
LOCK = "_attentions_of_mirage_eg"  # the name of a lock of all emitted programs of a process
NAMES = ("attention", "aligned_rows", "is_causal", "MASKS", "MATH", "FLASH", "EFFICIENT", "CUDNN", "KERNELS", "RLock")
SOURCE = f'''from threading import RLock

MATH, FLASH, EFFICIENT, CUDNN = KERNELS = range(4)  # as in torch.nn.attention.SDPBackend
MASKS = {{}}  # constant masks, and whether they are causal


def is_causal(mask):
    """Whether a constant mask is a causal one: asked once, and again where it has changed in place."""
    import torch

    key = mask.data_ptr(), mask.shape, mask.stride(), 0 if mask.is_inference() else mask._version
    if key not in MASKS:
        if mask.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        if len(MASKS) >= {MOST_MASKS}:
            del MASKS[next(iter(MASKS))]
        MASKS[key] = mask, torch.equal(mask, torch.ones_like(mask).tril())
    return MASKS[key][1]


def aligned_rows(x):
    """The tensor, or a copy whose rows begin at multiples of {ALIGNMENT} bytes: kernels load vectors of masks, too."""
    whole = {ALIGNMENT} // x.element_size()
    *steps, last = x.stride()
    if last == 1 and x.data_ptr() % {ALIGNMENT} == 0 and not any(step % whole for step in steps):
        return x
    return x.new_empty((*x.shape[:-1], -(-x.shape[-1] // whole) * whole))[..., : x.shape[-1]].copy_(x)


def attention(q, k, v, mask, scale, constant):
    """softmax(scale · q kᵀ + mask) v by one kernel of the library, which skips what a constant causal mask leaves out."""
    import torch

    causal = constant and is_causal(mask)
    q, k, v = map(aligned_rows, (q, k, v))
    added = None if mask is None or causal else aligned_rows(mask)
    fast = [CUDNN, FLASH] if q.shape[2] > {ROWS_OF_FLASH} else [FLASH, CUDNN]
    safe = q.shape[2] % {ROWS_OF_CUDNN} == 0 or (torch.backends.cudnn.version() or 0) >= {SAFE_CUDNN}
    settings = torch._C  # what torch.nn.attention.sdpa_kernel sets, which takes longer than the attention's own call
    with vars(torch).setdefault("{LOCK}", RLock()):  # the settings are of the process
        order, uses_cudnn = settings._get_sdp_priority_order(), settings._get_cudnn_sdp_enabled()
        try:
            settings._set_sdp_priority_order([*fast, EFFICIENT, MATH, *(it for it in order if it not in KERNELS)])
            settings._set_sdp_use_cudnn(safe)
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, added, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        finally:
            settings._set_sdp_priority_order(order)
            settings._set_sdp_use_cudnn(uses_cudnn)

'''


def write_attention(file: ProgramFile, attention: LibraryAttention, value: int) -> None:
    """Write the call of an attention whose result is `value`."""
    q, k, v, *mask = (
        file.names[operand] if file.types[operand].shape == shape else f"{file.names[operand]}.reshape{shape}"
        for operand, shape in zip(attention.read, attention.shapes, strict=True)
    )
    given = f"{q}, {k}.mT, {v}, {mask[0] if mask else None}, {float(attention.scale)!r}, {attention.constant}"
    name = file.name_result(value)
    by_library = all(file.graph.nodes[reader].op not in ("block", "output", *JOINS) for reader in file.graph.readers[value])
    order = "" if by_library else ".contiguous()"
    shape = file.types[attention.values[-2] if attention.order else value].shape
    shown = "" if shape == (*attention.shapes[0][:3], attention.shapes[2][3]) else f".reshape({shape})"
    reordered = f".permute{attention.order}" if attention.order else ""
    file.body.append(f"    {name} = attention({given}){shown}{reordered}{order}")
    file.calls_torch = True
