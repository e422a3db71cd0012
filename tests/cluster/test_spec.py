"""The cluster file: what it declares, errors that name the line, and the command lines that it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.controller import readable_state
from quire.cluster.errors import ClusterError, UnreadableState
from quire.cluster.guarded import ServerCommand
from quire.cluster.orders import ClusterKeys, GatewayOrder, ReplicaOrder, gateway_url, on_devices, write_fleet
from quire.cluster.session import ClusterSession
from quire.cluster.spec import BadCluster, ClusterSpec, parse_cluster
from quire.cluster.state import ReplicaRecord, carried_counts, load_state, new_state, save_state
from quire.gateway.upstreams.declared import read_fleet

pytestmark = pytest.mark.pure

FOLDER = Path("/files")
KEYS = ClusterKeys("join-secret", "replica-secret", "transfer-secret")
GOOD = """
name: demo
gateway: {host: 0.0.0.0, port: 9100, api_keys: keys.toml, settings: {check_seconds: 1}}
models:
  small:
    model: smollm2:135m
    replicas: 2
  big:
    model: ./big.gguf
    autoscale: {min: 0, max: 4, tokens: 500}
    strategy: SPREAD
    cpus: 4
    gpus: 1
    resources: {a100: 1}
    settings: {max_context: 4096, drain_seconds: 5}
"""


ROLES = """
models:
  chat:
    model: ./chat.gguf
    cpus: 2
    surge: 3
    wait_seconds: 9
    settings: {max_context: 512, max_rows: 8}
    roles:
      prefill: {replicas: 1, gpus: 1, cpus: 4, settings: {max_step_tokens: 64, transport: tcp}}
      decode: {autoscale: {min: 1, max: 4}, settings: {max_rows: 64}}
