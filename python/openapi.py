"""Reads the OpenAPI document of a search service: its operations, and the Python types of their requests and answers.

Anything that this program cannot translate is an error. Limits that a service's settings decide, such as the greatest length of
a text, are left out.
"""

import json
import keyword
from dataclasses import dataclass
from typing import Any, Literal

# Operations with these tags become methods of the client itself; every other tag becomes an attribute, such as `client.items`.
FLAT = {"search", "embedding", "operation"}
# A POST with one of these tags changes nothing, so it may be sent again. The others may if they have a repeat key.
READING = {"search", "embedding"}
REPEATABLE_METHODS = {"get", "put", "delete"}
REPEAT_KEY = "Idempotency-Key"
JSON, LINES = "application/json", "application/x-ndjson"
REF = "#/components/schemas/"
UNIONS = ("oneOf", "anyOf")
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}

Json = dict[str, Any]
Side = Literal["request", "answer"]


class Unsupported(Exception):
    """A part of the document that this program cannot translate."""


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    doc: str
    required: bool
    # the default of an answer's field that may be absent
    default: str = "None"


@dataclass(frozen=True)
class Record:
    """An object with named fields: a typed dictionary in requests, a dataclass in answers."""

    doc: str
    fields: list[Field]
    # an answer with further fields, which are kept
    is_open: bool = False


@dataclass(frozen=True)
class Argument:
    field: Field
    # path, query, header, or how it becomes the body: a field of it, all of it as JSON, or all of it as JSON lines
    place: Literal["path", "query", "header", "field", "json", "lines"]
    # name in the request
    wire: str
    positional: bool


@dataclass(frozen=True)
class Operation:
    # empty: a method of the client itself
    group: str
    name: str
    method: str
    path: str
    doc: str
    arguments: list[Argument]
    answer: str
    repeatable: bool


class Schemas:
    """Translates schemas into Python types, and collects the records that the types name."""

    def __init__(self, document: Json) -> None:
        self.known: Json = document["components"]["schemas"]
        self.requests: dict[str, Record] = {}
        self.answers: dict[str, Record] = {}
        # objects that requests send with any fields: plain dictionaries, also in answers, which need their names and docs
        self.any_fields: set[str] = set()
        self.dicts: dict[str, str] = {}

    def resolve(self, schema: Json) -> Json:
        """The schema that a reference means; a description beside the reference takes precedence."""
        if "$ref" not in schema:
            return schema
        target: Json = self.known[schema["$ref"].removeprefix(REF)]
        return target | {name: value for name, value in schema.items() if name != "$ref"}

    def type_of(self, schema: Json, side: Side, hint: str) -> str:
        """Python type of a schema; `hint` names an object that has no name of its own."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(REF)
            target = self.known[name]
            if "properties" in target or "allOf" in target:
                return self.record(name.removesuffix("Shape"), target, side)
            return self.type_of(target, side, name)
        if "properties" in schema:
            return self.record(hint, schema, side)
        for union in UNIONS:
            if union in schema:
                return joined([self.type_of(one, side, hint) for one in schema[union]])
        if "enum" in schema and schema.get("type") == "string":
            return f"Literal[{', '.join(map(quoted, schema['enum']))}]"
        kinds = schema.get("type")
        if kinds is None:
            raise Unsupported(f"a schema without a type: {json.dumps(schema)}")
        return joined([self.one_type(kind, schema, side, hint) for kind in ([kinds] if isinstance(kinds, str) else kinds)])

    def one_type(self, kind: str, schema: Json, side: Side, hint: str) -> str:
        if kind in SCALARS:
            return SCALARS[kind]
        if kind == "array":
            item = self.type_of(schema["items"], side, hint)
            return f"Sequence[{item}]" if side == "request" else f"list[{item}]"
        if kind == "object":
            values = schema.get("additionalProperties")
            value = self.type_of(values, side, hint) if isinstance(values, dict) else "Any"
            return f"Mapping[str, {value}]" if side == "request" else f"dict[str, {value}]"
        raise Unsupported(f"the type {kind}")

    def record(self, name: str, schema: Json, side: Side) -> str:
        """Name of an object's type, which is kept for the module."""
        if side == "request" and schema.get("additionalProperties") is not False:
            self.any_fields.add(name)
            return "Mapping[str, Any]"
        if side == "answer" and name in self.any_fields:
            self.dicts[name] = text_of(schema)
            return name
        records = self.requests if side == "request" else self.answers
        schema, is_open = without_all_of(schema)
        record = Record(text_of(schema), self.fields(schema, side, name if side == "answer" else ""), is_open)
        if records.setdefault(name, record) != record or (name in self.requests and name in self.answers):
            raise Unsupported(f"two different schemas with the name {name}")
        return name

    def fields(self, schema: Json, side: Side, prefix: str) -> list[Field]:
        required = schema.get("required", [])
        optional = [name for name in schema["properties"] if name not in required]
        return [self.field(name, schema["properties"][name], side, name in required, prefix) for name in [*required, *optional]]

    def field(self, name: str, schema: Json, side: Side, required: bool, prefix: str = "") -> Field:
        type_, default = self.type_of(schema, side, prefix + name.title().replace("_", "")), "None"
        if side == "answer" and not required:
            if type_.startswith("list[") and "| None" not in type_:
                # a list without entries may be left out
                default = "field(default_factory=list)"
            else:
                type_ = joined([type_, "None"])
        return Field(name, type_, self.doc(schema), required, default)

    def doc(self, schema: Json) -> str:
        """Description of a schema, or of what it refers to, with its default."""
        schema = self.resolve(schema)
        text = text_of(schema)
        if not text:
            options = [one for union in UNIONS for one in schema.get(union, [])]
            others = [self.doc(one) for one in options if one.get("type") != "null"]
            text = others[0] if len(others) == 1 else ""
        if schema.get("default") is None:
            return text
        return f"{sentence(text)} Default: {schema['default']!r}.".lstrip()


