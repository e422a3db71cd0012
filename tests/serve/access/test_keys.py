"""API keys: from a file or a setting, required everywhere but for probes, and their limits."""

from __future__ import annotations

import json
import threading

import pytest

from quire.config import BadSetting, ServeConfig, load
from quire.serve.access.keys import ANONYMOUS, ApiKey, ApiKeys, hash_of, new_key, read_keys, secret_of
from quire.serve.access.quota import Quotas
from quire.serve.admin.routes import OWN_ROUTES
from quire.serve.errors import QuotaExceeded, Unauthorized
from tests.serve.running import running

COMPLETE = {"prompts": ["Once upon a time there was a small village by the sea, and in it"], "max_tokens": 4}


def key_file(tmp_path, *lines: str) -> ServeConfig:
    path = tmp_path / "keys.toml"
    path.write_text("\n".join(lines))
    return load({"api_keys": str(path)}, {}).serve


@pytest.mark.pure
def test_a_secret_opens_its_key_and_no_other():
    secret, key = new_key("alice")
    keys = ApiKeys([ApiKey("bob", hash_of("b")), key])
    assert keys.find(secret) is key and secret not in repr(key)
    for wrong in (None, "", "x", secret[:-1], secret + " "):
        with pytest.raises(Unauthorized):
            keys.find(wrong)
    assert ApiKeys([]).find(None) is ANONYMOUS


@pytest.mark.pure
@pytest.mark.parametrize(
    "authorization, api_key, found",
    [
        ("Bearer abc", None, "abc"),
        ("bearer  abc ", None, "abc"),
        ("Basic abc", None, None),
        (None, "abc", "abc"),
        ("Bearer abc", "xyz", "abc"),
        (None, None, None),
    ],
)
def test_a_secret_comes_in_either_header(authorization, api_key, found):
    assert secret_of(authorization, api_key) == found


@pytest.mark.pure
def test_keys_of_a_file_have_their_limits(tmp_path):
    digest = hash_of("s")
    config = key_file(tmp_path, "[[key]]", 'name = "a"', f'sha256 = "{digest.upper()}"', "weight = 2", "max_n = 3")
    key = read_keys(config).find("s")
    assert (key.name, key.weight, key.max_n, key.admin) == ("a", 2, 3, False)
    assert key.cache_key("") != ApiKey("b").cache_key("") != key.cache_key("x")


