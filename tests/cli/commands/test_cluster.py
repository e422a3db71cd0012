"""`quire cluster`: mistakes are reported before Ray is started."""

import pytest

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "words, said",
    [
        (("up",), "Give the cluster file"),
        (("up", "{file}"), "cluster.yaml, line 3: there is no 'colour' here"),
        (("up", "missing.yaml"), "cannot be read"),
        (("scale", "m", "many"), "neither a number of replicas nor auto"),
        (("scale", "m", "2"), "there are none. `quire cluster up FILE` starts one"),
        (("status",), "there are none"),
        (("down", "--name", "x"), "There is no cluster 'x'"),
    ],
)
def test_a_mistake_is_reported_in_one_line(quire, tmp_path, words, said):
    file = tmp_path / "cluster.yaml"
    file.write_text("models:\n  m:\n    colour: red\n")
    ran = quire("cluster", *(word.replace("{file}", str(file)) for word in words), "--home", str(tmp_path))
    assert ran.returncode == 1 and ran.stderr.startswith("error: ") and said in ran.stderr


def test_help_lists_the_commands(quire):
    page = quire("cluster", "--help").stdout
    assert all(name in page for name in ("up", "status", "scale", "rollout", "down"))
