"""Recommends an engine and settings for a trace of requests.

The stages, in order: `planning` finds the model and the hardware; `prompt_marks` and `workload` read the trace;
`workload_summary`, `shared_prefixes`, `kv_memory` and `cache_replay` describe it; `simulation` serves it with Quire's
own scheduler and cache on a `roofline`; `what_if` repeats that with one thing changed; `recommended_settings` and
`recommendation` conclude; `terminal_report`, `html_report` and `json_report` show the `advice`.
"""
