"""The default folder of models on each system."""

from pathlib import Path

import pytest

from quire.config import home_folder, load

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "platform, environ, folder",
    [
        ("linux", {}, Path.home() / ".local/share/quire"),
        ("linux", {"XDG_DATA_HOME": "/data"}, Path("/data/quire")),
        ("linux", {"XDG_DATA_HOME": "relative"}, Path.home() / ".local/share/quire"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, Path.home() / "Library/Application Support/quire"),
        ("win32", {"LOCALAPPDATA": "/users/me/local"}, Path("/users/me/local/quire")),
        ("win32", {}, Path.home() / "AppData/Local/quire"),
        ("linux", {"QUIRE_HOME": "/models", "XDG_DATA_HOME": "/data"}, Path("/models")),
        ("linux", {"QUIRE_HOME": "~/models"}, Path.home() / "models"),
        ("linux", {"QUIRE_HOME": "models"}, Path.cwd() / "models"),
        ("linux", {"QUIRE_HOME": ""}, Path.home() / ".local/share/quire"),
    ],
)
def test_models_are_in_the_users_data_folder_by_default(platform, environ, folder):
    assert home_folder(load(environ=environ), environ, platform) == folder


def test_a_flag_overrides_the_environment():
    assert home_folder(load({"home": "/flag"}, {"QUIRE_HOME": "/variable"}), {}) == Path("/flag")
