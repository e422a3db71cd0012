"""One file a workload: a module-level `WORKLOAD`, whose fields are its options. It is found by the file's name."""
