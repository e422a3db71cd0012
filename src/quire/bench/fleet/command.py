"""`quire bench fleet`: the gateway's balancers on simulated fleets of 4 to 1,000 replicas.

They are compared with a model of a published policy with a global threshold, and with one server of the combined speed
and cache, which no fleet can beat. `--documents` instead simulates clients that ask about documents of Zipf popularity,
by number of clients and cache size, and counts why tokens are computed again. `--roles` instead compares prefill and
decode replicas with as many that do both, including the gaps between tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean

from quire.bench.fleet.handover import KVLink
from quire.bench.fleet.replica import ReplicaSpeed
from quire.bench.fleet.simulate import FleetResult, FleetScenario, Outage, simulate
from quire.bench.fleet.threshold import ThresholdBalancer
from quire.bench.fleet.traffic import Burst, Traffic
from quire.gateway.balancers.contract import Balancer, all_balancers

POOLED, THRESHOLD = "one server, summed", "global threshold"
COMPARED = ("cache", "least_time", "round_robin")
RATE_PER_REPLICA = 14.0  # requests per second: 35 % of a replica's prompt rate if all prefixes are cached
PREFIXES_PER_REPLICA = 12
DOCUMENT_CLIENTS = (1, 2, 4, 8)  # for each replica
DOCUMENT_CACHES = (6144, 3072, 1536)  # tokens of each replica; its share of the documents has about 1,900
DOCUMENT_SEEDS = 12
ROLES_RATE = 1.0  # requests per second and replica: computing their own tokens takes 15 % of its time
ROLES_TOKENS = 1500  # of each request, after its prefix
KV_TOKEN_BYTES = 131_072  # of an 8B model with 32 layers, 8 KV heads of 128, in 16 bits
ROLES_HEAD = (
    *("replicas", "policy", "hit rate", "first token p50", "p95", "between tokens p50", "p99"),
    *("whole answer, mean", "tokens sent"),
)
HEAD = ("policy", "hit rate", "first token p50", "p99", "busiest / mean", "tokens computed", "prefixes copied")
DOCUMENTS_HEAD = (
    "cache of a replica",
    "clients",
    "one server",
    *("of one server", "worst run", "first token p50", "p99", "whole answer, mean", "copied", "evicted"),
)


def main(options: argparse.Namespace) -> None:
    """Print a table for each fleet."""
    parser = argparse.ArgumentParser(prog="quire bench fleet", description=__doc__)
    parser.add_argument("--replicas", default="4,16,64", metavar="N,…", help="sizes of the fleets")
    parser.add_argument("--seconds", type=float, default=30.0, help="simulated time")
    parser.add_argument("--balance", default=",".join(COMPARED), metavar="NAME,…", help="balancers to compare")
    parser.add_argument("--documents", action="store_true", help="clients that ask for documents")
    parser.add_argument(
        "--roles",
        default="",
        metavar="P:D,…",
        help="fleets of P prefill and D decode replicas, each beside P + D replicas that do both; for example 1:3",
    )
    parser.add_argument(
        "--transfer-rate", type=float, default=10.0, metavar="GB/S", help="of KV blocks between replicas, with --roles"
    )
    parsed = parser.parse_args(options.rest)
    if parsed.roles:
        seconds = 10.0 if options.quick else parsed.seconds
        link = KVLink(KV_TOKEN_BYTES, parsed.transfer_rate * 1e9)
        for num_prefill, num_decode in role_counts(parser, parsed.roles):
            print_roles(num_prefill, num_decode, seconds, link, parsed.balance.split(","))
        return
    if parsed.documents:
        for name in parsed.balance.split(","):
            print_documents(4, name, 1 if options.quick else DOCUMENT_SEEDS)
        return
    seconds = 10.0 if options.quick else parsed.seconds
    for num_replicas in [4] if options.quick else [int(each) for each in parsed.replicas.split(",")]:
        for name, scenario in scenarios(num_replicas, seconds):
            print(f"\n{num_replicas} replicas, {name}\n")
            print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
            for policy, result in compare(scenario, parsed.balance.split(",")):
                print(f"| {policy} | {' | '.join(policy_row(result))} |", flush=True)


def role_counts(parser: argparse.ArgumentParser, text: str) -> list[tuple[int, int]]:
    """Return the numbers of prefill and decode replicas. Anything but P:D is refused."""
    counts = []
    for each in text.split(","):
        parts = each.split(":")
        if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
            parser.error(f"--roles {each}: give prefill and decode replicas, one or more of each, such as 1:3")
        counts.append((int(parts[0]), int(parts[1])))
    return counts


def print_roles(num_prefill: int, num_decode: int, seconds: float, link: KVLink, names: Sequence[str]) -> None:
    """Print a table of replicas with roles, beside as many that do both."""
    count = num_prefill + num_decode
    traffic = Traffic(ROLES_RATE * count, seconds, PREFIXES_PER_REPLICA * count, own_tokens=ROLES_TOKENS)
    fleets = {
        f"{count} both": FleetScenario(count, traffic),
        f"{num_prefill} prefill + {num_decode} decode": FleetScenario(
            count, traffic, num_prefill=num_prefill, link=link
        ),
    }
    print(f"\n{count} replicas, long prompts, KV blocks at {link.rate / 1e9:g} GB/s\n")
    print(f"| {' | '.join(ROLES_HEAD)} |\n|{'---|' * len(ROLES_HEAD)}")
    for fleet, scenario in fleets.items():
        for name in names:
            cells = [fleet, name, *roles_row(simulate(scenario, all_balancers()[name].make()))]
            print(f"| {' | '.join(cells)} |", flush=True)


def roles_row(result: FleetResult) -> list[str]:
    """Return a result as cells."""
    times = (result.first_token(0.5), result.first_token(0.95), result.token_gap(0.5), result.token_gap(0.99))
    return [
        f"{result.hit_rate:.1%}",
        *(f"{each * 1e3:,.0f} ms" for each in times),
        f"{result.mean_seconds:.2f} s",
        f"{result.sent_tokens / 1e3:,.0f} k",
    ]


def scenarios(num_replicas: int, seconds: float) -> Iterator[tuple[str, FleetScenario]]:
    """Yield a steady load, one with a burst of one prefix, and one in which replicas fail."""
    traffic = Traffic(RATE_PER_REPLICA * num_replicas, seconds, PREFIXES_PER_REPLICA * num_replicas)
    yield "steady", FleetScenario(num_replicas, traffic)
    burst = Burst(seconds / 3, 2 * seconds / 3, share=0.5, prefix=3)
    hot = Traffic(RATE_PER_REPLICA * num_replicas, seconds, PREFIXES_PER_REPLICA * num_replicas, bursts=(burst,))
    yield "half of all requests with one prefix for a third of the time", FleetScenario(num_replicas, hot)
    down = range(max(num_replicas // 8, 1))
    outages = tuple(
        Outage(n, seconds * (0.3 + 0.4 * n / len(down)), seconds * (0.5 + 0.4 * n / len(down))) for n in down
    )
    yield "an eighth of the replicas fail and return", FleetScenario(num_replicas, traffic, outages=outages)


def print_documents(num_replicas: int, balancer: str, num_seeds: int) -> None:
    """Print a table of one balancer with documents, by cache and clients; each row is the mean of several loads."""
    print(f"\n{num_replicas} replicas, {balancer}, documents\n")
    print(f"| {' | '.join(DOCUMENTS_HEAD)} |\n|{'---|' * len(DOCUMENTS_HEAD)}")
    for cache_tokens in DOCUMENT_CACHES:
        for num_clients in DOCUMENT_CLIENTS:
            rows = []
            for seed in range(num_seeds):
                scenario = documents(num_replicas, num_replicas * num_clients, cache_tokens, seed)
                whole = simulate(in_one_server(scenario), all_balancers()["cache"].make())
                rows.append((whole, simulate(scenario, all_balancers()[balancer].make())))
            cells = [f"{cache_tokens:,} tokens", str(num_replicas * num_clients), *documents_row(rows)]
            print(f"| {' | '.join(cells)} |", flush=True)


def documents(num_replicas: int, num_clients: int, cache_tokens: int, seed: int = 0) -> FleetScenario:
    """Return clients that ask about documents, and replicas about as fast as a small model on one CPU core."""
    traffic = Traffic(
        num_prefixes=6 * num_replicas,
        zipf=1.0,
        prefix_tokens=320,
        prefix_spread=0.2,
        common_tokens=30,
        own_tokens=35,
        output_tokens=16,
        num_clients=num_clients,
        num_requests=32 * num_replicas,
        seed=seed,
    )
    return FleetScenario(num_replicas, traffic, ReplicaSpeed(700.0, 0.02, 0.004, cache_tokens, max_rows=16))


def documents_row(runs: Sequence[tuple[FleetResult, FleetResult]]) -> list[str]:
    """Return the runs of one server and of a fleet as cells."""
    shares = [result.hit_rate / whole.hit_rate for whole, result in runs]
    results = [result for _, result in runs]
    return [
        f"{mean(whole.hit_rate for whole, _ in runs):.1%}",
        f"{mean(shares):.1%}",
        f"{min(shares):.1%}",
        f"{mean(each.first_token(0.5) for each in results) * 1e3:,.0f} ms",
        f"{mean(each.first_token(0.99) for each in results) * 1e3:,.0f} ms",
        f"{mean(each.mean_seconds for each in results) * 1e3:,.0f} ms",
        f"{mean(each.copied_tokens / each.computed_tokens for each in results):.1%}",
        f"{mean(each.evicted_tokens / each.computed_tokens for each in results):.1%}",
    ]


def compare(scenario: FleetScenario, names: Sequence[str]) -> Iterator[tuple[str, FleetResult]]:
    """Run a scenario with each policy."""
    yield POOLED, simulate(in_one_server(scenario), all_balancers()["cache"].make())
    policies: dict[str, Balancer] = {name: all_balancers()[name].make() for name in names}
    policies[THRESHOLD] = ThresholdBalancer()
    for name, balancer in policies.items():
        yield name, simulate(scenario, balancer)


def in_one_server(scenario: FleetScenario) -> FleetScenario:
    """Return the same load on one server with the fleet's speed and cache."""
    count, speed = scenario.num_replicas, scenario.speed
    whole = replace(
        speed,
        prompt_rate=speed.prompt_rate * count,
        decode_row_seconds=speed.decode_row_seconds / count,
        cache_tokens=speed.cache_tokens * count,
        max_rows=speed.max_rows * count,
        step_tokens=speed.step_tokens * count,
    )
    return FleetScenario(1, scenario.traffic, whole)


def policy_row(result: FleetResult) -> list[str]:
    """Return a result as cells."""
    return [
        f"{result.hit_rate:.1%}",
        f"{result.first_token(0.5) * 1e3:,.0f} ms",
        f"{result.first_token(0.99) * 1e3:,.0f} ms",
        f"{result.imbalance:.2f}",
        f"{result.computed_tokens / 1e6:.2f} M",
        str(result.num_replicated),
    ]
