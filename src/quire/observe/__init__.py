"""Logs, metrics and traces. Standard library only; OpenTelemetry and prometheus-client are imported on first use."""
