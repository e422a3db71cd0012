"""The load generator: workloads, arrival times, and the results of requests."""
