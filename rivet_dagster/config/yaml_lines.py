"""YAML text -> plain data plus the line of every key, with ``${VAR}`` put in.

Variables are replaced inside scalars after parsing, so a value can hold any characters without
changing the structure of the file. The YAML 1.2 core rules apply: ``no`` is text, ``1_000`` is text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from rivet_dagster.config.base import KeyPath, Place, Plain, Problem

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML built without libyaml: slower, the same result
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

_VARIABLE = re.compile(r"\$\{([^}\n]*)\}")
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES = re.compile(r":\s+\{[^}:,]*\}")
_TAB = re.compile(r"^[ ]*\t")
_MAX_NODES = 500_000  # aliases of aliases can describe a file of any size
_TAG = "tag:yaml.org,2002:"


class _Loader(_BaseLoader):
    """Composes nodes only; which plain scalars are numbers is decided by the models."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute


class YamlProblem(Exception):
    """The text is not a config at all. line: 1-based, None if unknown."""

    def __init__(self, line: int | None, message: str, fix: str) -> None:
        super().__init__(message)
        self.line, self.message, self.fix = line, message, fix


@dataclass(slots=True)
class Document:
    """data: mappings, lists, text, None. substituted: key path -> values that variables brought in."""

    data: dict[str, Any]
    place: Place
    problems: list[Problem] = field(default_factory=list)
    substituted: dict[KeyPath, list[str]] = field(default_factory=dict)


def read_yaml(text: str, file: str, params: Mapping[str, str] | None = None) -> Document:
    """Parse ``text``. Raises YamlProblem where there is no mapping to look at; other faults are collected."""
    walker = _Walker(text, file, params or {})
    try:
        root = yaml.compose(walker.masked, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax(text, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise YamlProblem(
            line, "a character that YAML does not allow", "remove the control character"
        ) from None
    except RecursionError:
        raise YamlProblem(None, "nested too deeply", "flatten the file") from None
    if root is None:
        raise YamlProblem(None, "the file is empty", "write a `source:` block and an `exports:` list")
    if not isinstance(root, yaml.MappingNode):
        raise YamlProblem(
            root.start_mark.line + 1,
            "the top level is not a mapping",
            "start the file with `source:` and `exports:`",
        )
    walker.document.data = walker.value(root, (), frozenset())
    return walker.document


class _Walker:
    def __init__(self, text: str, file: str, params: Mapping[str, str]) -> None:
        self.params = params
        self.names: list[str] = []
        self.nodes = 0
        self.document = Document({}, Place(file, {}))
        # `${VAR}` cannot stand unquoted in a flow mapping, so variables travel through the parser as
        # private-use characters that the text itself does not hold.
        free = (chr(c) for c in range(0xE000, 0xF8FF) if chr(c) not in text)
        self.open, self.close = next(free), next(free)
        self.hole = re.compile(f"{self.open}([0-9]+){self.close}")
        self.masked = _VARIABLE.sub(self._mask, text)

    def _mask(self, found: re.Match[str]) -> str:
        self.names.append(found[1])
        return f"{self.open}{len(self.names) - 1}{self.close}"

    def value(self, node: yaml.Node, path: KeyPath, above: frozenset[int]) -> Any:
        self.nodes += 1
        if id(node) in above or self.nodes > _MAX_NODES or len(path) > 50:
            raise YamlProblem(
                node.start_mark.line + 1, "aliases or nesting without end", "write the values out instead"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self._problem(path, node, f"the tag {node.tag} is not supported", "remove the tag")
        above = above | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            items = []
            for at, item in enumerate(node.value):
                self.document.place.lines[(*path, at)] = item.start_mark.line + 1
                items.append(self.value(item, (*path, at), above))
            return items
        return self._mapping(node, path, above)

    def _mapping(self, node: yaml.Node, path: KeyPath, above: frozenset[int]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lines = self.document.place.lines
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(
                    path, key_node, "a key is not text", "write a plain key; quote a value that has braces"
                )
                continue
            key = self._text(key_node, path)[0]
            here, line = (*path, key), key_node.start_mark.line + 1
            if key in result:
                self._problem(
                    here,
                    key_node,
                    f"the key stands twice in one mapping (first in line {lines[here]})",
                    "keep one of the two",
                )
                continue
            lines[here] = line
            result[key] = self.value(value_node, here, above)
        return result

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> str | None:
        text, replaced = self._text(node, path)
        plain = not node.style and node.tag == f"{_TAG}str"
        if node.tag == f"{_TAG}null" or (plain and not replaced and text in _NULL):
            return None
        if node.tag in (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool"):
            return Plain(text)
        if node.tag not in (f"{_TAG}str", "!"):
            self._problem(path, node, f"the tag {node.tag} is not supported", "remove the tag")
        return Plain(text) if plain else text

    def _text(self, node: yaml.ScalarNode, path: KeyPath) -> tuple[str, bool]:
        """The scalar with variables put in, once: a value that looks like a variable stays as it is."""
        source: str = node.value
        if self.open not in source:
            return source, False

        def fill(found: re.Match[str]) -> str:
            name = self.names[int(found[1])]
            value = self.params[name] if name in self.params else os.environ.get(name)
            if value is None:
                self._unset(path, node, name)
                return ""
            if "\0" in value:
                self._problem(path, node, f"the value of {name} holds a NUL byte", f"correct {name}")
                return ""
            self.document.substituted.setdefault(path, []).append(value)
            return value

        return self.hole.sub(fill, source), True

    def _unset(self, path: KeyPath, node: yaml.Node, name: str) -> None:
        fix = f"set {name} in the environment or pass it as a parameter"
        if not _NAME.fullmatch(name):
            fix = "write ${NAME} with letters, digits and `_`; defaults in the braces are not supported"
        self._problem(path, node, f"`${{{name}}}` is not set", fix, "RIVET_CONFIG_ENV_UNSET")

    def _problem(
        self, path: KeyPath, node: yaml.Node, message: str, fix: str, code: str = "RIVET_CONFIG_INVALID"
    ) -> None:
        line = node.start_mark.line + 1
        if self.document.place.lines.get(path) != line:
            path = (*path, f"\0{line}")  # an address of its own: the second of two keys, a key inside a list
            self.document.place.lines[path] = line
        self.document.problems.append(Problem(path, message, fix, code))


def _syntax(text: str, error: yaml.MarkedYAMLError) -> YamlProblem:
    lines = text.splitlines()
    marks = [m.line for m in (error.problem_mark, error.context_mark) if m is not None]
    near = [n for n in marks if n < len(lines)]
    for at in [*near, *(n - 1 for n in near if n > 0)]:
        if _TAB.match(lines[at]):
            return YamlProblem(at + 1, "a TAB is used for indentation", "indent with spaces")
    for at in [*near, *(n - 1 for n in near if n > 0)]:
        if _BRACES.search(lines[at]):
            return YamlProblem(
                at + 1, "a value with braces is not quoted", 'put it in quotes: "{date}/orders"'
            )
    # what is never closed is wrong where it opens, not at the end of the file
    line = (marks[-1] if "end of stream" in str(error.problem) else marks[0]) + 1 if marks else None
    if "expected a single document" in str(error.context or "") + str(error.problem or ""):
        return YamlProblem(
            line, "the file holds more than one YAML document", "keep one and remove the `---` line"
        )
    what = str(error.problem or error.context or "cannot be read")
    return YamlProblem(line, f"not valid YAML: {what}", "check indentation, colons and quotes near this line")