"""


def parse(text: str) -> ClusterSpec:
    return parse_cluster(text, "demo.yaml", FOLDER)


def model(**more: object) -> str:
    head = "models:\n  m:\n    model: x\n    replicas: 1\n"
    return head + "".join(f"    {name}: {each}\n" for name, each in more.items())


def roles(text: str, **more: object) -> str:
    head = f"models:\n  m:\n    model: x\n    roles: {{{text}}}\n"
    return head + "".join(f"    {name}: {each}\n" for name, each in more.items())


def test_a_cluster_file_is_read_whole():
    spec = parse(GOOD)
    small, big = spec.groups["small"], spec.groups["big"]
    assert (spec.name, spec.gateway.port, spec.gateway.api_keys) == ("demo", 9100, "/files/keys.toml")
    assert (small.rule.min, small.rule.max, small.bundle) == (2, 2, {"CPU": 1.0})
    assert (big.model, big.rule.min, big.rule.max, big.rule.tokens) == ("/files/big.gguf", 0, 4, 500)
    assert big.bundle == {"CPU": 4.0, "GPU": 1.0, "a100": 1.0} and big.settings["max_context"] == "4096"
    assert parse("models: {m: {model: x, replicas: 1}}").name == "demo"
    assert (small.model_name, small.role, spec.models["small"].wait_seconds) == ("small", "both", 300)


def test_roles_are_groups_of_one_model_that_inherit_and_replace_what_it_declares():
    spec = parse(ROLES)
    prefill, decode = spec.models["chat"].groups
    assert list(spec.groups) == ["chat/prefill", "chat/decode"] and spec.models["chat"].wait_seconds == 9
    assert (prefill.model_name, prefill.role, prefill.bundle) == ("chat", "prefill", {"CPU": 4.0, "GPU": 1.0})
    assert (decode.model_name, decode.role, decode.bundle) == ("chat", "decode", {"CPU": 2.0})
    assert prefill.model == decode.model == "/files/chat.gguf" and prefill.surge == decode.surge == 3
    assert (prefill.rule.min, prefill.rule.max, decode.rule.min, decode.rule.max) == (1, 1, 1, 4)
    both = {"max_context": "512", "max_rows": "8"}
    assert prefill.settings == {**both, "max_step_tokens": "64", "transport": "tcp"}
    assert decode.settings == {**both, "max_rows": "64"} and prefill.version != decode.version
    other = parse(ROLES.replace("max_rows: 64", "max_rows: 65")).groups
    assert other["chat/prefill"].version == prefill.version and other["chat/decode"].version != decode.version


@pytest.mark.parametrize(
    "text, line, said",
    [
        ("modles: {}", 1, "there is no 'modles'"),
        ("models: {}", 1, "there is no model"),
        ("models: {m: {replicas: 1}}", 1, "has no model"),
        ("models: {m: {model: x}}", 1, "needs either replicas or autoscale"),
        (model(autoscale="{min: 1, max: 2}"), 3, "needs either replicas or autoscale"),
        (model(colour="red"), 5, "there is no 'colour'"),
        (model(replicas=2), 5, "appears twice"),
        (model(role="prefill"), 5, "m has nothing that answers"),
        (roles("prefill: {replicas: 1}"), 4, "m has nothing that answers"),
        (roles(""), 4, "m has nothing that answers"),
        (roles("decode: {}"), 4, "m/decode needs either replicas or autoscale"),
        (roles("judge: {replicas: 1}"), 4, "there is no 'judge'"),
        (roles("decode: {replicas: 1, role: both}"), 4, "there is no 'role'"),
        (roles("decode: {replicas: 1, wait_seconds: 1}"), 4, "there is no 'wait_seconds'"),
        (roles("decode: {replicas: 1, model: y}"), 4, "the roles of m have one model: x"),
        (roles("decode: {replicas: 1, settings: {transfer_secret: abc}}"), 4, "there is no 'transfer_secret'"),
        (roles("decode: {replicas: 1}", role="both"), 5, "m has roles: role belongs to each of them"),
        (roles("decode: {replicas: 1}", replicas=1), 5, "m has roles: replicas belongs to each of them"),
        (roles("decode: {replicas: 1}", autoscale="{min: 1, max: 2}"), 5, "autoscale belongs to each of them"),
        (model(role="judge"), 5, "there is no role 'judge'"),
        (model(ranks=2), 5, "an engine of 2 ranks is not built yet"),
        (model(strategy="RANDOM"), 5, "there is no strategy 'RANDOM'"),
        (model(cpus="many"), 5, "is not a number"),
        (model(settings="{max_context: lots}"), 5, "it must be a whole number"),
        (model(settings="{port: 1}"), 5, "there is no 'port'"),
        (model(surge=0), 5, "out of range"),
        (model(surge=1.5), 5, "not a whole number"),
        ("models: {m: {model: x, autoscale: {min: 2, max: 1}}}", 1, "at least min"),
        ("models: {m: {model: x, autoscale: {min: 2}}}", 1, "needs max"),
        ("models: {m: {model: x, autoscale: {min: 0, max: 1, tokens: 0}}}", 1, "must be more than 0"),
        ("gateway: {host: 0.0.0.0}\nmodels: {m: {model: x, replicas: 1}}", 1, "needs api_keys"),
        ("models: {a/b: {model: x, replicas: 1}}", 1, "the name 'a/b'"),
        ("name: a/b\nmodels: {m: {model: x, replicas: 1}}", 1, "letters, digits"),
    ],
)
def test_an_error_names_its_line(text, line, said):
    with pytest.raises(BadCluster) as caught:
        parse(text)
    assert f"demo.yaml, line {line}: " in caught.value.public and said in caught.value.public


def test_a_version_changes_with_what_a_replica_runs_and_with_nothing_else():
    first = parse(model()).groups["m"].version
    assert parse(model(wait_seconds=1, surge=2)).groups["m"].version == first
    assert parse(model(settings="{max_context: 64}")).groups["m"].version != first
    assert parse(model(version='"7"')).groups["m"].version == "7"


def test_replicas_of_a_gateway_that_others_reach_listen_at_their_nodes_with_keys():
    spec = parse(GOOD)
    order = ReplicaOrder("r", spec.groups["big"], spec.gateway, "10.0.0.1", KEYS, 60)
    near, far = order.command("10.0.0.1", FOLDER), order.command("10.0.0.2", FOLDER)
    assert near.host == "10.0.0.1" and "http://127.0.0.1:9100" in near.arguments
    assert far.host == "10.0.0.2" and "http://10.0.0.1:9100" in far.arguments
    for each in (near, far):
        assert each.environment["QUIRE_API_KEY"] == each.environment["QUIRE_OFFERED_KEY"] == "replica-secret"
        assert each.environment["QUIRE_JOIN_KEY"] == "join-secret"
        assert flags(each)["--max-context"] == "4096"
    assert far.drain_seconds == 5 and near.digest != far.digest
    assert on_devices(near, []) == near
    assert on_devices(near, [2, 3]).environment == {**near.environment, "CUDA_VISIBLE_DEVICES": "2,3"}


def test_replicas_of_all_roles_exchange_blocks_where_others_of_the_cluster_reach_them():
    local, wide = parse(ROLES), parse("gateway: {host: 0.0.0.0, api_keys: keys.toml}" + ROLES)
    for spec, node, host in ((local, "127.0.0.1", "127.0.0.1"), (wide, "10.0.0.1", "10.0.0.1")):
        for group in (*spec.groups.values(), *parse(model()).groups.values()):
            command = ReplicaOrder("r", group, spec.gateway, node, KEYS, 60).command(node, FOLDER)
            assert flags(command)["--role"] == group.role and flags(command)["--transfer-host"] == host
            assert command.arguments[1] == f"{group.model_name}={group.model}"
            assert command.environment["QUIRE_TRANSFER_SECRET"] == "transfer-secret"
            assert "secret" not in " ".join(command.arguments)


def test_a_replica_beside_a_local_gateway_listens_at_loopback_without_keys():
    spec = parse(model())
    command = ReplicaOrder("r", spec.groups["m"], spec.gateway, "10.0.0.1", KEYS, 60).command("10.0.0.1", FOLDER)
    assert command.host == "127.0.0.1" and command.environment == {"QUIRE_TRANSFER_SECRET": "transfer-secret"}


def flags(command: ServerCommand) -> dict[str, str]:
    return dict(zip(command.arguments, command.arguments[1:], strict=False))


def test_a_replica_that_cannot_reach_a_local_gateway_is_refused():
    spec = parse(model())
    order = ReplicaOrder("r", spec.groups["m"], spec.gateway, "10.0.0.1", KEYS, 60)
    with pytest.raises(ClusterError, match=r"Set gateway\.host"):
        order.command("10.0.0.2", FOLDER)


def test_a_gateway_has_the_key_of_replicas_only_if_it_asks_for_keys():
    with_keys = GatewayOrder("demo", parse(GOOD).gateway, {}, KEYS, 60).command("10.0.0.1", FOLDER)
    assert with_keys.environment == {"QUIRE_API_KEY": "join-secret"} and with_keys.port == 9100
    open_one = GatewayOrder("demo", parse(model()).gateway, {}, KEYS, 60).command("10.0.0.1", FOLDER)
    assert open_one.environment == {} and gateway_url(parse(model()).gateway, "a", "a") == "http://127.0.0.1:9000"


def test_the_gateway_expects_every_model_and_its_file_changes_only_with_them(tmp_path):
    models = parse(GOOD).models
    write_fleet(tmp_path, models)
    before = (tmp_path / "fleet.yaml").stat().st_mtime_ns
    write_fleet(tmp_path, models)
    assert (tmp_path / "fleet.yaml").stat().st_mtime_ns == before
    assert read_fleet(tmp_path / "fleet.yaml").models["big"].wait_seconds == 300
    write_fleet(tmp_path, parse(ROLES).models)
    assert {name: each.wait_seconds for name, each in read_fleet(tmp_path / "fleet.yaml").models.items()} == {"chat": 9}


def test_groups_of_a_changed_file_begin_with_the_numbers_that_there_were():
    plain = parse("models: {chat: {model: x, autoscale: {min: 1, max: 9}}, other: {model: x, replicas: 1}}")
    counts = {"chat": 7, "other": 1}
    assert carried_counts(counts, plain, plain) == counts
    assert carried_counts(counts, plain, parse(ROLES)) == {"chat/decode": 4}  # its max; prefill begins with its min
    assert carried_counts({"chat/decode": 3, "chat/prefill": 2}, parse(ROLES), plain) == {"chat": 3}
    assert carried_counts({"chat/decode": 3}, parse(ROLES), parse(ROLES)) == {"chat/decode": 3}


def test_a_state_is_read_as_it_was_written_and_is_private(tmp_path):
    state = new_state(GOOD.replace("tokens: 500", "idle_seconds: inf"), "demo.yaml", str(FOLDER))
    state.replicas["r"] = ReplicaRecord("r", state.spec.groups["big"], 1.0, "10.0.0.1", is_draining=True)
    state.scales["small"] = 3
    assert load_state(tmp_path) is None
    save_state(state, tmp_path)
    assert load_state(tmp_path) == state
    assert (tmp_path / "state.json").stat().st_mode & 0o077 == 0 and "secret" not in repr(KEYS)
    assert readable_state(tmp_path) == (state, "")
    keys = state.keys
    assert len({keys.join, keys.replica, keys.transfer}) == 3 and len(keys.transfer) >= 16


def drop(found: dict[str, Any], *names: str) -> bytes:
    """The state without the key at the end of this path."""
    at = found
    for name in names[:-1]:
        at = at[name]
    del at[names[-1]]
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda found: drop(found, "keys"), "missing required field `keys`"),
        (lambda found: drop(found, "keys", "transfer"), "missing required field `transfer`"),
        (lambda found: drop(found, "replicas", "r", "spec", "model_name"), "missing required field `model_name`"),
        (lambda found: drop(found, "replicas", "r", "spec", "rule"), "missing required field `rule`"),
        (lambda found: json.dumps(found | {"replicas": [1]}).encode(), "Expected `object`, got `array`"),
        (lambda found: json.dumps(found | {"text": "models: {}"}).encode(), "demo.yaml, line 1: there is no model"),
        (lambda found: b"[]", "Expected `object`, got `array`"),
        (lambda found: b'{"text": "', "Unterminated string"),
        (lambda found: b"", "Expecting value"),
        (lambda found: b'{"text": "\xff"}', "utf-8"),
    ],
)
def test_a_state_that_cannot_be_read_says_which_file_what_is_wrong_and_what_to_do(tmp_path, spoil, said):
    state = new_state(GOOD, "demo.yaml", str(FOLDER))
    state.replicas["r"] = ReplicaRecord("r", state.spec.groups["big"], 1.0)
    save_state(state, tmp_path)
    path = tmp_path / "state.json"
    path.write_bytes(spoil(json.loads(path.read_bytes())))
    with pytest.raises(UnreadableState) as caught:
        load_state(tmp_path)
    message = caught.value.public
    assert str(path) in message and said in message and "`quire cluster up FILE`" in message
    assert readable_state(tmp_path) == (None, message)
    with pytest.raises(UnreadableState):  # before Ray is started or asked
        ClusterSession(tmp_path.parent, tmp_path.name).up(state.spec, tmp_path / "demo.yaml", "")
