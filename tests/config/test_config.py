"""Settings are declared once, and everything else about them follows."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire import config
from quire.config import BadSetting, Config, load
from quire.runner.cache_plan import CacheBytes
from quire.runner.memory import ModelMemory, fitting_blocks
from quire.types.errors import QuireError

pytestmark = pytest.mark.pure


def test_defaults_hold_without_flags_and_environment():
    assert load(environ={}) == Config()


def test_a_flag_wins_over_the_environment_and_that_over_the_default():
    environ = {"QUIRE_MAX_ROWS": "7", "QUIRE_BLOCK_TOKENS": "32", "UNRELATED": "x"}
    loaded = load({"max_rows": "9"}, environ)
    assert loaded.scheduler.max_rows == 9 and loaded.cache.block_tokens == 32


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("max_rows", "many", "whole number"),
        ("max_rows", "0", "at least 1"),
        ("stream_gap", "fast", "a number"),
        ("stream_gap", "nan", "a number"),
        ("stream_gap", "inf", "at most 2147483647"),
        ("port", "80000", "at most 65535"),
        ("port", -1, "at least 0"),
        ("port", True, "a whole number"),
        ("port", 80.5, "a whole number"),
        ("max_context", 2**70, "at most 2147483647"),
        ("memory_share", "1.5", "at most 1"),
        ("fronts", 100_000, "at most 1024"),
        ("captures", "perhaps", "true or false"),
        ("captures", 1, "true or false"),
        ("host", "a\0b", "NUL"),
        ("host", 7, "text"),
        ("block_tokens", "17", "choose from"),
        ("pressure", "panic", "choose from evict, queue, reject"),
        ("experts_on_host", "some", "auto, off or a number of GB"),
        ("experts_on_host", "-1", "auto, off or a number of GB"),
        ("experts_on_host", "nan", "auto, off or a number of GB"),
        ("no_such", "1", "no setting"),
    ],
)
def test_a_bad_value_is_refused_with_the_name_and_what_it_takes(name, value, says):
    with pytest.raises(BadSetting, match=says) as caught:
        load({name: value}, {})
    assert caught.value.field == name and name in caught.value.public


ODD = st.one_of(
    st.integers(),
    st.sampled_from([-1, 0, 2**31, 2**63, 2**70, -(2**70), True, None, "", "nan", "-inf", "9" * 5000, (), b"x"]),
    st.floats(),
    st.text(max_size=20),
)


@given(st.sampled_from(list(config.settings())), ODD)
@settings(max_examples=600, deadline=None)
def test_whatever_a_setting_is_given_is_taken_or_refused_by_its_name(declared, value):
    for flags, environ in (({declared.name: value}, {}), ({}, {declared.variable: str(value)})):
        try:
            loaded = load(flags, environ)
        except QuireError as error:
            names = {declared.name, "max_step_tokens"}  # the second, if max_rows is the larger one
            assert isinstance(error, BadSetting) and error.field in names and error.field in error.public
            continue
        taken = getattr(getattr(loaded, declared.section), declared.name)
        assert taken is None or isinstance(taken, declared.kind | (int if declared.kind is float else declared.kind))
        if isinstance(taken, int | float) and not isinstance(taken, bool):
            assert (declared.low is None or taken >= declared.low) and taken <= declared.high


def test_a_step_must_have_room_for_every_running_request():
    with pytest.raises(BadSetting, match="max_step_tokens must be at least max_rows"):
        load({"max_rows": 100, "max_step_tokens": 50}, {})


def test_what_is_left_open_is_filled_from_the_device():
    assert load({"num_blocks": "auto"}, {}).cache.num_blocks is None
    assert fitting_blocks(load(environ={}), ModelMemory(total_bytes=1000, fixed_bytes=100, cache=CacheBytes(10))) == 80


def test_no_memory_for_the_cache_is_an_error_with_the_numbers():
    with pytest.raises(BadSetting, match="950 MB of 900 MB"):
        fitting_blocks(Config(), ModelMemory(total_bytes=10**9, fixed_bytes=950 * 10**6, cache=CacheBytes(10)))


def test_every_setting_has_help_and_a_name_of_its_own():
    declared = list(config.settings())
    assert len({each.name for each in declared}) == len(declared) > 15
    for each in declared:
        assert each.help.endswith(".") and re.fullmatch(r"--[a-z-]+", each.flag)
        each.check(each.default)


def test_the_settings_page_is_the_one_that_the_declarations_make():
    page = Path(__file__).parents[2] / "docs" / "SETTINGS.md"
    assert page.read_text() == config.reference(), "run: python -c 'from quire.config import *; print(reference())'"
