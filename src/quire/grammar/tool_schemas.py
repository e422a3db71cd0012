"""Schemas of tools' arguments as the grammar of a call takes them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from quire.grammar.alternatives import SchemaOptions
from quire.grammar.schema import parse_schema
from quire.grammar.schema_writer import exact_schema
from quire.types.chat import Tool
from quire.types.errors import InvalidRequest


def exact_parameters(open_objects: bool, tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments. Without one, there are no arguments. An error names the tool.

    `open_objects` is the setting of this name; objects of a strict tool are closed in any case.
    """
    schema = tool.parameters or {"type": "object", "properties": {}}
    try:
        text = json.dumps(schema, ensure_ascii=False)
        return _exact(text, SchemaOptions(tool.strict or not open_objects, is_lenient=not tool.strict))
    except InvalidRequest as error:
        raise InvalidRequest(f"The tool {tool.name!r}: {error.public}", field="tools") from error
    except RecursionError as error:
        raise InvalidRequest(f"The parameters of {tool.name!r} are nested too deeply.", field="tools") from error


@lru_cache(maxsize=256)
def _exact(text: str, options: SchemaOptions) -> dict[str, Any]:
    """Cached: clients send the same tools with every request."""
    return exact_schema(parse_schema(text), options)
