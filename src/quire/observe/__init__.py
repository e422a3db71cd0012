"""What an operator can see: logs, metrics and traces. Standard library only; OpenTelemetry if it is asked for."""
