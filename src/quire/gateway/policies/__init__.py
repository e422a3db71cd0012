"""Conditions of rules, one file for each kind. See policy.py."""