@pytest.mark.pure
@pytest.mark.parametrize(
    "lines, says",
    [
        (["x = 1"], "nothing else"),
        (["[[key]]", 'name = "a"'], "sha256"),
        (["[[key]]", f'sha256 = "{"0" * 64}"'], "name"),
        (["[[key]]", 'name = "a"', 'sha256 = "short"'], "64 hex"),
        (["[[key]]", 'name = "a"', f'sha256 = "{"0" * 64}"', "color = 1"], "color"),
        (["[[key]]", 'name = "a"', f'sha256 = "{"0" * 64}"', 'weight = "much"'], "weight"),
        (["[[key]]", 'name = "a"', f'sha256 = "{"0" * 64}"', "requests_per_minute = 0"], "positive"),
        (["[[key]]", 'name = "a"', f'sha256 = "{"0" * 64}"', "max_concurrent = true"], "max_concurrent"),
        (["[[key]]", 'name = "a"', f'sha256 = "{"0" * 64}"'] * 2, "same name"),
        (["nonsense"], "cannot be read"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, lines, says):
    with pytest.raises(BadSetting, match=says):
        read_keys(key_file(tmp_path, *lines))


@pytest.mark.pure
def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(BadSetting, match="cannot be read"):
        read_keys(ServeConfig(api_keys="/nowhere/keys.toml"))


@pytest.mark.pure
def test_a_bucket_of_requests_refills_with_time():
    quotas, key = Quotas(), ApiKey("a", requests_per_minute=2)
    for _ in range(2):
        with quotas.running(key, 0.0):
            pass
    with pytest.raises(QuotaExceeded) as refused, quotas.running(key, 6.0):
        pass
    assert refused.value.retry_after == pytest.approx(24.0) and refused.value.status == 429
    with quotas.running(key, 31.0), quotas.running(ApiKey("b", requests_per_minute=2), 0.0):
        pass


@pytest.mark.pure
def test_tokens_are_paid_for_after_they_came():
    quotas, key = Quotas(), ApiKey("a", tokens_per_minute=60)
    with quotas.running(key, 0.0):
        quotas.charge(key, 100)
    with pytest.raises(QuotaExceeded, match="60 tokens a minute") as refused, quotas.running(key, 10.0):
        pass
    assert refused.value.retry_after == pytest.approx(31.0)
    with quotas.running(key, 41.0):
        pass


@pytest.mark.pure
def test_an_ended_request_frees_its_place_even_if_it_failed():
    quotas, key = Quotas(), ApiKey("a", max_concurrent=1)
    with pytest.raises(KeyError), quotas.running(key, 0.0):
        with pytest.raises(QuotaExceeded), quotas.running(key, 0.0):
            pass
        raise KeyError
    with quotas.running(key, 0.0):
        pass


def entry(name: str, **limits: object) -> str:
    said = {"name": name, "sha256": hash_of(f"secret-{name}")} | limits
    return "\n".join(["[[key]]", *(f"{field} = {json.dumps(value)}" for field, value in said.items())])


@pytest.fixture(scope="module")
def server(model_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    entries = [
        entry("alice", max_n=2),
        entry("bob"),
        entry("few", requests_per_minute=1),
        entry("one", max_concurrent=1),
        entry("boss", admin=True),
    ]
    path.write_text("\n".join(entries))
    with running(model_file, api_keys=str(path), api_key="plain-secret") as made:
        yield made


def post(server, name, path="/plain/complete", **body):
    return server.http.post(path, json=COMPLETE | body, headers={"authorization": f"Bearer secret-{name}"})


@pytest.mark.e2e
def test_every_path_but_those_of_probes_asks_for_a_key(server):
    paths = [(each.method, each.path) for each in OWN_ROUTES if each.path not in ("/health", "/ready")]
    paths += [("POST", "/plain/chat"), ("GET", "/plain/models"), ("GET", "/plain/models/toy"), ("GET", "/nothing")]
    for method, path in paths:
        response = server.http.request(method, path)
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == "Bearer"
        assert server.http.request(method, path, headers={"x-api-key": "wrong"}).status_code == 401
    assert server.http.get("/health").status_code == server.http.get("/ready").status_code == 200
    assert server.http.post("/plain/chat").json()["plain_error"] == "invalid_api_key"


@pytest.mark.e2e
def test_both_headers_and_both_kinds_of_keys_are_taken(server):
    assert post(server, "alice").status_code == 200
    assert server.http.get("/version", headers={"x-api-key": "secret-alice"}).status_code == 200
    assert server.http.get("/props", headers={"x-api-key": "plain-secret"}).status_code == 200


@pytest.mark.e2e
def test_only_admins_see_settings_and_the_whole_cache(server):
    for method, path in (("GET", "/props"), ("GET", "/v1/cache"), ("POST", "/v1/cache/flush")):
        refused = server.http.request(method, path, headers={"x-api-key": "secret-alice"})
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "forbidden"
        assert server.http.request(method, path, headers={"x-api-key": "secret-boss"}).status_code == 200
    said = server.http.get("/props", headers={"x-api-key": "secret-boss"}).text
    assert "plain-secret" not in said and "secret-alice" not in said


@pytest.mark.e2e
@pytest.mark.parametrize("who, without, alice", [("all", 200, 200), ("keys", 401, 200), ("admins", 401, 403)])
def test_metrics_are_for_admins_or_for_all_as_set(model_file, tmp_path, who, without, alice):
    path = tmp_path / "keys.toml"
    path.write_text("\n".join([entry("alice"), entry("boss", admin=True)]))
    with running(model_file, api_keys=str(path), metrics_for=who, waits=False) as made:
        statuses = [
            made.http.get("/metrics", headers={"x-api-key": f"secret-{name}"} if name else {}).status_code
            for name in ("", "alice", "boss")
        ]
    assert statuses == [without, alice, 200]


@pytest.mark.e2e
def test_every_key_may_pin_its_own_prefixes(server):
    for path in ("/v1/cache/explain", "/v1/cache/pin", "/v1/cache/unpin"):
        body = {"prompt": "What alice has, and would like to keep."}
        assert server.http.post(path, json=body, headers={"x-api-key": "secret-alice"}).status_code == 200


@pytest.mark.e2e
def test_keys_neither_find_nor_learn_of_each_others_prefixes(server):
    fresh = {"prompts": ["This prompt is long enough for a whole block of the cache, and it is only alice's own one."]}
    assert post(server, "alice", **fresh).json()["usage"]["cached"] == 0
    assert post(server, "alice", **fresh).json()["usage"]["cached"] > 0
    assert post(server, "bob", **fresh).json()["usage"]["cached"] == 0
    secret = {"prompt": "What only boss has asked, in words that are long enough to fill a block of sixteen tokens."}
    assert post(server, "boss", prompts=[secret["prompt"]]).status_code == 200
    asked = server.http.post("/v1/cache/explain", json=secret, headers={"x-api-key": "secret-alice"}).json()
    assert asked["cause"] == "unseen" and "another" not in asked["explanation"]
    asked = server.http.post("/v1/cache/explain", json=secret, headers={"x-api-key": "plain-secret"}).json()
    assert asked["cause"] == "other_salt"


@pytest.mark.e2e
def test_limits_of_a_key_hold_for_it_alone(server):
    assert post(server, "alice", n=3).status_code == 400
    assert post(server, "bob", n=3).status_code == 200
    assert post(server, "few").status_code == 200
    refused = post(server, "few")
    assert refused.status_code == 429 and refused.json()["plain_error"] == "rate_limited"
    assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.e2e
def test_a_key_may_have_no_more_requests_running_than_allowed(server):
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(post(server, "one", max_tokens=40, ignore_eos=True).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429} and post(server, "one").status_code == 200


@pytest.mark.e2e
def test_the_record_names_the_key_and_not_its_secret(server):
    server.records.clear()
    post(server, "bob")
    (record,) = [each for each in server.records if each.key == "bob"]
    assert "secret" not in repr(record) and record.prompt is None and record.output_tokens == 4
