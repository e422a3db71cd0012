"""Conditions of routing rules, one file for each kind. See policy.py."""
