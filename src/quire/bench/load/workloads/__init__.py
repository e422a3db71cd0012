"""One workload a file, found by the file's name: a class `WORKLOAD` whose fields are the workload's options."""
