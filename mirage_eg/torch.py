"""`mirage_eg.torch`: PyTorch models in. Compile them with our kernels, import them as programs, explain what was covered."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirage_eg.frontend.torch_export import import_graph, import_program
    from mirage_eg.torch_compile.ahead_of_time import compile, load
    from mirage_eg.torch_compile.backend import backend
    from mirage_eg.torch_compile.explain import explain
    from mirage_eg.torch_compile.settings import Settings

_HOMES = {  # module: the public names that it holds; each is imported when it is first used
    "frontend.torch_export": ("import_graph", "import_program"),
    "torch_compile.ahead_of_time": ("compile", "load"),
    "torch_compile.backend": ("backend",),
    "torch_compile.explain": ("explain",),
    "torch_compile.settings": ("Settings",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(f"mirage_eg.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module 'mirage_eg.torch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = ["Settings", "backend", "compile", "explain", "import_graph", "import_program", "load"]
