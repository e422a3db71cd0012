"""Routes: every kind of rule, and every mistake in a file with the line that it is on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from quire.gateway.classify import Classifier
from quire.gateway.policy import MAX_TEXT_CHARS, Declarations, RequestFacts, all_policies
from quire.gateway.routing import RouteChoice, Routes, build_routes, load_routes
from quire.gateway.split import Split, hash_fraction
from quire.gateway.yaml_nodes import BadRoutes, parse_yaml

pytestmark = pytest.mark.pure

MODELS = {"small", "medium", "large", "hf.co/org/repo:Q4"}
SUBJECTS = {
    "code": [
        "Fix this Python function, it raises a TypeError",
        "Write a function in Rust that sorts a list",
        "Why does my loop never end? Here is the code",
        "Refactor this class and add unit tests",
    ],
    "prose": [
        "Write a poem about the sea in autumn",
        "Tell me a story about an old king",
        "Make this letter to my grandmother warmer",
        "Write a short story in the style of a fairy tale",
    ],
}


def routes(text: str) -> Routes:
    return build_routes(parse_yaml(dedent(text)), MODELS.__contains__)


def one(condition: str, extra: str = "") -> Routes:
    """An alias whose first rule has this condition."""
    rules = f"      - {{name: yes, when: {{{condition}}}, use: large}}\n      - {{name: no, use: small}}\n"
    return build_routes(parse_yaml(f"routes:\n  alias:\n    rules:\n{rules}{extra}"), MODELS.__contains__)


def is_met(condition: str, facts: RequestFacts, extra: str = "") -> bool:
    choice = one(condition, extra).choose("alias", lambda: facts)
    assert choice is not None
    assert choice.models == (("large",) if choice.rule == "yes" else ("small",))
    return choice.rule == "yes"


@pytest.mark.parametrize(
    "condition, met, unmet",
    [
        ("prompt_chars: {at_most: 5}", RequestFacts(text="12345"), RequestFacts(text="123456")),
        ("prompt_chars: {at_least: 2, at_most: 3}", RequestFacts(text="éé"), RequestFacts(text="é")),
        ("prompt_tokens: {at_least: 3}", RequestFacts(text="x" * 9), RequestFacts(text="x" * 8)),
        ("prompt_tokens: {at_least: 3}", RequestFacts(num_ids=3), RequestFacts(num_ids=2)),
        ("prompt_tokens: {at_least: 4}", RequestFacts(text="x", num_ids=3), RequestFacts(num_ids=3)),
        ("key: alice", RequestFacts(key="alice"), RequestFacts(key="bob")),
        ("key: [alice, bob]", RequestFacts(key="bob"), RequestFacts()),
        (
            "metadata: {team: legal}",
            RequestFacts(metadata={"team": "legal", "x": "y"}),
            RequestFacts(metadata={"team": "sales"}),
        ),
        (
            "metadata: {team: [a, b], n: 1}",
            RequestFacts(metadata={"team": "b", "n": "1"}),
            RequestFacts(metadata={"team": "b"}),
        ),
        (
            r"matches: '(?i)\bcontract\b'",
            RequestFacts(last="My CONTRACT?"),
            RequestFacts(last="contracts", text="contract"),
        ),
        ("matches: {pattern: law, in: text}", RequestFacts(text="the law"), RequestFacts(last="law")),
        ("matches: {pattern: law, in: system}", RequestFacts(system="law"), RequestFacts(last="law", text="law")),
        ("loaded: large", RequestFacts(loaded=frozenset({"large"})), RequestFacts(loaded=frozenset({"small"}))),
        ("loaded: [large, medium]", RequestFacts(loaded=frozenset({"medium"})), RequestFacts()),
        ("key: a, prompt_chars: {at_most: 3}", RequestFacts(key="a", text="abc"), RequestFacts(key="a", text="abcd")),
    ],
)
def test_a_rule_applies_if_its_conditions_hold(condition: str, met: RequestFacts, unmet: RequestFacts) -> None:
    assert is_met(condition, met) and not is_met(condition, unmet)


def test_a_tier_is_a_set_of_keys() -> None:
    tiers = "tiers: {pro: [alice, bob], free: carol}\n"
    assert is_met("tier: pro", RequestFacts(key="bob"), tiers) and not is_met(
        "tier: pro", RequestFacts(key="carol"), tiers
    )
    assert is_met("tier: [pro, free]", RequestFacts(key="carol"), tiers) and not is_met(
        "tier: pro", RequestFacts(), tiers
    )


def test_a_pattern_looks_only_at_the_beginning_of_a_huge_text() -> None:
    assert is_met("matches: end", RequestFacts(last="x" * (MAX_TEXT_CHARS - 3) + "end"))
    assert not is_met("matches: end", RequestFacts(last="x" * MAX_TEXT_CHARS + "end"))


def test_a_topic_is_the_class_that_the_classifier_finds() -> None:
    declared = "classifiers:\n  subjects:\n" + "".join(f"    {label}: {texts}\n" for label, texts in SUBJECTS.items())
    code, poem = (
        RequestFacts(last="My function raises a TypeError in a loop"),
        RequestFacts(last="A poem about an old king"),
    )
    condition = "topic: {classifier: subjects, is: code}"
    assert is_met(condition, code, declared) and not is_met(condition, poem, declared)
    assert not is_met(condition, RequestFacts(last="zxcv qwer"), declared)  # no word of it is known
    sure = "topic: {classifier: subjects, is: [code, prose], at_least: 0.9}"
    assert is_met(sure, poem, declared) and not is_met(sure, RequestFacts(last="write"), declared)


def test_a_classifier_is_deterministic_and_measures_its_accuracy() -> None:
    first, second = Classifier(SUBJECTS), Classifier(SUBJECTS)
    text = "Write unit tests for this function"
    assert first.classify(text) == second.classify(text) and first.classify(text).label == "code"
    assert 0.5 < first.classify(text).probability <= 1.0
    assert all(first.classify(example).label == label for label, texts in SUBJECTS.items() for example in texts)
    assert 0.5 <= first.accuracy() <= 1.0
    assert Classifier({"a": ["x"], "b": ["y"]}).accuracy() == 0.0  # one example each: nothing is left to learn from


def test_the_first_rule_that_applies_is_taken_and_fallbacks_follow() -> None:
    made = routes("""
        routes:
          helper:
            rules:
              - name: long
                when: {prompt_chars: {at_least: 100}}
                use: large
                fallback: [medium, large]
              - when: {key: alice}
                use: medium
              - use: small
            fallback: [small, hf.co/org/repo:Q4]
    """)
    assert made.choose("helper", lambda: RequestFacts(text="x" * 100, key="alice")) == RouteChoice(
        "helper", "long", ("large", "medium")
    )
    second = made.choose("helper", lambda: RequestFacts(key="alice"))
    assert second == RouteChoice("helper", "2", ("medium", "small", "hf.co/org/repo:Q4")) and second.label == "helper/2"
    assert made.choose("helper", RequestFacts) == RouteChoice("helper", "3", ("small", "hf.co/org/repo:Q4"))
    assert made.choose("small", lambda: pytest.fail("facts of a model's own name are not needed")) is None


def test_a_split_has_its_proportions_and_is_sticky() -> None:
    made = routes("routes: {ab: {rules: [{use: {small: 3, large: 1}, seed: spring}]}}")

    def model(facts: RequestFacts) -> str:
        choice = made.choose("ab", lambda: facts)
        assert choice is not None
        return choice.models[0]

    users = [f"user-{n}" for n in range(4000)]
    chosen = {user: model(RequestFacts(user=user, first=user)) for user in users}
    assert Counter(chosen.values()) == {"small": 2961, "large": 1039}  # of a seed, always the same
    assert all(model(RequestFacts(user=user, first="another", last="turn")) == chosen[user] for user in users)
    other = Split({"small": 3, "large": 1}, "autumn")
    assert 0.3 < sum(other.choose(RequestFacts(user=user)) == chosen[user] for user in users) / 4000 < 0.7


def test_a_split_is_sticky_by_the_first_known_fact_or_by_the_named_one() -> None:
    even = Split({"a": 1, "b": 1}, "s")
    assert len({even.choose(RequestFacts(key="k", first=f"{n}")) for n in range(50)}) == 1  # the key's
    assert len({even.choose(RequestFacts(session=f"{n}", key="k")) for n in range(50)}) == 2
    assert len({even.choose(RequestFacts(first=f"{n}")) for n in range(50)}) == 2  # the conversation's
    by = Split({"a": 1, "b": 1}, "s", by="conversation")
    assert len({by.choose(RequestFacts(user="u", first=f"{n}")) for n in range(50)}) == 2
    assert {Split({"a": 0, "b": 1}, f"{n}").choose(RequestFacts(user="u")) for n in range(20)} == {"b"}
    assert 0.0 <= min(hash_fraction("s", str(n)) for n in range(1000)) < 0.01
    assert 0.99 < max(hash_fraction("s", str(n)) for n in range(1000)) < 1.0


def test_routes_can_be_shown_as_declared() -> None:
    said = one("prompt_chars: {at_most: 5}").describe()["aliases"]["alias"]
    assert said == [
        {"rule": "yes", "when": {"prompt_chars": {"at_most": "5"}}, "use": "large"},
        {"rule": "no", "use": "small"},
    ]
    declared = "classifiers: {s: {a: [x y, x], b: [z w, z]}}\n"
    assert one("key: k", declared).describe()["classifiers"] == {
        "s": {"classes": {"a": 2, "b": 2}, "leave_one_out_accuracy": 1.0}
    }


HEAD = "routes:\n  alias:\n    rules:\n"
LAST = "      - use: small\n"


@pytest.mark.parametrize(
    "text, line, problem",
    [
        ("", None, "it is empty"),
        ("routes: [", 1, "this is not YAML"),
        ("routes:\n  a: {\n  b: ]", 3, "this is not YAML"),
        ("tiers: {}", 1, "the file has no routes"),
        ("- routes", 1, "expected a mapping of routes, tiers, classifiers"),
        ("routes: {}", 1, "there are no aliases here"),
        ("routes: {}\nrouts: 1", 2, "there is no 'routs' here: choose from routes, tiers, classifiers"),
        ("routes:\n  a b: {rules: [{use: small}]}", 2, "'a b' is not a valid name"),
        ("routes:\n  small:\n    rules: [{use: large}]", 3, "small is the name of a model"),
        ("routes:\n  a: {rules: [{use: small}]}\n  a: {rules: [{use: small}]}", 3, "'a' appears twice"),
        ("routes:\n  a:\n    fallback: small", 3, "a has no rules"),
        ("routes:\n  a: {rules: []}", 2, "a has no rules"),
        (HEAD + "      - when: {key: a}\n", 4, "does not say which model to `use`"),
        (HEAD + "      - use: huge\n", 4, "there is no model 'huge' here"),
        (HEAD + "      - use: alias\n", 4, "alias is an alias: a rule names models"),
        (HEAD + "      - use:\n          small: 1\n          huge: 1\n", 6, "there is no model 'huge'"),
        (HEAD + "      - use:\n          small: 0\n", 5, "a weight above 0"),
        (HEAD + "      - use:\n          small: -1\n", 5, "out of range"),
        (HEAD + "      - use:\n          small: much\n", 5, "'much' is not a number"),
        (HEAD + "      - use: small\n        fallback: [large, huge]\n", 5, "there is no model 'huge'"),
        (HEAD + "      - use: small\n        sticky: mood\n", 5, "not by 'mood'"),
        (HEAD + "      - use: small\n        name: 'a b'\n", 5, "'a b' is not a valid name"),
        (HEAD + "      - use: small\n        wehn: {}\n", 5, "there is no 'wehn' here"),
        (HEAD + LAST + LAST, 4, "this rule always applies"),
        (HEAD + "      - when: {key: a}\n        use: small\n", 4, "must have no `when`"),
        (HEAD + "      - {name: '2', when: {key: a}, use: small}\n" + LAST, 5, "two rules named 2"),
        (HEAD + "      - when: {}\n        use: small\n" + LAST, 4, "`when` has no condition"),
        (
            HEAD + "      - when: {mood: good}\n        use: small\n" + LAST,
            4,
            "there is no 'mood' here: choose from key",
        ),
        (HEAD + "      - when: {key: []}\n        use: small\n" + LAST, 4, "this list is empty"),
        (HEAD + "      - when: {key: ''}\n        use: small\n" + LAST, 4, "expected a text"),
        (HEAD + "      - when:\n          matches: '('\n        use: small\n" + LAST, 5, "not a regular expression"),
        (HEAD + "      - when: {matches: {in: last}}\n        use: small\n" + LAST, 4, "a pattern is missing"),
        (HEAD + "      - when: {matches: {pattern: x, in: y}}\n        use: small\n" + LAST, 4, "not 'y'"),
        (HEAD + "      - when: {prompt_chars: 5}\n        use: small\n" + LAST, 4, "mapping of at_least, at_most"),
        (HEAD + "      - when: {prompt_chars: {}}\n        use: small\n" + LAST, 4, "give at_least"),
        (
            HEAD + "      - when: {prompt_tokens: {at_least: 5, at_most: 4}}\n        use: small\n" + LAST,
            4,
            "no number is at least 5 and at most 4",
        ),
        (HEAD + "      - when: {metadata: {}}\n        use: small\n" + LAST, 4, "at least one entry"),
        (HEAD + "      - when: {loaded: huge}\n        use: small\n" + LAST, 4, "there is no model 'huge'"),
        (
            HEAD + "      - when: {tier: pro}\n        use: small\n" + LAST,
            4,
            "there is no tier 'pro': declared are none",
        ),
        (HEAD + "      - when: {topic: {is: x}}\n        use: small\n" + LAST, 4, "'classifier' is missing"),
        (
            HEAD + "      - when: {topic: {classifier: c, is: x}}\n        use: small\n" + LAST,
            4,
            "there is no classifier 'c'",
        ),
        (
            HEAD
            + "      - when: {topic: {classifier: c, is: x}}\n        use: small\n"
            + LAST
            + "classifiers: {c: {a: [x], b: [y]}}\n",
            4,
            "c has no class 'x': it has a, b",
        ),
        (HEAD + LAST + "classifiers:\n  c:\n    a: [x]\n", 7, "c needs two classes"),
        (HEAD + LAST + "tiers:\n  pro: {}\n", 6, "expected a text"),
    ],
)
def test_a_mistake_is_reported_with_its_line(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(BadRoutes) as caught:
        build_routes(parse_yaml(text), MODELS.__contains__)
    assert problem in caught.value.public and caught.value.line == line, caught.value.public
    assert caught.value.public.startswith("routes.yaml" if line is None else f"routes.yaml, line {line}: ")


def test_a_file_is_read_and_named_in_its_errors(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("routes: {a: {rules: [{use: small}]}}")
    assert list(load_routes(file, MODELS.__contains__).rules) == ["a"]
    file.write_text("routes:\n  a: {rules: [{use: huge}]}")
    with pytest.raises(BadRoutes, match=r"^my.yaml, line 2: there is no model 'huge' here\.$"):
        load_routes(file, MODELS.__contains__)
    with pytest.raises(BadRoutes, match="cannot be read"):
        load_routes(tmp_path / "none", MODELS.__contains__)


def test_a_file_that_refers_to_itself_ends() -> None:
    with pytest.raises(BadRoutes, match="expected a text"):
        routes("routes: {a: {rules: [{when: {key: &x [*x]}, use: small}, {use: small}]}}")
    assert "…" in str(parse_yaml("&x {a: *x}").plain())


def test_kinds_of_conditions_are_found_by_their_files() -> None:
    folder = Path(__file__).parents[2] / "src" / "quire" / "gateway" / "policies"
    assert set(all_policies()) == {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert all(policy.read and policy.EXAMPLE for policy in all_policies().values())
    assert all_policies()["key"].read(parse_yaml("a"), Declarations())(RequestFacts(key="a"))
