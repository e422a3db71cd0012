"""Every folder of dialects/ is a dialect."""

import importlib
import json
import pkgutil

import pytest

from quire.serve import dialects
from quire.serve.admin.routes import method_of
from quire.serve.dialects.contract import (
    ChangeEndpoint,
    CountEndpoint,
    Dialect,
    GenerateEndpoint,
    RequestLimits,
    ShowEndpoint,
    SpeechEndpoint,
    VectorEndpoint,
)
from quire.types.errors import InvalidRequest, StepFailed

pytestmark = pytest.mark.pure

NAMES = [module.name for module in pkgutil.iter_modules(dialects.__path__) if module.ispkg]


def dialect(name: str) -> Dialect:
    found = importlib.import_module(f"quire.serve.dialects.{name}.dialect").DIALECT
    assert isinstance(found, Dialect)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_body_has_a_schema(name: str):
    one = dialect(name)
    bodies = {
        each.path
        for each in one.endpoints
        if isinstance(each, GenerateEndpoint | CountEndpoint | ChangeEndpoint | VectorEndpoint | SpeechEndpoint)
    }
    bodies |= {each.path for each in one.endpoints if isinstance(each, ShowEndpoint) and each.name_of}
    assert one.name == name and set(one.schemas) == bodies
    assert all(json.loads(json.dumps(schema)) for schema in one.schemas.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_error_is_json_with_its_sentence(name: str):
    for error in (InvalidRequest("No.", field="a"), StepFailed("No.")):
        body = dialect(name).error(error)
        assert json.loads(body) and b'"No."' in body


@pytest.mark.parametrize("name", NAMES)
def test_no_body_is_too_odd_to_be_refused(name: str):
    for endpoint in dialect(name).endpoints:
        if isinstance(endpoint, GenerateEndpoint | CountEndpoint | VectorEndpoint):
            for body in (b"", b"null", b"[]", b"{}", b"\xff"):
                with pytest.raises(InvalidRequest):
                    endpoint.decode(body, RequestLimits())
        if isinstance(endpoint, ChangeEndpoint):
            for body in (b"", b"null", b"[]", b"{}", b"\xff"):
                with pytest.raises(InvalidRequest):
                    endpoint.decode(body)


def test_no_two_endpoints_are_one():
    ends = [
        (method_of(endpoint), endpoint.path, getattr(endpoint, "header", ""))
        for name in NAMES
        for endpoint in dialect(name).endpoints
    ]
    assert len(set(ends)) == len(ends)
