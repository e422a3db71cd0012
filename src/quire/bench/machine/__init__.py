"""The machine that figures are measured on."""
