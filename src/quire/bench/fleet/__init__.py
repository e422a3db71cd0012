"""A simulated fleet of replicas behind the gateway's own balancers."""
