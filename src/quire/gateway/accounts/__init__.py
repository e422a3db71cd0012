"""What API keys spend: prices, budgets, the ledger and the audit log."""
