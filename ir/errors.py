"""The errors of this package; a message has the value, the expected value, the place and a hint."""


class MirageError(ValueError):
    """Bad input; the command line prints it as one line and exits with code 2."""


class GraphError(MirageError):
    """A graph that breaks a rule of its ops: shapes, maps, phases, levels, dangling operands."""


class JsonError(MirageError):
    """A text that is no JSON; the message says where."""


class ElementTypeError(GraphError):
    """An op that has no result for the element types of its operands."""


class ProgramError(MirageError):
    """A PROGRAM argument that is neither a workload nor a file with a graph."""


class RuleError(MirageError):
    """A mistake in a rule file; the message starts with `path:line`."""


class RuleErrors(RuleError):
    """Several errors in rule files: one a line of the message, each starting with `path:line`."""


class LimitError(RuleError):
    """Laws that exceeded the limit of time or memory."""


class OptionError(MirageError):
    """An option with a wrong value."""


class UnsupportedError(MirageError):
    """A well-formed graph with an op or shape that this stage does not support."""


class TiedToSizeError(UnsupportedError):
    """A graph that has no meaning at other sizes: an op is tied to the present one, or a block holds less."""
