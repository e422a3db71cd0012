"""Every error has a code, a status and a sentence; and codes are not shared."""

import pytest

from quire.types import errors

pytestmark = pytest.mark.pure


def all_errors(kind: type[errors.QuireError] = errors.QuireError) -> list[type[errors.QuireError]]:
    return [kind, *(below for each in kind.__subclasses__() for below in all_errors(each))]


def test_codes_are_unique_and_statuses_are_http_errors():
    kinds = [kind for kind in all_errors() if kind.__module__ == errors.__name__]
    assert len({kind.code for kind in kinds}) == len(kinds) > 5
    assert all(400 <= kind.status < 600 for kind in kinds)


def test_numbers_and_advice_are_in_the_message():
    error = errors.Overloaded("Too much.", retry_after=2.5)
    assert error.public == "Too much. Try again in 2.5 s." and error.status == 503
    assert "4097" in errors.ContextTooLong(4097, 4096).public and "4095" in errors.ContextTooLong(4097, 4096).public
