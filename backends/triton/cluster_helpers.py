"""Functions of emitted kernels that reduce over the thread blocks of a cluster, in the assembler of NVIDIA's GPUs.

Triton reduces over the thread blocks of a cluster since version 3.7. Here each thread block has one element, which it puts into
its shared memory. A lane reads the element of one thread block, and the lanes of a warp reduce them. The order of additions is
the same in all thread blocks, so that their results are equal to the last bit.
"""

from collections.abc import Mapping

CLUSTER_SUM, CLUSTER_MAX = "cluster_sum", "cluster_max"


def _helper(name: str, noun: str, instruction: str) -> str:
    return f'''@triton.jit
def {name}(x):
    """The {noun} of x in each thread block of the cluster. One has one element of x."""
    return tl.inline_asm_elementwise(
        """
        {{
            .shared .align 4 .b32 part;
            .reg .b32 at, step, rank;
            .reg .f32 other;
            .reg .pred more;
            mov.u32 at, part;
            st.shared.f32 [at], $1;
            barrier.cluster.arrive.release;
            barrier.cluster.wait.acquire;
            mov.u32 rank, %laneid;
            mov.u32 step, %cluster_nctarank;
            rem.u32 rank, rank, step;
            mapa.shared::cluster.u32 at, at, rank;
            ld.shared::cluster.f32 $0, [at];
        next:
            shr.u32 step, step, 1;
            shfl.sync.bfly.b32 other, $0, step, 31, -1;
            {instruction} $0, $0, other;
            setp.ne.u32 more, step, 1;
            @more bra next;
            barrier.cluster.arrive.release;
            barrier.cluster.wait.acquire;
        }}
        """,
        "=f,f", [x], dtype=tl.float32, is_pure=False, pack=1,
    )
'''


CLUSTER_HELPERS: Mapping[str, str] = {
    CLUSTER_SUM: _helper(CLUSTER_SUM, "total", "add.f32"),
    CLUSTER_MAX: _helper(CLUSTER_MAX, "largest one", "max.NaN.f32"),
}
