"""Turns the JSON of an answer into the dataclasses of `souk.schemas`."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Parser = Callable[[Any], Any]


class Open:
    """Marks an answer that keeps further fields in its own field `fields`."""


def parse(kind: type[T], value: Any) -> T:
    """The value as that type. Fields of an answer that its dataclass does not know are dropped. ValueError if one is missing."""
    parser = parser_of(cast("Any", kind))
    result: T = value if parser is None else parser(value)
    return result


@cache
def parser_of(kind: Any) -> Parser | None:
    """None if JSON's own value is the result."""
    if is_dataclass(kind):
        return object_parser(kind)
    inner = next((parser for parser in map(parser_of, get_args(kind)) if parser is not None), None)
    if inner is None:
        return None
    if get_origin(kind) is list:
        return lambda value: [inner(one) for one in value]
    if get_origin(kind) in (Union, types.UnionType):
        return lambda value: None if value is None else inner(value)
    raise TypeError(f"answers of the type {kind} cannot be parsed")


def object_parser(kind: Any) -> Parser:
    known = [one for one in fields(kind) if one.name != "fields" or not issubclass(kind, Open)]
    hints = get_type_hints(kind)
    parsers = {one.name: parser_of(hints[one.name]) for one in known}
    required = [one.name for one in known if one.default is MISSING and one.default_factory is MISSING]

    def parse_object(value: Any) -> Any:
        if not isinstance(value, dict) or not value.keys() >= set(required):
            raise ValueError(f"expected {kind.__name__} with {', '.join(required) or 'named fields'}")
        given = {
            name: value[name] if parser is None else parser(value[name]) for name, parser in parsers.items() if name in value
        }
        if issubclass(kind, Open):
            given["fields"] = {name: one for name, one in value.items() if name not in parsers}
        return kind(**given)

    return parse_object
