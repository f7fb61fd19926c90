"""What every section of rivet.yaml is made of: the model base, scalar types, problems.

Scalars arrive from the loader as text with their YAML spelling kept (``Plain``), so that a name like
``007`` or ``no`` stays what was written and a substituted ``${N}`` still becomes a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr
from pydantic_core import PydanticCustomError

KeyPath = tuple[str | int, ...]

LARGEST_INT: Final = 2**63 - 1

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class Plain(str):
    """An unquoted YAML scalar: text that may also be read as a number or a boolean."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a config. path: keys from the section that reports it (loader: from the root)."""

    path: KeyPath
    message: str
    fix: str
    code: str = "RIVET_CONFIG_INVALID"

    def under(self, *prefix: str | int) -> Problem:
        return replace(self, path=(*prefix, *self.path))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a config stands: its file and the line of each key path (1-based)."""

    file: str
    lines: dict[KeyPath, int]

    def line(self, path: Sequence[str | int]) -> int | None:
        """The line of ``path``, or of the nearest key above it that the file has."""
        keys = tuple(path)
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys)


@dataclass(frozen=True, slots=True)
class Context:
    """What checks may look at besides the models: the folder that relative paths start from."""

    dir: Path


class Section(BaseModel):
    """A mapping of rivet.yaml. Frozen; unknown keys are errors; values never appear in errors.

    ``problems`` reports what a type alone cannot tell: keys that exclude or need each other. The loader
    calls it once the whole file has the right types; a model built in code is not checked by itself.

    Modules of models leave ``from __future__ import annotations`` out: to evaluate the texts that it makes
    of their annotations takes 5 ms of every start.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_by_name=True,
        validate_by_alias=True,
        defer_build=True,  # the whole file has one validator; those of its sections would never be used
    )

    def problems(self, context: Context) -> Iterator[Problem]:
        return iter(())

    def given(self, key: str) -> bool:
        """Whether the file sets ``key`` to a value (an empty value counts as absent)."""
        return key in self.model_fields_set and getattr(self, key) is not None


def _read_text(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    raise PydanticCustomError("rivet_type", "must be text, not {got}", {"got": kind_of(value)})


def _not_blank(value: str) -> str:
    if value.strip():
        return value
    raise PydanticCustomError("rivet_type", "must not be empty")


def _read_int(value: Any) -> Any:
    if isinstance(value, Plain) and _INT.fullmatch(value):
        value = int(value, 0) if value[:2] in ("0o", "0x") else int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > LARGEST_INT:
            raise PydanticCustomError("rivet_type", "is larger than 64 bits hold")
        return value
    raise PydanticCustomError("rivet_type", "must be a whole number, not {got}", {"got": kind_of(value)})


def _read_number(value: Any) -> Any:
    if isinstance(value, Plain) and _FLOAT.fullmatch(value):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise PydanticCustomError("rivet_type", "must be a number, not {got}", {"got": kind_of(value)})


def _read_flag(value: Any) -> Any:
    if isinstance(value, Plain) and value in _BOOL:
        return _BOOL[value]
    if isinstance(value, bool):
        return value
    raise PydanticCustomError("rivet_type", "must be true or false, not {got}", {"got": kind_of(value)})


def read_list(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    raise PydanticCustomError("rivet_type", "must be a list, not {got}", {"got": kind_of(value)})


def plain_values(value: Any) -> Any:
    """A tree of YAML as Python has it: unquoted numbers, booleans and null are what they look like."""
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, Plain):
        if value in _BOOL:
            return _BOOL[value]
        for pattern, make in ((_INT, lambda text: int(text, 0)), (_FLOAT, float)):
            if pattern.fullmatch(value):
                return make(value)
    return str(value) if isinstance(value, str) else value


def kind_of(value: Any) -> str:
    """How a person calls the kind of ``value``; the value itself is never shown."""
    if value is None:
        return "empty"
    if isinstance(value, bool) or (isinstance(value, Plain) and value in _BOOL):
        return "true/false"
    if isinstance(value, Plain) and _FLOAT.fullmatch(value):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple):
        return "a list"
    return "a mapping" if isinstance(value, dict) else "a number"


Text = Annotated[str, BeforeValidator(_read_text)]
#: Text that names something: a column, a file, a variable.
Name = Annotated[str, BeforeValidator(_read_text), AfterValidator(_not_blank)]
Int = Annotated[int, BeforeValidator(_read_int)]
Number = Annotated[float, BeforeValidator(_read_number)]
Flag = Annotated[bool, BeforeValidator(_read_flag)]
Secret = Annotated[SecretStr, BeforeValidator(_read_text)]
TextList = Annotated[tuple[Text, ...], BeforeValidator(read_list)]


def unsafe_name(name: str) -> str | None:
    """Why ``name`` cannot be a file name; None if it can."""
    if not name or not name.strip():
        return "is empty"
    if any(ord(c) < 32 or ord(c) == 127 for c in name):
        return "holds a control character"
    if "/" in name or "\\" in name:
        return "holds a slash"
    if ".." in name or name.startswith("."):
        return "starts with a dot or holds `..`"
    return "is longer than 150 bytes" if len(name.encode()) > 150 else None
