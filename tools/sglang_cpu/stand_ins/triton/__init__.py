"""A stand-in for Triton, which compiles GPU kernels, on machines that have no GPU to compile for.

SGLang's plain CPU path runs no Triton kernel, but its modules define many: they import `triton.…`, decorate
functions, subclass classes and annotate parameters. Here every such name exists. A submodule is made when it
is imported or looked up, a name that begins with a capital letter is an empty class, and anything called with
one function, as decorators are, gives that function back. A kernel that is launched by mistake fails: nothing
here can be indexed by a grid.
"""

import importlib.abc
import importlib.machinery
import sys
import types

VERSION = "3.0.0"


def cdiv(dividend: int, divisor: int) -> int:
    """Division rounded up: SGLang calls this one outside of kernels too."""
    return -(dividend // -divisor)


def next_power_of_2(n: int) -> int:
    """The least power of two that is not below n: likewise."""
    return 1 << max(n - 1, 0).bit_length()


class constexpr:
    """A value that a kernel knows when it is compiled; also used as an annotation."""

    def __init__(self, value: object = None) -> None:
        self.value = value


class Anything:
    """What a class of Triton's is here."""

    def __init__(self, *_: object, **__: object) -> None:
        """Takes whatever a decorator is configured with."""


class StandIn(types.ModuleType):
    """A module in which every name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # a package, so that imports below it are looked for
        self.__version__ = VERSION

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            value: object = type(name, (Anything,), {})
        else:
            value = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: object, **kwargs: object) -> object:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda function: function


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds everything below `triton`."""

    def find_spec(self, fullname: str, *_: object) -> object:
        """A stand-in's place for names below `triton`, none for others."""
        if not fullname.startswith("triton."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandIn:
        """The module itself."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


root = StandIn("triton")
root.__spec__, root.__file__ = __spec__, __file__
root.cdiv, root.next_power_of_2 = cdiv, next_power_of_2
sys.meta_path.insert(0, Finder())
sys.modules["triton"] = root  # who imports `triton` is given this module
root.language.constexpr = constexpr
root.backends.backends = {}  # what torch's compiler looks through, for a device that kernels are made for
