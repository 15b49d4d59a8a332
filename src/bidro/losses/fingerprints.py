"""What distinguishes losses and problems: digests of all that a function computes with, to the last constant.

Of a user's function that is its code with the constants in it, its defaults, what it closes over, and the
globals that it names, each in the same way. Python itself and the packages in `_BY_VERSION` stand for
themselves, by name and version. Where something has no such digest, it is not known whether a loss is still
the same, and `UnknownFingerprintError` says why; then nothing can be resumed.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.pytrees import loaded_jax, namespace

if TYPE_CHECKING:
    from bidro.losses.base import Loss

_BY_VERSION = frozenset({"bidro", "jax", "jaxlib", "numpy", "scipy", "torch"})
_UNKNOWN = "unknown: "
_PLAIN = (type(None), type(Ellipsis), bool, int, float, complex, str, bytes, np.generic, np.dtype)
# Of a class, what says nothing of what it computes, or is made as it is used.
_OF_CLASSES = (
    frozenset({"__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate__"})
    | {"__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__hash__"}
    | {"__match_args__", "__parameters__", "__orig_bases__", "__dataclass_params__", "__dataclass_fields__"}
)
# What was met before, by id: its number, and itself, so that no other thing gets the id.
_Met = dict[int, tuple[int, Any]]


class UnknownFingerprintError(BidroError):
    """It is not known whether a loss is the same as another."""


def fingerprint_of(loss: Loss, kinds: Iterable[type], words: Any, parts: Iterable[Any]) -> str:
    """Of a problem: its loss, the classes of its sets, what its repr shows, and numbers to the last bit.
    Where the loss or a class has none, the reason, which `require_known` raises."""
    try:
        codes = (loss.code_digest, *map(digest_of, kinds))
        digest = hashlib.blake2b(repr((words, codes)).encode())
    except UnknownFingerprintError as error:
        return f"{_UNKNOWN}{error}"
    for part in parts:
        numbers = isinstance(part, np.ndarray) or namespace(part) is not np
        digest.update(np.ascontiguousarray(part).data if numbers else repr(part).encode())
    return digest.hexdigest()


def require_known(fingerprint: str) -> None:
    """Raise BidroError where a run cannot be resumed, as it is not known whether it is the same."""
    if fingerprint.startswith(_UNKNOWN):
        raise BidroError(
            "This cannot be resumed, as it is unknown whether the loss is the same: "
            f"{fingerprint.removeprefix(_UNKNOWN)}; make the loss of functions, numbers and arrays, or run "
            "it in one go."
        )


def digest_of(thing: Any) -> str:
    """The same in every process for what computes the same. Raises UnknownFingerprintError where that is not
    known."""
    return hashlib.blake2b(repr(_parts(thing, {})).encode(), digest_size=16).hexdigest()


def _parts(thing: Any, met: _Met) -> Any:
    """Texts and tuples of them that say what a thing is; of what was met before, its number."""
    if isinstance(thing, enum.Enum):
        return ("enum", _parts(type(thing), met), thing.name)
    if isinstance(thing, _PLAIN):
        return (type(thing).__name__, repr(thing))
    if traceable := namespace(thing) is not np:
        jax = loaded_jax()
        if isinstance(thing, jax.core.Tracer):
            raise UnknownFingerprintError("it holds a value that is being traced")
        if jax.numpy.issubdtype(thing.dtype, jax.dtypes.prng_key):
            return ("key", _parts(np.asarray(jax.random.key_data(thing)), met))
    if traceable or (isinstance(thing, np.ndarray) and thing.dtype != object):
        numbers = np.ascontiguousarray(thing)
        return ("array", str(thing.dtype), thing.shape, hashlib.blake2b(numbers.tobytes()).hexdigest())
    if (name := _known_by_name(thing)) is not None:
        return ("library", name)
    if id(thing) in met:
        return ("met", met[id(thing)][0])
    met[id(thing)] = (len(met), thing)
    return (type(thing).__name__, *_content(thing, met))


def _content(thing: Any, met: _Met) -> Iterator[Any]:
    """What is inside of something that is neither plain nor known by its name."""
    if isinstance(thing, types.FunctionType):
        yield _code(thing.__code__, thing.__globals__, met)
        yield _parts((thing.__defaults__, thing.__kwdefaults__), met)
        for cell in thing.__closure__ or ():
            yield _parts(_held(cell), met)
    elif isinstance(thing, types.MethodType):
        yield from (_parts(thing.__func__, met), _parts(thing.__self__, met))
    elif isinstance(thing, functools.partial):
        yield _parts((thing.func, thing.args, thing.keywords), met)
    elif isinstance(thing, staticmethod | classmethod):
        yield _parts(thing.__func__, met)
    elif isinstance(thing, property):
        yield _parts((thing.fget, thing.fset), met)
    elif isinstance(thing, tuple | list):
        yield from (_parts(part, met) for part in thing)
    elif isinstance(thing, set | frozenset):
        # In no order, so that none of them is the first to be met.
        yield from sorted(repr(_parts(part, dict(met))) for part in thing)
    elif isinstance(thing, Mapping):
        yield from (_parts(pair, met) for pair in thing.items())
    elif isinstance(thing, type):
        own = {name: part for name, part in vars(thing).items() if name not in _OF_CLASSES}
        slots = {name for name in own if isinstance(own[name], types.MemberDescriptorType)}
        yield _parts((thing.__qualname__, thing.__bases__), met)
        yield _parts({name: part for name, part in own.items() if name not in slots}, met)
    elif isinstance(thing, np.ndarray):
        yield _parts((thing.shape, thing.ravel().tolist()), met)
    elif hasattr(thing, "detach") and hasattr(thing, "numpy"):
        yield _parts(thing.detach().cpu().numpy(), met)
    elif isinstance(thing, functools.cached_property):
        yield _parts(thing.func, met)
    elif hasattr(thing, "__wrapped__"):
        yield _parts(thing.__wrapped__, met)
    else:
        yield from _of_object(thing, met)


def _of_object(thing: Any, met: _Met) -> Iterator[Any]:
    """Its class and its attributes; those that a cached property has left follow from the others."""
    kind = type(thing)
    if isinstance(thing, types.ModuleType):
        raise UnknownFingerprintError(f"it uses the module '{thing.__name__}' as a whole")
    names = [name for base in kind.__mro__ for name in _slots(base)]
    if not hasattr(thing, "__dict__") and not names:
        raise UnknownFingerprintError(f"it uses an object of type '{kind.__module__}.{kind.__qualname__}'")
    own = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    for name, part in getattr(thing, "__dict__", {}).items():
        if not isinstance(getattr(kind, name, None), functools.cached_property):
            own[name] = part
    yield _parts(kind, met)
    yield _parts(own, met)


def _slots(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return tuple(name for name in ((slots,) if isinstance(slots, str) else slots) if name != "__dict__")


def _code(code: types.CodeType, known: Mapping[str, Any], met: _Met) -> Any:
    """Instructions, constants and names, with what the names of globals stand for."""
    constants = [
        _code(one, known, met) if isinstance(one, types.CodeType) else _parts(one, met)
        for one in code.co_consts
    ]
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    table = getattr(code, "co_exceptiontable", b"")
    return (code.co_code.hex(), table.hex(), counts, names, constants, list(_globals(code, known, met)))


def _globals(code: types.CodeType, known: Mapping[str, Any], met: _Met) -> Iterator[Any]:
    """What global names stand for; of a module, what is taken from it."""
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME" and not _by_version(step.argval):
            raise UnknownFingerprintError(f"it imports the module '{step.argval}' as it runs")
        if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        name = step.argval
        if name not in known:
            yield (name, "builtin" if hasattr(builtins, name) else "undefined")
            continue
        value = known[name]
        for after in steps[place + 1 :]:
            if not isinstance(value, types.ModuleType) or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            if _by_version(value.__name__) or not hasattr(value, after.argval):
                break  # instructions and names say the rest
            value, name = getattr(value, after.argval), f"{name}.{after.argval}"
        yield (name, _parts(value, met))


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "nothing yet"


def _by_version(name: str) -> bool:
    root = name.partition(".")[0]
    return root in _BY_VERSION or root in sys.stdlib_module_names


def _version(name: str) -> str:
    root = sys.modules.get(name.partition(".")[0])
    return str(getattr(root, "__version__", sys.version_info[:2]))


def _known_by_name(thing: Any) -> str | None:
    """The name and version of what Python or one of the packages has under its name; None for all else."""
    if isinstance(thing, types.ModuleType):
        return f"{thing.__name__} {_version(thing.__name__)}" if _by_version(thing.__name__) else None
    if isinstance(thing, np.ufunc):
        return f"numpy.{thing.__name__} {np.__version__}"
    where = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if not isinstance(where, str) or not isinstance(name, str) or not _by_version(where):
        return None
    found: Any = sys.modules.get(where)
    for part in name.split("."):
        found = getattr(found, part, None)
    same = found is thing or (isinstance(thing, types.BuiltinMethodType) and found == thing)
    return f"{where}.{name} {_version(where)}" if same else None
