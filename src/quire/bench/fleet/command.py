"""`quire bench fleet`: the gateway's balancers on simulated fleets of 4 to 1,000 replicas.

Beside them: a model of the published policy with a global switch, and one server with the summed speed and cache,
which no fleet can beat.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from quire.bench.fleet.replica import ReplicaSpeed
from quire.bench.fleet.simulate import FleetResult, FleetScenario, Outage, simulate
from quire.bench.fleet.threshold import ThresholdBalancer
from quire.bench.fleet.traffic import Burst, Traffic
from quire.gateway.balancers.contract import Balancer, all_balancers

POOLED, THRESHOLD = "one server, summed", "global threshold"
COMPARED = ("cache", "least_time", "round_robin")
RATE_PER_REPLICA = 14.0  # requests per second: 35 % of a replica's prompt rate if all prefixes are cached
PREFIXES_PER_REPLICA = 12
HEAD = ("policy", "hit rate", "first token p50", "p99", "busiest / mean", "tokens computed", "prefixes copied")


def main(options: argparse.Namespace) -> None:
    """Print a table for each fleet."""
    parser = argparse.ArgumentParser(prog="quire bench fleet", description=__doc__)
    parser.add_argument("--replicas", default="4,16,64", metavar="N,…", help="sizes of the fleets")
    parser.add_argument("--seconds", type=float, default=30.0, help="simulated time")
    parser.add_argument("--balance", default=",".join(COMPARED), metavar="NAME,…", help="balancers to compare")
    parsed = parser.parse_args(options.rest)
    seconds = 10.0 if options.quick else parsed.seconds
    for num_replicas in [4] if options.quick else [int(each) for each in parsed.replicas.split(",")]:
        for name, scenario in scenarios(num_replicas, seconds):
            print(f"\n{num_replicas} replicas, {name}\n")
            print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
            for policy, result in compare(scenario, parsed.balance.split(",")):
                print(f"| {policy} | {' | '.join(policy_row(result))} |", flush=True)


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
    whole = ReplicaSpeed(
        speed.prompt_rate * count,
        speed.decode_seconds,
        speed.decode_row_seconds / count,
        speed.cache_tokens * count,
        speed.max_rows * count,
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
