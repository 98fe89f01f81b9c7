"""A faster __init__ for frozen dataclasses. It is for classes with many new instances a second."""

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def fast_init(cls: type[T]) -> type[T]:
    """Replace the __init__ of a frozen dataclass that has slots. The new __init__ takes a third of the time.

    The signature stays the same. The class is frozen, so the __init__ of dataclass sets each attribute by name. The new
    __init__ sets the slots directly. It does not call __post_init__.
    """
    scope: dict[str, Any] = {"_MISSING": MISSING}
    positional, named, body = ["self"], list[str](), list[str]()
    for field in fields(cls):  # type: ignore[arg-type]
        name, value = field.name, field.name
        scope[f"_set_{name}"] = cls.__dict__[name].__set__
        if field.default is not MISSING:
            scope[f"_default_{name}"] = field.default
        elif field.default_factory is not MISSING:
            scope[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        if not field.init:
            value = f"_default_{name}" if field.default is not MISSING else f"_make_{name}()"
        else:
            default = f"=_default_{name}" if field.default is not MISSING else ""
            default = "=_MISSING" if field.default_factory is not MISSING else default
            (named if field.kw_only else positional).append(name + default)
        body.append(f"    _set_{name}(self, {value})")
    arguments = ", ".join([*positional, *(["*", *named] if named else [])])
    exec(f"def __init__({arguments}):\n" + "\n".join(body), scope)  # noqa: S102 - as dataclass itself does
    made = scope["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = cls.__init__.__annotations__
    cls.__init__ = made  # type: ignore[method-assign]
    return cls
