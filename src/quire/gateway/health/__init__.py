"""When an upstream gets no requests: circuit breaking, outlier ejection, budgets of retries. Pure."""
