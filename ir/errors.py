"""Every error that this package raises on purpose: what was got, what was wanted, where, and a hint."""


class MirageError(ValueError):
    """Bad input; the command line prints it as one line and exits with code 2."""


class GraphError(MirageError):
    """A graph that breaks a rule of its ops: shapes, maps, phases, levels, dangling operands."""


class ProgramError(MirageError):
    """A PROGRAM argument that names no workload and gives no graph."""


class RuleError(MirageError):
    """A mistake in a rule file; the message starts with `path:line`."""


class LimitError(RuleError):
    """Laws that took more time or memory than they may."""


class OptionError(MirageError):
    """An option value outside what is offered."""


class UnsupportedError(MirageError):
    """A well-formed graph that holds an op or shape which this stage cannot treat."""