def without_all_of(schema: Json) -> tuple[Json, bool]:
    """An object with further fields is written as the sum of any object and one with properties."""
    if "allOf" not in schema:
        return schema, False
    if len(schema["allOf"]) != 2 or schema["allOf"][0] != {"type": "object"} or "properties" not in schema["allOf"][1]:
        raise Unsupported(f"this allOf: {json.dumps(schema)}")
    return schema["allOf"][1] | {name: value for name, value in schema.items() if name != "allOf"}, True


def text_of(schema: Json) -> str:
    return " ".join(str(schema.get("description", "")).split())


def joined(types: list[str]) -> str:
    """Union of types, with None last."""
    parts = [part for type_ in types for part in split_union(type_)]
    several = sorted(dict.fromkeys(parts), key=lambda part: part == "None")
    return " | ".join(several)


def split_union(type_: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(type_):
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and depth == 0:
            parts.append(type_[begin:at].strip())
            begin = at + 1
    return [*parts, type_[begin:].strip()]


def read_operations(document: Json, schemas: Schemas) -> list[Operation]:
    """The operations that a program calls. Probes and metrics, which answer in plain text, are left out."""
    entries = [(path, method, entry) for path, methods in document["paths"].items() for method, entry in methods.items()]
    entries = [one for one in entries if "text/plain" not in one[2]["responses"]["200"]["content"]]
    # requests before answers: they tell which objects have any fields
    arguments = [read_arguments(entry, schemas) for _, _, entry in entries]
    operations = [read_operation(*one, given, schemas) for one, given in zip(entries, arguments, strict=True)]
    names = [f"{one.group}.{one.name}" for one in operations]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise Unsupported(f"several operations have the name {', '.join(repeated)}")
    return sorted(operations, key=lambda operation: (operation.group, operation.name))


def read_arguments(entry: Json, schemas: Schemas) -> list[Argument]:
    arguments = [read_parameter(parameter, schemas) for parameter in entry.get("parameters", [])]
    if "requestBody" in entry:
        arguments += read_body(entry["requestBody"], schemas)
    arguments.sort(key=lambda one: (not one.positional, not one.field.required))
    if wrong := [one.field.name for one in arguments if not is_name(one.field.name)]:
        raise Unsupported(f"{entry['operationId']} has the parameters {wrong}, which Python cannot name")
    return arguments


def is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def read_operation(path: str, method: str, entry: Json, arguments: list[Argument], schemas: Schemas) -> Operation:
    [tag] = entry["tags"]
    repeatable = method in REPEATABLE_METHODS or tag in READING or any(one.wire == REPEAT_KEY for one in arguments)
    return Operation(
        group="" if tag in FLAT else tag,
        # ids are unique in the document, names in their group
        name=entry["operationId"].removesuffix(f"_{tag}"),
        method=method.upper(),
        path=path,
        doc="\n\n".join(part for part in (sentence(entry["summary"]), text_of(entry)) if part),
        arguments=arguments,
        answer=schemas.type_of(entry["responses"]["200"]["content"][JSON]["schema"], "answer", ""),
        repeatable=repeatable,
    )


def sentence(text: str) -> str:
    return text if text.endswith(".") or not text else text + "."


def read_parameter(parameter: Json, schemas: Schemas) -> Argument:
    place = parameter["in"]
    if place not in ("path", "query", "header"):
        raise Unsupported(f"the parameter {parameter['name']} in {place}")
    name = parameter["name"].lower().replace("-", "_")
    described = parameter["schema"] | {"description": parameter.get("description", "")}
    field = schemas.field(name, described, "request", parameter["required"])
    return Argument(field, place, parameter["name"], positional=place == "path")


def read_body(body: Json, schemas: Schemas) -> list[Argument]:
    [(content, entry)] = body["content"].items()
    schema = entry["schema"]
    if content == LINES:
        return [Argument(schemas.field("lines", schema, "request", True), "lines", "", positional=True)]
    if content != JSON:
        raise Unsupported(f"a body of {content}")
    # a body that may be left out is an object or null
    [schema] = [one for one in schema.get("oneOf", [schema]) if one.get("type") != "null"]
    resolved = schemas.resolve(schema)
    if resolved.get("additionalProperties") is not False and not resolved.get("required"):
        # any fields of the catalogue
        return [Argument(schemas.field("fields", schema, "request", True), "json", "", positional=True)]
    if "properties" not in resolved:
        return []
    # either of two fields is needed: the first can be given without its name
    either = resolved.get("anyOf", [{}])[0].get("required", [])
    fields = schemas.fields(resolved, "request", "")
    return [Argument(field, "field", field.name, positional=field.required or field.name in either) for field in fields]


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
